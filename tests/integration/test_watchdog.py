"""What a watchdog does to a run: its lines, its stop, and what is never saved."""

import json
import pickle
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from opdvr.core import NonFiniteError
from opdvr.integration import launch, runs, watchdog
from opdvr.integration.checkpoints import COMPLETE
from opdvr.integration.watchdog import Watchdog, WatchdogStop
from opdvr.report.run_folder import RunFolder

WRONG = {"timing_s/step": 1.0, "cg/correct_frac": 0.0}
BROKEN = {"timing_s/step": 1.0, "actor/grad_norm": float("nan")}


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run").open({}, ["opdvr"], None)


def look(run, mode, steps, last_step=99, metrics=WRONG):
    dog = Watchdog(mode, run, last_step)
    for step in steps:
        run.append_metrics(step, metrics)
        dog.look(step, metrics)


def alarms(run):
    path = run.path / "alarms.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_warn_says_it_once_and_goes_on(run, capsys):
    look(run, "warn", range(1, 10))
    assert capsys.readouterr().out.count("watchdog: step 5: no response was correct") == 1
    (alarm,) = alarms(run)
    assert (alarm["step"], alarm["kind"]) == (5, "accuracy")


def test_off_is_silent(run, capsys):
    look(run, "off", range(1, 10))
    assert alarms(run) == [] and capsys.readouterr().out == ""


def test_stop_ends_the_run_after_the_line_is_written(run):
    with pytest.raises(WatchdogStop, match=r"\(accuracy\) after step 5") as stopped:
        look(run, "stop", range(1, 10))
    assert len(alarms(run)) == 1 and stopped.value.is_sound


def test_the_last_step_is_an_end_already(run):
    look(run, "stop", range(1, 6), last_step=5)
    assert len(alarms(run)) == 1


def test_a_resumed_run_gets_the_steps_of_a_streak(run):
    look(run, "warn", range(1, 4))
    look(run, "stop", range(4, 8))
    with pytest.raises(WatchdogStop, match="after step 12"):
        look(run, "stop", range(8, 20))


def test_alarms_of_steps_that_come_again_are_dropped(run):
    look(run, "warn", range(1, 8))
    RunFolder(run.path).open({}, ["opdvr"], 4)
    assert alarms(run) == []


@pytest.fixture
def trainer(tmp_path):
    """Stands where `fit` logs step 6; checkpoints are complete.json files."""
    trainer = SimpleNamespace(run_folder=tmp_path / "mine", global_steps=6, saved=[])

    def complete(step):
        folder = trainer.run_folder / f"global_step_{step}"
        folder.mkdir(parents=True)
        (folder / COMPLETE).write_text("{}")

    def save():
        trainer.saved.append(trainer.global_steps)
        complete(trainer.global_steps)

    trainer.complete, trainer._save_checkpoint = complete, save
    return trainer


def test_a_stopped_run_is_saved(trainer):
    message = str(watchdog.ended(trainer, WatchdogStop("stopped after step 6")))
    assert trainer.saved == [6]
    assert "stopped after step 6; its state is saved" in message
    assert "EXPERIMENT_NAME=mine" in message and "WATCHDOG=warn" in message


def test_a_step_that_is_saved_is_not_saved_again(trainer):
    trainer.complete(6)
    assert "its state is saved" in str(watchdog.ended(trainer, WatchdogStop("stopped")))
    assert trainer.saved == []


def test_numbers_that_are_not_finite_save_nothing(run, trainer, capsys):
    with pytest.raises(WatchdogStop) as stopped:
        look(run, "stop", [6], metrics=BROKEN)
    assert not stopped.value.is_sound
    trainer.complete(4)
    trainer.complete(6)  # by SAVE_FREQ, before the step was logged
    message = str(watchdog.ended(trainer, stopped.value))
    assert trainer.saved == [] and message.count("global_step_") == 1
    assert f"the last good checkpoint is {trainer.run_folder / 'global_step_4'}" in message


def test_a_student_that_breaks_within_a_step(trainer, capsys):
    message = str(watchdog.broken(trainer, NonFiniteError("student log-prob is nan at row 3")))
    assert "watchdog: step 6: student log-prob is nan at row 3" in capsys.readouterr().out
    assert "at step 6" in message and "no checkpoint before it" in message and "\n" not in message
    trainer.complete(5)
    assert "global_step_5" in str(watchdog.broken(trainer, NonFiniteError("nan")))


def test_weights_that_broke_in_the_last_update(trainer):
    def save():
        raise NonFiniteError("lm_head holds NaN")

    trainer._save_checkpoint = save
    trainer.complete(3)
    message = str(watchdog.ended(trainer, WatchdogStop("stopped")))
    assert "nothing is saved of it" in message and "global_step_3" in message


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1e7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_broken_weights_are_found_wherever_they_are(tmp_path, bad, dtype):
    weights = {"a": torch.ones(3, 4, dtype=dtype), "b": torch.ones(5, dtype=dtype)}
    (tmp_path / "actor" / "huggingface").mkdir(parents=True)
    file = tmp_path / "actor" / "huggingface" / "model.safetensors"
    save_file(weights, file)
    watchdog.refuse_broken_weights(tmp_path)
    weights["b"][2] = bad
    save_file(weights, file)
    with pytest.raises(NonFiniteError, match=r"b in .*model.safetensors has weights from"):
        watchdog.refuse_broken_weights(tmp_path)


def test_a_tensor_of_no_or_whole_numbers_is_fine(tmp_path):
    save_file({"none": torch.ones(0), "ids": torch.arange(3)}, tmp_path / "model.safetensors")
    watchdog.refuse_broken_weights(tmp_path)


def test_it_reaches_the_caller_of_a_cluster():
    stop = pickle.loads(pickle.dumps(WatchdogStop("stopped")))
    assert str(stop) == "stopped" and isinstance(stop, WatchdogStop)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_command_ends_with_a_line_and_code_3(tmp_path, monkeypatch, capsys, wrapped):
    config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(tmp_path / "run")))
    (tmp_path / "run").mkdir()
    runs.record(tmp_path / "run", [], finished=False)
    monkeypatch.setattr(
        launch, "prepare", lambda overrides: (config, runs.hold(tmp_path / "run"), False)
    )

    def train(_):
        stop = WatchdogStop("a long traceback" if wrapped else "stopped by the watchdog")
        if wrapped:  # as Ray does
            stop.cause = WatchdogStop("stopped by the watchdog")
        raise stop

    monkeypatch.setattr(launch, "train", train)
    assert launch.main([]) == 3
    assert capsys.readouterr().err == "opdvr: stopped by the watchdog\n"
    assert runs.is_unfinished(tmp_path / "run")


def test_going_on_without_the_watchdog_is_the_same_run():
    assert runs.fingerprint(["a=1", "opdvr.watchdog=stop"]) == runs.fingerprint(["a=1"])
    assert runs.fingerprint(["a=1", "opdvr.watchdog=stop"]) != runs.fingerprint(["a=2"])
