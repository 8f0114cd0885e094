"""`opdvr check`: the overrides of a launcher, findings in lines, exit codes, nothing started."""

import json
import os
import subprocess
import sys

import pytest
from launching import LAUNCHERS, ROOT
from omegaconf import OmegaConf

pytest.importorskip("verl")

from opdvr.integration.preflight import command  # noqa: E402
from opdvr.integration.preflight.checks import Report  # noqa: E402
from opdvr.integration.preflight.finding import error, note, warning  # noqa: E402

BAD, DOUBTFUL, MEASURED = error("A (a)", "bad"), warning("B (b)", "odd"), note("C (c)", "seen")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """A machine without a GPU, on which no variable of ours is set."""
    for name in ("ACTOR_MODEL_PATH", "OPDVR_TASK", "DRY_RUN", "CHECK", "PREFLIGHT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPDVR_DEVICE", "cpu")


@pytest.fixture
def looked(monkeypatch):
    """looked(finding, ...): what the checks find; returns the configurations they were given."""
    given = []

    def fake(*findings):
        def look(config, hear):
            given.append(config)
            for found in findings:
                hear(found)
            return Report(list(findings), {"files": 0.1})

        monkeypatch.setattr(command, "look", look)
        return given

    return fake


@pytest.mark.parametrize(
    ("findings", "mode", "code"),
    [
        ([], "stop", 0),
        ([DOUBTFUL, MEASURED], "stop", 0),
        ([BAD], "stop", 1),
        ([BAD], "warn", 1),
        ([BAD], "off", 1),
        ([DOUBTFUL], "strict", 1),
        ([MEASURED], "strict", 0),
    ],
)
def test_exit_codes(looked, findings, mode, code):
    looked(*findings)
    assert command.main([f"opdvr.preflight={mode}"]) == code


def test_findings_come_with_their_level(looked, capsys, tmp_path):
    looked(BAD, DOUBTFUL, MEASURED)
    assert command.main(["--json", str(tmp_path / "found.json")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "error: A (a): bad",
        "warning: B (b): odd",
        "note: C (c): seen",
        "opdvr check: 1 error, 1 warning, 1 note in 0.1 s (files 0.1)",
    ]
    first, *_ = json.loads((tmp_path / "found.json").read_text())
    assert first == {"level": "error", "where": "A (a)", "what": "bad", "why": "", "remedy": ""}


@pytest.mark.parametrize("method", command.METHODS)
def test_the_launchers_methods(looked, monkeypatch, method):
    given = looked()
    # Awkward text arrives as it is: the printed command is read by a shell.
    monkeypatch.setenv("PROJECT_NAME", "it's\tüber $x")
    monkeypatch.setenv("VAL_N", "3")
    assert command.main(["--method", method, "data.max_response_length=40"]) == 0
    (config,) = given
    assert config.trainer.project_name == "it's\tüber $x"
    assert config.actor_rollout_ref.rollout.val_kwargs.n == 3
    assert config.data.max_response_length == 40 and config.opdvr.demo
    expected = {
        "opdvr": (True, "default", False),
        "grpd": (True, "default", True),
        "opd_baseline": (False, "default", False),
        "ablation_inverse_gated": (True, "inverse", False),
        "grpo": (False, "default", False),
    }[method]
    options = config.opdvr
    chosen = (options.correctness_gated, options.correctness_gated_mode, options.grpo_scaled)
    assert chosen == expected
    assert config.reward_model.enable is (method != "grpo")


def test_every_launcher_can_be_named():
    assert {f"{method}.sh" for method in command.METHODS} == set(LAUNCHERS)


def test_the_overrides_of_a_launcher_are_taken_as_they_are(looked, monkeypatch):
    given = looked()
    monkeypatch.setenv("VAL_N", "3")
    assert command.main(["--composed", "platform=cpu", "task=demo"]) == 0
    assert given[0].actor_rollout_ref.rollout.val_kwargs.n == 4


@pytest.mark.parametrize(
    ("variables", "arguments", "said"),
    [
        ({"VAL_N": "many"}, [], "VAL_N='many' is not a whole number"),
        ({"PREFLIGHT": "maybe"}, [], "PREFLIGHT='maybe' is unknown"),
        ({}, ["no.such=1"], "no"),
        ({}, ["opdvr.preflight=maybe"], "PREFLIGHT (opdvr.preflight) is 'maybe'"),
        ({}, ["actor_rollout_ref.actor.ppo_mini_batch_size=abc"], "abc"),
        ({}, ["--method", "sft"], "invalid choice: 'sft'"),
        ({}, ["--json", "/"], "--json / is a folder"),
    ],
)
def test_a_mistake_is_one_line(looked, monkeypatch, capsys, variables, arguments, said):
    given = looked()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert command.main(arguments) == 1 and not given
    told = [x for x in capsys.readouterr().err.splitlines() if x.startswith("opdvr check: ")]
    assert len(told) == 1 and said in told[0]


def run(*command_line, **variables):
    environment = os.environ | {"PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command_line, env=environment, capture_output=True, text=True, cwd=ROOT)


def test_nothing_heavy_is_started_for_a_mistake(tmp_path):
    code = (
        "import sys; from opdvr.integration.preflight.command import main; "
        "code = main(sys.argv[1:]); "
        "print([name for name in ('ray', 'torch', 'vllm', 'verl') if name in sys.modules]); "
        "sys.exit(code)"
    )
    folder = tmp_path / "run"
    arguments = ["actor_rollout_ref.model.path=/no/such", f"trainer.default_local_dir={folder}"]
    done = run(sys.executable, "-c", code, "--composed", "platform=cpu", "task=demo", *arguments)
    assert done.returncode == 1, done.stderr
    *findings, last, heavy = done.stdout.splitlines()
    assert "error: ACTOR_MODEL_PATH" in findings[0] and last.startswith("opdvr check: 1 error, ")
    assert heavy == "[]" and not folder.exists()


def test_a_launcher_checks_instead_of_training(launch, launcher):
    trains = launch(launcher, "a=b c", VAL_N="3").words
    checks = launch(launcher, "a=b c", VAL_N="3", CHECK="1").words
    place = trains.index("train")
    assert checks == [*trains[:place], "check", "--composed", *trains[place + 1 :]]
    assert launch(launcher, VAL_N="3", CHECK="0").words == launch(launcher, VAL_N="3").words
    assert launch(launcher, CHECK="maybe").code == 2


def test_supervised_training_has_no_such_check(launch):
    refused = launch("sft.sh", CHECK="1")
    assert refused.code == 2 and "CHECK" in refused.stderr


def test_help_names_the_options(capsys):
    with pytest.raises(SystemExit) as left:
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert all(word in shown for word in ("--method", "--json", "OVERRIDE"))


def test_the_files_of_the_embedded_task_are_made_as_training_makes_them(monkeypatch, tmp_path):
    from opdvr.integration import demo_data

    monkeypatch.setattr(demo_data, "DATASETS", tmp_path)
    config = OmegaConf.create(
        {
            "opdvr": {"demo": True},
            "data": {"train_files": f"{tmp_path}/demo-train.parquet", "val_files": "/other"},
        }
    )
    monkeypatch.setattr(command, "look", lambda config, hear: Report())
    command.check(config)
    assert (tmp_path / "demo-train.parquet").is_file()
