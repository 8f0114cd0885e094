"""Logging without a key, a network or wandb: the run goes on, and metrics.jsonl is written."""

import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from types import SimpleNamespace
from unittest import mock

import pytest
from omegaconf import OmegaConf

pytest.importorskip("verl")

from opdvr.integration import tracking  # noqa: E402

KEY = "0123456789" * 4


@pytest.fixture
def home(tmp_path):
    """A person without any set-up of wandb; what a run puts into the environment is undone."""
    with mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("WANDB_")] + ["NETRC"]:
            os.environ.pop(name, None)
        os.environ["HOME"] = str(tmp_path / "home")
        (tmp_path / "home").mkdir()
        yield tmp_path / "home"


@pytest.fixture
def wandb(monkeypatch):
    """A wandb whose server cannot be reached: only offline does `init` succeed."""
    module = types.ModuleType("wandb")
    module.__spec__ = importlib.machinery.ModuleSpec("wandb", loader=None)
    module.errors = SimpleNamespace(CommError=type("CommError", (Exception,), {}))
    module.modes, module.logged = [], []

    def init(**_):
        module.modes.append(os.environ.get("WANDB_MODE", "online"))
        if module.modes[-1] != "offline":
            raise module.errors.CommError("Timed out")

    module.init = init
    module.log = lambda data, step: module.logged.append((step, data))
    module.finish = lambda exit_code=0: None
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def make_logger(tmp_path, backends):
    trainer = SimpleNamespace(
        run_folder=tmp_path / "run",
        corrections={},
        pending_records=[],
        resumed_from=None,
        config=OmegaConf.create({"trainer": {"logger": backends}, "opdvr": {"watchdog": "warn"}}),
        total_training_steps=2,
    )
    return tracking.StepLogger(trainer, "project", "experiment", backends, {"trainer": {}})


def logged_steps(tmp_path):
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    return {record["step"]: record["cg/correct_frac"] for record in map(json.loads, lines)}


def test_without_a_key_the_run_is_recorded_offline(home, wandb, tmp_path, capsys):
    logger = make_logger(tmp_path, ["console", "wandb"])
    said = capsys.readouterr().out
    assert said.count("wandb:") == 1 and "no WANDB_API_KEY" in said and "wandb sync" in said
    assert wandb.modes == ["offline"]
    assert os.environ["WANDB_DIR"] == str(tmp_path / "run")
    logger.log({"cg/correct_frac": 0.5}, step=1)
    assert wandb.logged[0][0] == 1
    assert logged_steps(tmp_path) == {1: 0.5}


def test_without_wandb_the_run_is_logged_here(home, monkeypatch, tmp_path, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "wandb" else find(name, *rest),
    )
    logger = make_logger(tmp_path, ["console", "wandb"])
    assert capsys.readouterr().out.count("wandb is not installed") == 1
    logger.log({"cg/correct_frac": 0.25}, step=1)
    logger.log({"cg/correct_frac": 0.5, "val-core/AIME24/acc/mean@2": 0.125}, step=2)
    assert logged_steps(tmp_path) == {1: 0.25, 2: 0.5}
    assert "AIME24 acc/mean@2 0.125 (step 2)" in capsys.readouterr().out


@pytest.mark.parametrize("backends", [[], "console", ["console"]])
def test_metrics_are_written_whatever_the_loggers(home, tmp_path, backends):
    make_logger(tmp_path, backends).log({"cg/correct_frac": 0.5}, step=1)
    assert logged_steps(tmp_path) == {1: 0.5}


def test_a_logger_that_breaks_takes_no_metrics_with_it(home, wandb, tmp_path):
    logger = make_logger(tmp_path, ["wandb"])
    wandb.log = mock.Mock(side_effect=ConnectionError("gone"))
    with pytest.raises(ConnectionError, match="gone"):
        logger.log({"cg/correct_frac": 0.5}, step=1)
    assert logged_steps(tmp_path) == {1: 0.5}


def goes_online(tmp_path, backends=("wandb",)):
    assert tracking._usable_wandb(list(backends), tmp_path / "run") == list(backends)
    return "WANDB_MODE" not in os.environ


@pytest.mark.parametrize("mode", ["online", "disabled"])
def test_a_mode_set_by_hand_is_kept(home, wandb, tmp_path, mode):
    os.environ["WANDB_MODE"] = mode
    goes_online(tmp_path)
    assert os.environ["WANDB_MODE"] == mode


def test_a_key_is_used(home, wandb, tmp_path, capsys):
    os.environ["WANDB_API_KEY"] = KEY
    assert goes_online(tmp_path) and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "host",
    [
        "api.wandb.ai",
        "api.forge.coreweave.com",
        "wandb.our-lab.example:8080",
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_saved_login_is_used(home, wandb, tmp_path, host, elsewhere):
    file = tmp_path / "netrc" if elsewhere else home / ".netrc"
    file.write_text(f"machine {host}\n  login user\n  password {KEY}\n")
    if elsewhere:
        os.environ["NETRC"] = str(file)
    if "our-lab" in host:
        os.environ["WANDB_BASE_URL"] = f"https://{host}"
    assert goes_online(tmp_path)


def test_a_login_for_another_service_is_none(home, wandb, tmp_path):
    (home / ".netrc").write_text(f"machine example.org\n  login user\n  password {KEY}\n")
    assert not goes_online(tmp_path)


def test_with_a_key_and_no_network_the_run_is_recorded_offline(home, wandb, tmp_path, capsys):
    os.environ["WANDB_API_KEY"] = KEY
    logger = make_logger(tmp_path, ["wandb"])
    assert wandb.modes == ["online", "offline"]
    assert capsys.readouterr().out.count("offline") == 1
    logger.log({"cg/correct_frac": 0.5}, step=1)
    assert logged_steps(tmp_path) == {1: 0.5}
