"""The pipeline's options, its plan, and what it skips, refuses and sums up."""

import json
import sys

import pytest

from opdvr.pipeline import command
from opdvr.pipeline.options import read_options
from opdvr.pipeline.stages import Stage, plan

DEMO = {"OPDVR_DEVICE": "cpu", "EXPERIMENT_NAME": "mine"}
OWN = {
    "OPDVR_DEVICE": "cuda",
    "ACTOR_MODEL_PATH": "/student",
    "REWARD_MODEL_PATH": "/teacher",
    "TRAIN_DATASET": "/train.parquet",
    "TEST_DATASET": "/test.parquet",
}


def test_the_embedded_task_compares_and_ones_own_does_not():
    names = [stage.name for stage in plan(read_options(DEMO))]
    assert names == [
        *("eval raw", "eval teacher", "opd", "eval opd", "rollouts", "sft", "eval sft"),
        *("sft+opd", "eval sft+opd", "sft+opdvr", "eval sft+opdvr"),
    ]
    assert [stage.name for stage in plan(read_options(OWN))] == [
        *("eval raw", "rollouts", "sft", "eval sft", "sft+opdvr", "eval sft+opdvr")
    ]


def test_each_stage_goes_on_with_the_one_before():
    options = read_options(OWN | {"FINAL_CKPT_DIR": "/runs/mine", "PIPELINE_COMPARE": "True"})
    stages = {stage.name: stage for stage in plan(options)}
    sft = stages["sft"].variables
    assert sft["ACTOR_MODEL_PATH"] == "/student"
    assert sft["TRAIN_DATASET"] == "/runs/mine/rollouts/sft.parquet"
    assert sft["TEST_DATASET"] == "/runs/mine/rollouts/sft-val.parquet"
    assert stages["opd"].variables["ACTOR_MODEL_PATH"] == "/student"
    for name in ("sft+opd", "sft+opdvr"):
        assert stages[name].variables["ACTOR_MODEL_PATH"] == "/runs/mine/sft/model"
        assert stages[name].variables["REWARD_MODEL_PATH"] == "/teacher"
    assert stages["sft+opdvr"].command[1].endswith("/opdvr.sh")
    assert stages["sft+opd"].command[1].endswith("/opd_baseline.sh")
    evaluation = stages["eval sft+opdvr"].command
    assert evaluation[evaluation.index("--model") + 1] == "/runs/mine/sft+opdvr"
    rollouts = stages["rollouts"].command
    assert rollouts[rollouts.index("--model") + 1] == "/teacher"
    assert rollouts[rollouts.index("--data") + 1] == "/train.parquet"


def test_the_cold_start_has_its_own_settings():
    given = {"ACTOR_LR": "1e-6", "SFT_ACTOR_LR": "1e-5", "SFT_BATCH_SIZE": "8"}
    given |= {"TOTAL_STEPS": "100", "LORA_RANK": "16", "NGPUS_PER_NODE": "4"}
    stages = {stage.name: stage for stage in plan(read_options(OWN | given))}
    sft, opdvr = (stages[name].environment for name in ("sft", "sft+opdvr"))
    assert (sft["ACTOR_LR"], sft["BATCH_SIZE"]) == ("1e-5", "8")
    assert "TOTAL_STEPS" not in sft and (opdvr["ACTOR_LR"], opdvr["TOTAL_STEPS"]) == ("1e-6", "100")
    assert "BATCH_SIZE" not in opdvr and not any(name.startswith("SFT_") for name in opdvr)
    for environment in (sft, opdvr):
        assert (environment["LORA_RANK"], environment["NGPUS_PER_NODE"]) == ("16", "4")


def test_the_seed_reaches_every_random_choice():
    stages = {stage.name: stage for stage in plan(read_options(DEMO | {"SEED": "7"}))}
    rollouts = stages["rollouts"].command
    assert rollouts[rollouts.index("--seed") + 1] == "7"
    assert stages["sft"].variables["SEED"] == "7"
    assert "data.seed=7" in stages["sft+opdvr"].command


def test_arguments_are_handed_on_and_rollouts_may_hold_nothing_out():
    given = {"ROLLOUT_ARGS": "--n 4 --val-fraction 0", "EVAL_ARGS": "--n 2 --limit 9"}
    stages = {stage.name: stage for stage in plan(read_options(OWN | given))}
    assert stages["rollouts"].command[-4:] == ("--n", "4", "--val-fraction", "0")
    assert stages["eval raw"].command[-4:] == ("--n", "2", "--limit", "9")
    assert stages["sft"].variables["TEST_DATASET"] == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"REWARD_MODEL_PATH": ""}, "REWARD_MODEL_PATH is not set"),
        ({"TRAIN_DATASET": ""}, "TRAIN_DATASET is not set"),
        ({"SEED": "-1"}, "SEED='-1'"),
        ({"PIPELINE_COMPARE": "maybe"}, "PIPELINE_COMPARE='maybe'"),
        ({"OPDVR_TASK": "test"}, "OPDVR_TASK='test'"),
        ({"ROLLOUT_ARGS": "--n 0"}, "ROLLOUT_ARGS: --n 0"),
        ({"ROLLOUT_ARGS": "--no 'x"}, "ROLLOUT_ARGS is no list of arguments"),
        ({"EVAL_ARGS": "--top-p 2"}, "EVAL_ARGS: --top-p 2"),
        ({"SFT_TYPO": "3"}, "SFT_TYPO is no setting of the cold start; they are SFT_ACTOR_MODEL"),
    ],
)
def test_mistakes_are_known_before_the_first_stage(given, message):
    with pytest.raises(ValueError) as caught:
        read_options(OWN | given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"SFT_ACTOR_LR": "abc"}, "the cold start: ACTOR_LR='abc' is not a number"),
        ({"N_RESPONSES": "0"}, "OPDVR from the cold start: N_RESPONSES=0 is too small"),
    ],
)
def test_launchers_see_their_settings_before_the_first_stage(given, message, tmp_path, monkeypatch):
    named = {name: str(tmp_path) for name in OWN if name.endswith(("PATH", "DATASET"))}
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OPDVR_DEVICE": "cpu"}
    stages = plan(read_options({**environment, **named, **given}))
    with pytest.raises(ValueError) as caught:
        command._check_launchers(stages)
    assert message in str(caught.value)


def test_every_setting_of_a_launcher_is_written_down():
    before = {stage.name: stage for stage in plan(read_options(OWN))}
    changed = {"TOTAL_STEPS": "40", "SFT_ACTOR_LR": "1e-6", "LORA_RANK": "8"}
    after = {stage.name: stage for stage in plan(read_options(OWN | changed))}
    for name, expected in (("sft", "ACTOR_LR=1e-6"), ("sft+opdvr", "TOTAL_STEPS=40")):
        assert expected in command._shown(after[name]) and "LORA_RANK=8" in command._shown(
            after[name]
        )
        assert expected not in command._shown(before[name])


def test_the_embedded_tasks_steps_can_be_chosen():
    stages = {stage.name: stage for stage in plan(read_options(DEMO | {"TOTAL_STEPS": "5"}))}
    variables = stages["sft+opdvr"].variables
    assert (variables["TOTAL_STEPS"], variables["TEST_FREQ"]) == ("5", "20")


def test_what_was_made_from_a_missing_output_is_not_kept(tmp_path):
    def stage(name, there, inputs=()):
        return Stage(name, name, (), lambda: there, {}, inputs=inputs)

    kept = [stage("sft", True), stage("sft+opdvr", False, ("sft",))]
    command._refuse_outdated(tmp_path, kept)
    mixed = [stage("sft", False), stage("sft+opdvr", True, ("sft",))]
    with pytest.raises(ValueError, match=r"'sft' is missing, but 'sft\+opdvr', made from it"):
        command._refuse_outdated(tmp_path, mixed)


# ---- running, with stages that write a file ---------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(**scripts): the pipeline over stages first, second, third; returns its exit code."""
    folder = tmp_path / "runs"

    def stage(name, script):
        output = folder / name
        write = f"import os, sys; open({str(output)!r}, 'a').write(os.environ['VALUE'])"
        return Stage(
            name=name,
            what=f"the {name} stage",
            command=(sys.executable, "-c", script or write),
            done=output.exists,
            environment={},
            variables={"VALUE": name},
        )

    def start(**scripts):
        names = ("first", "second", "third")
        stages = [stage(name, scripts.get(name)) for name in names]
        monkeypatch.setattr(command, "plan", lambda _options: stages)
        monkeypatch.setattr(command, "_sum_up", lambda *_arguments: print("summed up"))
        for name, value in (OWN | {"FINAL_CKPT_DIR": str(folder)}).items():
            monkeypatch.setenv(name, value)
        return command.main([])

    start.folder = folder
    return start


def test_what_is_there_is_skipped(run, capsys):
    assert run() == 0 and run() == 0
    assert (run.folder / "second").read_text() == "second"  # written once
    said = capsys.readouterr()
    assert said.err.count("there already") == 3 and said.out.count("summed up") == 2


def test_a_failed_stage_stops_it_and_is_tried_again(run, capsys):
    assert run(second="import sys; sys.exit(3)") == 1
    assert not (run.folder / "third").exists()
    assert "the second stage ended with exit code 3" in capsys.readouterr().err
    # The mended command is another one: what failed may be run otherwise.
    assert run() == 0 and (run.folder / "third").exists()


def test_a_stage_without_its_output_is_a_failure(run, capsys):
    assert run(second="pass") == 1
    assert "left no output" in capsys.readouterr().err


def test_a_finished_stage_is_not_mixed_with_other_settings(run, capsys):
    assert run() == 0
    assert run(second="pass") == 2
    line = capsys.readouterr().err
    assert "stage 'second' was run with" in line and "choose another EXPERIMENT_NAME" in line


def test_minutes_and_commands_are_kept(run):
    assert run() == 0
    record = json.loads((run.folder / "pipeline.json").read_text())
    assert set(record) == {"first", "second", "third"}
    assert record["first"]["command"].startswith("VALUE=first ")
    assert 0 < record["first"]["minutes"] < 1


def test_two_at_once_are_refused(run, capsys):
    run.folder.mkdir()
    with command.lock_folder(run.folder, command.LOCK, "", ""):
        assert run() == 2
    assert "another pipeline is running" in capsys.readouterr().err


def test_summary(tmp_path):
    from opdvr.pipeline.summary import PICTURE, table, write_summary

    stage = {
        "interval_95": [0.25, 0.5],
        "tokens": 30.0,
        "truncated": 0.0,
        "by_source": {"a": 0.375},
    }
    accuracies = {"raw": {"accuracy": 0.375, **stage}, "sft": {"accuracy": 0.75, **stage}}
    minutes = {"eval raw": 0.5, "sft": 1.0, "eval sft": 0.25}
    path = write_summary(tmp_path, accuracies, minutes, {"seed": 3})
    content = json.loads(path.read_text())
    assert content["accuracy"] == {"raw": 0.375, "sft": 0.75}
    assert content["minutes_in_all"] == 1.75 and content["seed"] == 3
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")
    lines = table(accuracies, minutes).splitlines()
    assert "0.375  0.250 to 0.500" in lines[1] and lines[1].endswith(" 0.5")
    assert lines[2].endswith(" 1.2") and lines[-1] == "all stages: 1m45s"


def test_usage_and_unknown_arguments(capsys):
    assert command.main(["--help"]) == 0 and command.main(["x"]) == 2
    said = capsys.readouterr()
    assert "bash pipeline.sh" in said.out and "bash pipeline.sh" in said.err
