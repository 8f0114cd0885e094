"""A run that a watchdog stopped: its exit code, its checkpoint, and the rows it goes on with."""

import json
import subprocess

import pytest
from running import ROOT, command, environment, log_tail, metrics, prompts_by_step, train

pytestmark = pytest.mark.slow
pytest.importorskip("verl")

BATCH, STOPPED_AT, LAST = 4, 5, 7

VERIFIER = """
def always_wrong(data_source, solution_str, ground_truth, extra_info=None):
    return 0.0
"""


def test_stop_and_go_on(tmp_path):
    folder, rollouts = tmp_path / "run", tmp_path / "rollouts"
    (tmp_path / "verifier.py").write_text(VERIFIER)
    options = [
        f"opdvr.verifier='{tmp_path / 'verifier.py'}:always_wrong'",
        "opdvr.preflight=off",  # which sees that the verifier is always wrong
        f"trainer.total_training_steps={LAST}",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "data.shuffle=false",
        f"trainer.rollout_data_dir='{rollouts}'",
    ]
    done = subprocess.run(
        command(folder, *options, "opdvr.watchdog=stop"),
        cwd=ROOT,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=400,
    )
    assert done.returncode == 3, done.stdout + done.stderr + log_tail(folder)
    assert "watchdog: step 5: no response was correct in the last 5 steps" in done.stdout
    assert done.stderr.strip().splitlines()[-1].startswith("opdvr: stopped by the watchdog")
    assert sorted(metrics(folder)) == list(range(1, STOPPED_AT + 1))
    assert (folder / f"global_step_{STOPPED_AT}" / "complete.json").is_file()
    assert json.loads((folder / "run.json").read_text())["finished"] is False
    (alarm,) = map(json.loads, (folder / "alarms.jsonl").read_text().splitlines())
    assert (alarm["step"], alarm["kind"]) == (STOPPED_AT, "accuracy")

    steps = train(folder, *options, "opdvr.watchdog=warn")
    assert sorted(steps) == list(range(1, LAST + 1))
    assert f"Setting global step to {STOPPED_AT}" in (folder / "train.log").read_text()

    from opdvr.demo.task import problems

    rows = [problem.prompt for problem in problems("train")[: LAST * BATCH]]
    seen = prompts_by_step(rollouts)
    for step in range(1, LAST + 1):
        text = " ".join(seen[step])
        assert all(row in text for row in rows[(step - 1) * BATCH : step * BATCH]), step
