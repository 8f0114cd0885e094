"""What --model may name, and what it is refused for."""

import json
import os

import pytest

from opdvr.eval import models as md

said = []


def resolve(text, output, **options):
    said.clear()
    return md.resolve(text, output, said.append, **options)


@pytest.fixture
def make(tmp_path):
    """make(path, config=, weights=): a model folder below tmp_path."""

    def build(path, config=True, weights=True):
        folder = tmp_path / path
        folder.mkdir(parents=True)
        if config:
            (folder / "config.json").write_text('{"max_position_embeddings": 64}')
        if weights:
            (folder / "model.safetensors").write_bytes(b"w" * 100)
        return folder

    return build


def checkpoint(make, step, complete=True, **kind):
    huggingface = make(f"run/global_step_{step}/actor/huggingface", **kind)
    folder = huggingface.parents[1]
    if complete:
        (folder / "complete.json").write_text("{}")
    return folder


def test_a_model_folder(make, tmp_path):
    folder = make("model")
    model = resolve(str(folder), tmp_path / "out")
    assert (model.folder, said) == (folder, [])
    assert md.context_length(folder) == 64
    with pytest.raises(ValueError, match="no weights"):
        resolve(str(make("empty", weights=False)), tmp_path)
    with pytest.raises(ValueError, match="no model in"):
        resolve(str(make("nothing", config=False)), tmp_path)


def test_a_checkpoint_and_a_run(make, tmp_path):
    for step in (5, 10):
        checkpoint(make, step)
    checkpoint(make, 15, complete=False)
    run = tmp_path / "run"
    model = resolve(str(run / "global_step_5"), tmp_path)
    assert model.folder == run / "global_step_5" / "actor" / "huggingface"
    model = resolve(str(run), tmp_path)
    assert model.folder == run / "global_step_10" / "actor" / "huggingface"
    assert model.name.endswith("global_step_10") and "last complete" in said[0]
    with pytest.raises(ValueError, match="no complete checkpoint"):
        resolve(str(run / "global_step_15"), tmp_path)
    (run / "global_step_5" / "complete.json").unlink()
    (run / "global_step_10" / "complete.json").unlink()
    with pytest.raises(ValueError, match="no complete checkpoint"):
        resolve(str(run), tmp_path)


def test_shards_are_merged_once_and_all_at_once(make, tmp_path, monkeypatch):
    step = checkpoint(make, 5, weights=False)
    with pytest.raises(ValueError, match="neither whole nor in shards"):
        resolve(str(step), tmp_path)
    (step / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"x")
    calls = []

    class Done:
        returncode = 0
        stdout = "reading\nout of luck"

    def run(command, **options):
        calls.append(command)
        target = command[command.index("--target_dir") + 1]
        assert not (step / md.MERGED).exists()
        if Done.returncode == 0:
            for name in ("config.json", "model.safetensors"):
                open(os.path.join(target, name), "w").close()
        return Done

    monkeypatch.setattr(md.subprocess, "run", run)
    Done.returncode = 1
    with pytest.raises(ValueError, match="merger failed.*out of luck"):
        resolve(str(step), tmp_path)
    assert sorted(path.name for path in step.iterdir()) == ["actor", "complete.json"]
    Done.returncode = 0
    model = resolve(str(step), tmp_path)
    assert model.folder == step / md.MERGED and "merging" in said[0]
    assert calls[-1][1:6] == ["-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    before = len(calls)
    assert resolve(str(step), tmp_path).folder == step / md.MERGED
    assert len(calls) == before


@pytest.mark.parametrize("name", ["nothing", "./owner/name", "/a/b", "a/b/c", "~/x", "a/"])
def test_names_that_no_hub_has(name, tmp_path):
    with pytest.raises(ValueError, match=f"--model: model folder not found: {name}"):
        resolve(name, tmp_path)


def test_a_hub_name_that_cannot_be_had(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(name, **_options):
        raise LocalEntryNotFoundError("not here\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ValueError, match="owner/name.*not here$"):
        resolve("owner/name", tmp_path)


def test_a_hub_name_becomes_its_snapshot(make, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    import huggingface_hub

    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **_options: str(make("snapshot"))
    )
    assert resolve("owner/name", tmp_path).folder == tmp_path / "snapshot"


def test_fingerprints_tell_weights_and_tokenizers_apart(make):
    one, other = make("one"), make("other")
    assert md.fingerprint(one) == md.fingerprint(other)
    (other / "model.safetensors").write_bytes(b"w" * 99 + b"v")
    assert md.fingerprint(one) != md.fingerprint(other)
    (other / "model.safetensors").write_bytes(b"w" * 100)
    (other / "chat_template.jinja").write_text("x")
    assert md.fingerprint(one) != md.fingerprint(other)


def test_context_of_a_nested_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"hidden_size": 1}}))
    assert md.context_length(tmp_path) is None
