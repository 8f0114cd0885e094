"""A run's memory by hand, and what is said where it does not fit."""

import json
import os
import shutil
import struct

import pytest

pytest.importorskip("verl")

from machine_setup import BILLION, demo_config, gpu_config, levels  # noqa: E402

from opdvr.integration.config import DEMO_MODELS  # noqa: E402
from opdvr.integration.preflight import devices, machine, memory  # noqa: E402
from opdvr.integration.preflight.devices import GIB  # noqa: E402
from opdvr.integration.preflight.estimate import (  # noqa: E402
    kv_bytes,
    kv_cache_on_cpu,
    on_cpu,
    on_gpu,
)
from opdvr.integration.preflight.weights import Shape, read_shape  # noqa: E402

pytestmark = pytest.mark.usefixtures("bare_environment")

STUDENT = Shape(
    parameters=4 * BILLION,
    layers=32,
    hidden=2048,
    intermediate=8192,
    kv_width=1024,
    vocabulary=1000,
)
TEACHER = Shape(parameters=8 * BILLION, layers=32, hidden=4096, kv_width=1024)


# Weights


def write_safetensors(path, **shapes):
    header = {name: {"dtype": "BF16", "shape": shape} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def model_folder(tmp_path, **config):
    config = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4, **config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_parameters_are_counted_from_the_headers(tmp_path):
    folder = model_folder(tmp_path, num_key_value_heads=2, vocab_size=10, intermediate_size=16)
    write_safetensors(folder / "a.safetensors", embed=[10, 8], **{"m.layers.0.q": [8, 4]})
    write_safetensors(folder / "b.safetensors", norm=[8], **{"m.layers.1.q": [8, 4]})
    shape = read_shape(folder)
    assert shape.parameters == 80 + 32 + 8 + 32
    assert shape.kv_width == 2 * (8 // 4)
    assert shape.matrices == (8 + 4) * 2  # rows plus columns of both layers' matrices
    assert shape.largest_layer == 80  # the embeddings; a layer has (152 - 80) / 2


def test_the_embedded_students_count_is_that_of_torch():
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    weights = load_file(DEMO_MODELS / "student" / "model.safetensors")
    assert read_shape(DEMO_MODELS / "student").parameters == sum(
        tensor.numel() for tensor in weights.values()
    )
    assert all(isinstance(tensor, torch.Tensor) for tensor in weights.values())


def test_sizes_stand_in_for_headers(tmp_path):
    folder = model_folder(tmp_path, torch_dtype="float32")
    assert read_shape(folder) is None
    (folder / "pytorch_model.bin").write_bytes(b"0" * 400)
    assert read_shape(folder).parameters == 100
    index = {"metadata": {"total_size": 800}, "weight_map": {}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_shape(folder).parameters == 200


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<Q", 9) + b"{}", b"\xff" * 100])
def test_damaged_weights_are_an_error_and_not_a_crash(tmp_path, content):
    folder = tmp_path / "student"
    shutil.copytree(DEMO_MODELS / "student", folder)
    (folder / "model.safetensors").write_bytes(content)
    config = demo_config(f"actor_rollout_ref.model.path={folder}")
    (error,) = machine.check_machine(config)
    assert error.level == "error" and error.where.startswith("ACTOR_MODEL_PATH")
    assert "model.safetensors is no safetensors file" in str(error)


def test_half_a_download_is_an_error(tmp_path):
    whole = (DEMO_MODELS / "student" / "model.safetensors").read_bytes()
    (model_folder(tmp_path) / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=f"cut off: it has {len(whole) - 1} of {len(whole)} bytes"):
        read_shape(tmp_path)


# Memory


def parts(phase):
    return {part.name: part.size for part in phase.parts}


def test_the_gpu_estimate_by_hand():
    config = gpu_config("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=10000")
    sampling, training = on_gpu(config, STUDENT, TEACHER, total=80 * GIB)
    # 4 billion parameters over 2 GPUs: float32 weights 8 GB, gradients 8, two moments 16.
    assert parts(sampling) == {
        "weights": 8 * BILLION,
        "optimizer": 16 * BILLION,
        "teacher": 8 * BILLION,  # 8 billion in bfloat16 over 2
        "inference engine": 0.5 * 80 * GIB,
    }
    trained = parts(training)
    assert trained["gradients"] == 8 * BILLION and "inference engine" not in trained
    # Two layers in bfloat16, each (4e9 - 1000 * 2048) / 32.
    assert trained["gathered layers"] == pytest.approx(2 * 2 * (4e9 - 2048e3) / 32)
    # 10,000 tokens in bfloat16: 2048 for each of 32 layers, 10 * 2048 + 4 * 8192 inside one.
    assert trained["activations"] == 10_000 * 2 * (32 * 2048 + 10 * 2048 + 4 * 8192)
    assert training.certain == (8 + 8 + 16 + 8) * BILLION < training.size


@pytest.mark.parametrize(
    ("override", "sampling", "training"),
    [
        ("actor_rollout_ref.actor.fsdp_config.optimizer_offload=True", -16, 0),
        ("actor_rollout_ref.actor.fsdp_config.param_offload=True", -8, 0),
        ("actor_rollout_ref.actor.fsdp_config.offload_policy=True", -24, -32),
        ("reward_model.model.fsdp_config.param_offload=True", -8, -8),
        ("opdvr.teacher_engine=vllm", -8, -8),
        ("reward_model.enable_resource_pool=True", -8, -8),
        ("trainer.n_gpus_per_node=4", -16, -20),  # half of 32 while sampling, of 40 in training
    ],
)
def test_what_takes_memory_off_a_gpu(override, sampling, training):
    before = on_gpu(gpu_config(), STUDENT, TEACHER, total=80 * GIB)
    after = on_gpu(gpu_config(override), STUDENT, TEACHER, total=80 * GIB)
    saved = [new.certain - old.certain for new, old in zip(after, before, strict=True)]
    assert saved == [sampling * BILLION, training * BILLION]


def test_an_engine_that_stays_awake_counts_in_training():
    config = gpu_config("actor_rollout_ref.rollout.free_cache_engine=False")
    _, training = on_gpu(config, STUDENT, None, total=80 * GIB)
    assert parts(training)["inference engine"] == 40 * GIB


def test_lora_trains_little():
    student = Shape(parameters=4 * BILLION, layers=32, matrices=10**6)
    config = gpu_config("actor_rollout_ref.model.lora_rank=8")
    trained = parts(on_gpu(config, student, None, total=80 * GIB)[1])
    assert trained["optimizer"] == 8 * (8 * 10**6) / 2
    assert trained["weights"] == 4 * (4 * BILLION + 8 * 10**6) / 2


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (80, ["note", "note"]),
        # While sampling 32e9 bytes and 40 GiB: 69.8 GiB, over 90 % of 75.
        (75, ["warning", "note"]),
        (69, ["error", "note"]),
        # While training 40e9 bytes for certain, 37.3 GiB.
        (37, ["error", "error"]),
    ],
)
def test_free_memory_decides(nvidia_smi, free, expected):
    nvidia_smi(80, free)
    found = list(memory.check_memory(gpu_config(), STUDENT, TEACHER))
    assert levels(found) == expected
    assert all(f"of {free}.0 GiB free on the fullest GPU" in str(each) for each in found)
    if "error" in expected:
        assert "optimizer_offload=True" in found[0].remedy and "LORA_RANK" in found[0].remedy


def test_an_engine_must_hold_its_weights_and_one_row(nvidia_smi):
    # 8e9 bytes of weights, and for each of 9,216 tokens 2 * 32 * 1024 * 2 bytes: 9.2e9 in all.
    assert kv_bytes(gpu_config(), STUDENT) == 131_072
    gpu = 80 * GIB
    enough = gpu_config("actor_rollout_ref.rollout.gpu_memory_utilization=0.108")
    assert list(memory.check_engine(enough, STUDENT, None, gpu)) == []
    less = gpu_config("actor_rollout_ref.rollout.gpu_memory_utilization=0.106")
    (error,) = memory.check_engine(less, STUDENT, None, gpu)
    assert error.level == "error" and "vLLM gets 0.106 of 80.0 GiB" in str(error)
    assert error.where == "actor_rollout_ref.rollout.gpu_memory_utilization"


def test_the_estimate_without_a_gpu_by_hand():
    config = demo_config()
    student = Shape(parameters=10**6, layers=2, hidden=64, intermediate=128, kv_width=32)
    phase = on_cpu(config, student, Shape(parameters=2 * 10**6))
    held = parts(phase)
    assert [held[name] for name in ("weights", "gradients", "optimizer")] == [4e6, 4e6, 8e6]
    assert (held["teacher"], held["rollout's copy"]) == (8e6, 4e6)  # float32 on the CPU
    assert held["cache"] == 300 * 128 * (2 * 2 * 32 * 4)  # blocks, their tokens, bytes of one
    assert held["activations"] == 1024 * 4 * 2 * (10 * 64 + 4 * 128)


def test_the_cache_of_a_cpu_is_its_space_where_blocks_are_not_counted():
    config = demo_config("~actor_rollout_ref.rollout.engine_kwargs.vllm.num_gpu_blocks_override")
    assert kv_cache_on_cpu(config, STUDENT) == 1 * GIB
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "3"
    assert kv_cache_on_cpu(config, STUDENT) == 3 * GIB


def meminfo(monkeypatch, tmp_path, gib, limit=None, anon=0):
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {int(gib * 2**20)} kB\n")
    monkeypatch.setattr(devices, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(devices, "CGROUP", tmp_path)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.stat").write_text(f"anon {anon}\nfile 77\n")


@pytest.mark.parametrize(("available", "level"), [(100, "note"), (3.5, "warning"), (0.05, "error")])
def test_main_memory_decides_without_a_gpu(monkeypatch, tmp_path, available, level):
    meminfo(monkeypatch, tmp_path, available)
    # 0.06 GiB for certain, most of it cache; about 3.3 with the processes.
    student = read_shape(DEMO_MODELS / "student")
    certain = Shape(parameters=student.parameters, layers=2, hidden=64, kv_width=200)
    (found,) = memory.check_memory(demo_config(), certain, None)
    assert found.level == level
    assert found.where == "memory" and "available" in found.what


def test_a_containers_limit_counts(monkeypatch, tmp_path):
    meminfo(monkeypatch, tmp_path, 8)
    assert devices.available_memory() == 8 * GIB
    meminfo(monkeypatch, tmp_path, 8, limit=3 * GIB, anon=GIB)
    assert devices.available_memory() == 2 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert devices.available_memory() == 8 * GIB
    monkeypatch.setattr(devices, "MEMINFO", tmp_path / "none")
    assert devices.available_memory() is None
