"""Which run a command goes on with, and that a run folder has one process at a time."""

import json
import os
import signal
import subprocess
import sys

import pytest

from opdvr.integration import runs
from opdvr.integration.checkpoints import COMPLETE
from opdvr.integration.config import REPO_ROOT

COMMAND = ["platform=cpu", "task=demo"]


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, ...): a run's folder as an earlier start left it."""

    def make(name, command=COMMAND, step=5, complete=True, finished=False):
        folder = tmp_path / name
        folder.mkdir()
        runs.record(folder, command, finished)
        if step:
            checkpoint = folder / f"global_step_{step}"
            checkpoint.mkdir()
            if complete:
                (checkpoint / COMPLETE).write_text("{}")
        return folder

    return make


def found(tmp_path, command=COMMAND):
    return runs.interrupted_run(tmp_path, "opdvr_top0_student", command)


OLD, NEW = "opdvr_top0_student_20260101-000000", "opdvr_top0_student_20260102-000000"


def test_the_newest_of_the_same_command(tmp_path, make_run):
    assert found(tmp_path / "none yet") is None
    make_run(NEW)
    make_run(OLD)
    assert found(tmp_path) == NEW


@pytest.mark.parametrize(
    "difference",
    [
        {"finished": True},
        {"step": None},
        {"complete": False},
        {"command": [*COMMAND, "trainer.total_epochs=2"]},
        {"command": COMMAND[::-1]},
    ],
)
def test_what_is_not_gone_on_with(tmp_path, make_run, difference):
    make_run(OLD)
    make_run(NEW, **difference)
    assert found(tmp_path) == OLD


@pytest.mark.parametrize("name", ["opdvr_top0_student_mine", f"{NEW}-copy", f"{NEW}.old"])
def test_a_folder_named_by_hand_is_left_alone(tmp_path, make_run, name):
    make_run(name)
    assert found(tmp_path) is None


def test_a_model_of_a_longer_name_is_another_one(tmp_path, make_run):
    make_run("opdvr_top0_student_2_20260103-000000")
    assert found(tmp_path) is None
    assert runs.interrupted_run(tmp_path, "opdvr_top0_student_2", COMMAND) is not None


def test_a_prefix_is_taken_to_the_letter(tmp_path, make_run):
    make_run("opdvr_top0_Qwen3-1.7B_20260101-000000")
    assert runs.interrupted_run(tmp_path, "opdvr_top0_Qwen3-1.7B", COMMAND) is not None
    assert runs.interrupted_run(tmp_path, "opdvr_top0_Qwen3-1x7B", COMMAND) is None


def test_a_folder_without_a_record_is_no_run(tmp_path, make_run):
    (make_run(NEW) / runs.RECORD).unlink()
    assert found(tmp_path) is None


def test_a_models_name_may_have_brackets(tmp_path, make_run):
    make_run("opdvr_top0_run[1]_20260101-000000")
    assert runs.interrupted_run(tmp_path, "opdvr_top0_run[1]", COMMAND) is not None


def test_the_record_says_what_was_started(make_run):
    folder = make_run(OLD, command=["a=实验", "b='x y'"])
    content = json.loads((folder / runs.RECORD).read_text())
    assert content["overrides"] == ["a=实验", "b='x y'"] and content["finished"] is False
    assert content["command"] == runs.fingerprint(["a=实验", "b='x y'"])
    assert runs.fingerprint(["a=1,b=2"]) != runs.fingerprint(["a=1", "b=2"])


HOLDER = """
import sys
from pathlib import Path
from opdvr.integration import runs
try:
    lock = runs.hold(Path(sys.argv[1]))
except ValueError as error:
    print(error, flush=True)
    sys.exit(2)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder():
    """holder(folder): another process that trains in the folder; its first line, itself."""
    started = []

    def start(folder):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder)],
            env=os.environ | {"PYTHONPATH": str(REPO_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process.stdout.readline().strip(), process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path, make_run, holder):
    folder = make_run(OLD)
    said, first = holder(folder)
    assert said == "held"
    with pytest.raises(ValueError, match=f"another process is training in {folder}; choose anoth"):
        runs.hold(folder)
    said, second = holder(folder)
    assert "another process is training" in said and second.wait() == 2
    assert found(tmp_path) is None, "a run in progress is not interrupted"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert found(tmp_path) == OLD
    with runs.hold(folder):
        assert found(tmp_path) is None
    said, _ = holder(folder)
    assert said == "held"


def test_two_folders_are_two_runs(make_run, holder):
    assert holder(make_run(OLD))[0] == "held"
    runs.hold(make_run(NEW)).close()


def test_holding_makes_the_folder(tmp_path):
    with runs.hold(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / runs.LOCK).is_file()


def test_a_teacher_that_moved_is_the_same_command():
    moved = ["opdvr.teacher_urls='http://b:1'", "a=1", "opdvr.teacher_patience=5.0"]
    assert runs.fingerprint(moved) == runs.fingerprint(["opdvr.teacher_urls='http://a:1'", "a=1"])
    engines = (["opdvr.teacher_engine=vllm"], ["opdvr.teacher_engine=server"])
    assert runs.fingerprint(engines[0]) != runs.fingerprint(engines[1])
