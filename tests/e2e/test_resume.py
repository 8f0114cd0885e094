"""Killed with SIGKILL, then the same command: the right step, rows and model."""

import os
import signal
import subprocess
import time

import pytest
from running import ROOT, command, environment, log_tail, metrics, prompts_by_step, train

pytestmark = pytest.mark.slow
pytest.importorskip("verl")

ROWS, BATCH = 8, 4  # two steps an epoch


def demo_prompts():
    from opdvr.demo.task import problems

    return [problem.prompt for problem in problems("train")[:ROWS]]


def wait_for_step(folder, step, process, seconds=400):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (folder / "metrics.jsonl").exists() and step in metrics(folder):
            return
        assert process.poll() is None, log_tail(folder)
        time.sleep(0.2)
    raise AssertionError(f"step {step} not reached\n{log_tail(folder)}")


def test_kill_and_resume(tmp_path):
    folder, rollouts = tmp_path / "a run, with (signs)", tmp_path / "rollouts"
    options = [
        f"data.train_max_samples={ROWS}",
        "trainer.save_freq=1",
        "trainer.test_freq=-1",
        f"trainer.rollout_data_dir='{rollouts}'",
    ]
    # a run that ends exactly with its first epoch
    train(folder, *options, "trainer.total_training_steps=2")
    # goes on into the second epoch, killed in the middle of a step
    longer = [*options, "trainer.total_training_steps=6"]
    process = subprocess.Popen(
        command(folder, *longer),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for_step(folder, 3, process)
    time.sleep(0.3)  # into step 4
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    reached = max(metrics(folder))
    # a checkpoint that was being written when the power went
    torn = folder / "global_step_99" / "actor"
    torn.mkdir(parents=True)
    steps = train(folder, *longer)
    assert sorted(steps) == [1, 2, 3, 4, 5, 6]
    assert f"Setting global step to {reached}" in (folder / "train.log").read_text()

    rows = demo_prompts()
    seen = prompts_by_step(rollouts)
    for step in range(1, 7):
        first = (step - 1) * BATCH % ROWS
        text = " ".join(seen[step])
        assert all(prompt in text for prompt in rows[first : first + BATCH]), (step, seen[step])
        assert len(seen[step]) == BATCH

    kept = sorted(
        path.name for path in folder.glob("global_step_*") if path.name != torn.parent.name
    )
    assert kept == ["global_step_5", "global_step_6"]  # the last two

    from transformers import AutoModelForCausalLM, AutoTokenizer

    merged = folder / "global_step_6" / "actor" / "huggingface"
    model = AutoModelForCausalLM.from_pretrained(merged)
    assert len(AutoTokenizer.from_pretrained(merged)) == model.config.vocab_size

    changed = subprocess.run(
        command(folder, *longer, f"data.train_max_samples={ROWS - BATCH}"),
        cwd=ROOT,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=60,  # before Ray starts
    )
    assert changed.returncode != 0 and "data.train_max_samples changed" in changed.stderr
