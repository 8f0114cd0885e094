"""The whole pipeline on the embedded pair, small: rollouts to the last evaluation, then again."""

import json
import subprocess

import pytest
from running import ROOT, environment

pytestmark = pytest.mark.slow
pytest.importorskip("verl")

SMALL = {
    "PIPELINE_COMPARE": "False",
    "TOTAL_STEPS": "1",
    "MINI_BATCH_SIZE": "4",
    "N_RESPONSES": "2",
    "SFT_TOTAL_EPOCHS": "1",
    "ROLLOUT_ARGS": "--limit 80 --temperature 1 --max-tokens 36",
    "EVAL_ARGS": "--limit 8 --n 2 --temperature 1 --max-tokens 36",
    "LORA_RANK": "4",
}


def pipeline(folder):
    from sys import executable

    own = {"OPDVR_DEVICE": "cpu", "OPDVR_TASK": "demo", "FINAL_CKPT_DIR": str(folder)}
    return subprocess.run(
        [executable, "-m", "opdvr", "pipeline"],
        cwd=ROOT,
        env=environment() | SMALL | own,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=550,
    )


def test_from_rollouts_to_the_summary(tmp_path):
    folder = tmp_path / "a pipeline"
    done = pipeline(folder)
    assert done.returncode == 0, done.stdout[-3000:]
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary["accuracy"]) == ["raw", "sft", "sft+opdvr"]
    assert all(0 <= accuracy <= 1 for accuracy in summary["accuracy"].values())
    for part in ("sft/model/model.safetensors", "sft/lora_adapter", "accuracy-by-stage.png"):
        assert (folder / part).exists(), part
    # What distillation started from is what the cold start ended with.
    record = json.loads((folder / "pipeline.json").read_text())
    assert f"ACTOR_MODEL_PATH={folder / 'sft' / 'model'}" in record["sft+opdvr"]["command"]
    again = pipeline(folder)
    assert again.returncode == 0 and again.stdout.count("there already") == 6
