"""The model folder that a supervised run ends with."""

import json

import pytest

from opdvr.integration.sft.export import export


def checkpoint(folder, step, generation=None, config=None):
    whole = folder / f"global_step_{step}" / "huggingface"
    whole.mkdir(parents=True)
    (folder / f"global_step_{step}" / "complete.json").write_text("{}")
    (whole / "config.json").write_text(json.dumps(config or {}))
    (whole / "model.safetensors").write_bytes(bytes([step]))
    if generation is not None:
        (whole / "generation_config.json").write_text(json.dumps(generation))
    return whole


@pytest.mark.parametrize(
    ("generation", "config", "expected", "said"),
    [
        ({"eos_token_id": 7}, {}, 7, False),
        ({"eos_token_id": [3, 7]}, {}, [3, 7], False),
        ({"eos_token_id": 3}, {}, [3, 7], True),
        ({"eos_token_id": [3, 5]}, {}, [3, 5, 7], True),
        ({"eos_token_id": None}, {}, [7], True),
        ({"top_p": 0.9}, {"eos_token_id": 3}, [3, 7], True),
        (None, {"eos_token_id": 3}, [3, 7], True),
    ],
)
def test_sampling_stops_where_responses_ended_in_training(
    tmp_path, generation, config, expected, said
):
    source = checkpoint(tmp_path, 4, generation, config)
    lines = []
    model = export(tmp_path, (9, 7), lines.append)
    written = json.loads((model / "generation_config.json").read_text())
    assert written["eos_token_id"] == expected and bool(lines) == said
    assert written.get("top_p") == (generation or {}).get("top_p")
    if generation is not None:  # the checkpoint's own is left as it was
        assert json.loads((source / "generation_config.json").read_text()) == generation


def test_the_last_checkpoint_and_its_adapter_are_taken(tmp_path):
    for step in (2, 10):
        checkpoint(tmp_path, step, {"eos_token_id": 7})
        adapter = tmp_path / f"global_step_{step}" / "lora_adapter"
        adapter.mkdir()
        (adapter / "adapter_config.json").write_text(str(step))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old.txt").write_text("an earlier end")
    model = export(tmp_path, (7,), print)
    assert sorted(file.name for file in model.iterdir()) == [
        *("config.json", "generation_config.json", "model.safetensors")
    ]
    assert (model / "model.safetensors").read_bytes() == bytes([10])
    assert (tmp_path / "lora_adapter" / "adapter_config.json").read_text() == "10"
