"""Devices, disk, ports and loggers of a machine that a test makes up."""

import os
import socket

import pytest
from omegaconf import OmegaConf

pytest.importorskip("verl")

from machine_setup import BILLION, demo_config, gpu_config, levels  # noqa: E402

from opdvr.integration import wandb_login as login  # noqa: E402
from opdvr.integration.preflight import devices, machine, memory  # noqa: E402
from opdvr.integration.preflight.weights import Shape  # noqa: E402

pytestmark = pytest.mark.usefixtures("bare_environment")

STUDENT = Shape(parameters=4 * BILLION)


# Devices


def test_gpus_are_counted(nvidia_smi):
    nvidia_smi(70, 60)
    assert list(machine.check_devices(gpu_config())) == []
    (error,) = machine.check_devices(gpu_config("trainer.n_gpus_per_node=3"))
    assert error.level == "error" and "asks for 3, but 2 are visible" in str(error)
    assert str(error).startswith("NGPUS_PER_NODE (trainer.n_gpus_per_node)")


@pytest.mark.parametrize(
    ("hidden", "seen"), [("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("0,-1,1", 1), ("GPU-1abc", 1)]
)
def test_hidden_gpus_do_not_count(nvidia_smi, hidden, seen):
    nvidia_smi(70, 60)
    os.environ["CUDA_VISIBLE_DEVICES"] = hidden
    assert devices.visible_count() == len(devices.visible_gpus()) == seen


def test_the_teachers_own_devices_count(nvidia_smi):
    nvidia_smi(70, 60)
    own = ("opdvr.teacher_engine=vllm", "opdvr.teacher_devices=1")
    (error,) = machine.check_devices(gpu_config(*own))
    assert error.level == "error" and "TEACHER_DEVICES (opdvr.teacher_devices) 1 more" in str(error)


@pytest.mark.parametrize("code", [0, 9])
def test_without_nvidia_smi_a_note_says_so(nvidia_smi, code):
    nvidia_smi(code=code)
    (note,) = machine.check_devices(gpu_config())
    assert note.level == "note" and "nvidia-smi did not answer" in str(note)
    (note,) = memory.check_memory(gpu_config(), STUDENT, None)
    assert note.level == "note" and "nvidia-smi lists no GPU" in str(note)


def test_a_cpu_run_asks_for_no_gpu(nvidia_smi):
    nvidia_smi()
    assert list(machine.check_devices(demo_config())) == []


# Disk


@pytest.mark.parametrize(
    ("free", "level"), [(3 * 64, "note"), (3 * 64 - 1, "warning"), (64, "warning"), (63, "error")]
)
def test_room_for_checkpoints(monkeypatch, tmp_path, free, level):
    # One has 16 bytes a parameter: 64e9. Two are kept, and one more is being written.
    monkeypatch.setattr(machine, "free_disk", lambda folder: (folder, free * BILLION))
    (found,) = machine.check_disk(gpu_config(), STUDENT)
    assert found.level == level and found.where.startswith("FINAL_CKPT_DIR")
    assert "up to 3 checkpoints of 59.6 GiB each" in str(found)


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ((), 3),
        (("trainer.total_training_steps=110",), 2),
        (("trainer.total_training_steps=111",), 3),
        (("trainer.max_actor_ckpt_to_keep=null", "trainer.total_training_steps=560"), 11),
        (("trainer.save_freq=-1",), 0),
    ],
)
def test_how_many_checkpoints_lie_there(overrides, count):
    assert machine.checkpoint_count(gpu_config(*overrides)) == count


def test_a_run_that_saves_nothing_is_warned_about():
    (found,) = machine.check_disk(gpu_config("trainer.save_freq=-1"), STUDENT)
    assert found.level == "warning" and "SAVE_FREQ" in found.where


def test_free_space_is_that_of_the_nearest_parent(tmp_path):
    folder, free = devices.free_disk(tmp_path / "not" / "yet")
    assert folder == tmp_path and free > 0
    assert not (tmp_path / "not").exists()


# Ports


@pytest.fixture
def used_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_cluster_that_answers(used_port, form):
    assert list(machine.check_cluster(form.format(used_port))) == []
    (error,) = machine.check_cluster(form.format(free_port()))
    assert error.level == "error" and "nothing answers at 127.0.0.1:" in str(error)


def test_an_address_without_a_port():
    (error,) = machine.check_cluster("head-node")
    assert error.level == "error" and "HOST:PORT" in str(error)
    assert levels(machine.check_cluster("auto")) == ["note"]


@pytest.mark.parametrize("variable", ["VLLM_PORT", "MASTER_PORT"])
def test_named_ports_are_free(used_port, variable):
    assert list(machine.check_ports()) == []
    os.environ[variable] = str(free_port())
    assert list(machine.check_ports()) == []
    os.environ[variable] = str(used_port)
    (found,) = machine.check_ports()
    assert found.level == "warning" and found.where == variable and "is in use" in str(found)
    os.environ[variable] = "many"
    (found,) = machine.check_ports()
    assert found.level == "error" and "'many'" in str(found)


def test_a_machine_that_may_not_listen(monkeypatch):
    monkeypatch.setattr(machine, "_cannot_bind", lambda port: OSError(1, "Operation not permitted"))
    (error,) = machine.check_ports()
    assert error.level == "error" and "Operation not permitted" in str(error)


# Loggers


def test_wandb_without_a_key(monkeypatch, tmp_path):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(login.importlib.util, "find_spec", lambda name: object())
    config = OmegaConf.create({"trainer": {"logger": ["console", "wandb"]}})
    (found,) = machine.check_loggers(config)
    assert found.level == "warning" and "recorded offline" in str(found)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password k")
    assert list(machine.check_loggers(config)) == []
    (tmp_path / "netrc").unlink()
    os.environ["WANDB_MODE"] = "offline"
    assert list(machine.check_loggers(config)) == []
    monkeypatch.setattr(login.importlib.util, "find_spec", lambda name: None)
    (found,) = machine.check_loggers(config)
    assert found.level == "warning" and "not installed" in str(found)
    config.trainer.logger = "console"
    assert list(machine.check_loggers(config)) == []
