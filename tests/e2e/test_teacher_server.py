"""A run whose teacher's server dies for good: it stops with its state saved, and goes on later."""

import re
import subprocess
import threading

import pytest
from fake_server import ABORT, FakeServer
from running import ROOT, command, environment, log_tail, metrics, prompts_by_step, train

from opdvr.integration.checkpoints import complete_steps

pytestmark = pytest.mark.slow
pytest.importorskip("verl")

ROWS, BATCH, RESPONSES = 16, 4, 2
PROBES = 2  # at the start of a run and of its engine
TEACHER = "teacher-faulty"  # the embedded task's, which the run takes the server's for


def dies_within_step(step):
    """A fault: half of this step's responses get an answer, then the server is gone."""
    last = PROBES + (step - 1) * BATCH * RESPONSES + BATCH

    def fault(server, number, asked):
        if number < last:
            return None
        threading.Thread(target=server.stop).start()
        return ABORT

    return fault


def test_dead_for_good_then_the_same_command(tmp_path):
    folder, rollouts = tmp_path / "run", tmp_path / "rollouts"
    server = FakeServer(model=TEACHER, fault=dies_within_step(3))
    options = [
        "opdvr.teacher_engine=server",
        f"opdvr.teacher_urls='{server.url}'",
        "opdvr.teacher_patience=2",
        f"data.train_max_samples={ROWS}",
        f"trainer.rollout_data_dir='{rollouts}'",
        "trainer.total_training_steps=4",
        "trainer.test_freq=-1",
    ]
    stopped = subprocess.run(
        command(folder, *options),
        cwd=ROOT,
        env=environment() | {"TEACHER_API_KEY": "not-to-be-seen"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=400,
    )
    assert stopped.returncode == 1, stopped.stdout[-4000:]
    assert re.search(r"^opdvr: no server of the teacher for \d+ s", stopped.stdout, re.MULTILINE)
    assert "the state after step 2 is saved" in stopped.stdout
    assert "Traceback" not in stopped.stdout
    assert server.keys == {"Bearer not-to-be-seen"}
    assert "not-to-be-seen" not in stopped.stdout + (folder / "train.log").read_text()
    assert sorted(metrics(folder)) == [1, 2]  # nothing was made of half a step's scores
    assert complete_steps(folder) == [2]

    with FakeServer(model=TEACHER, port=server.port):
        steps = train(folder, *options)
    assert sorted(steps) == [1, 2, 3, 4], log_tail(folder)
    for record in steps.values():
        assert 0 <= record["opd/teacher_hidden_frac"] <= 1 and record["opd/engine_floor"] < 1e-4
    seen = prompts_by_step(rollouts)
    assert all(len(seen[step]) == BATCH for step in steps)
    # the step that was broken off had its rows again, and none was left out
    assert len({prompt for step in steps for prompt in seen[step]}) == ROWS
