"""Runs of the real command on the embedded task, small."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALL = [
    "platform=cpu",
    "task=demo",
    "trainer.logger=[console]",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.val_kwargs.n=2",
    "data.val_max_samples=8",
    "trainer.total_training_steps=2",
    "trainer.save_freq=-1",
    "trainer.test_freq=2",
    "trainer.val_before_train=false",
]
TIMEOUT_S = 500


def command(folder, *overrides):
    return [
        *(sys.executable, "-m", "opdvr", "train"),
        *SMALL,
        f"trainer.default_local_dir='{folder}'",
        f"trainer.experiment_name='{Path(folder).name}'",
        *overrides,
    ]


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def train(folder, *overrides):
    """Run to the end; returns {step: metrics}. A failure shows the command's own output."""
    done = subprocess.run(
        command(folder, *overrides),
        cwd=ROOT,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-8000:] + log_tail(folder)
    return metrics(folder)


def log_tail(folder):
    log = Path(folder) / "train.log"
    return log.read_text()[-4000:] if log.exists() else ""


def metrics(folder):
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return {record["step"]: record for record in map(json.loads, lines)}


def prompts_by_step(folder):
    """The distinct prompts of each step, in order, from verl's own rollout dump."""
    found = {}
    for path in Path(folder).glob("*.jsonl"):
        rows = [json.loads(line)["input"] for line in path.read_text().splitlines()]
        found[int(path.stem)] = list(dict.fromkeys(rows))
    return found
