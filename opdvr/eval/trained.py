"""How the run that a checkpoint is from validated: its figures, and what it did otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from opdvr.eval.verdicts import Rules
from opdvr.integration.checkpoints import STEP_FOLDER
from opdvr.report.metrics import validation_accuracies
from opdvr.report.run_folder import METRICS_NAME, read_metrics

_CONFIG = "config.yaml"
_SUPERVISED = "sft"  # the option group of runs that learn from answers alone
_PACKAGE_SCHEME = "pkg://"


def trainer_validation(name: str) -> dict[str, float]:
    """What the trainer's own validation found at a checkpoint's step, by "<source> acc/mean@n".

    Args:
        name: of a resolved model; empty for other models than our checkpoints, and for steps that
            were not validated.
    """
    found = _run_and_step(name)
    if found is None or not (found[0] / METRICS_NAME).is_file():
        return {}
    run, step = found
    return {
        str(key): accuracy
        for record in read_metrics(run)
        if record.get("step") == step
        for key, accuracy in validation_accuracies(record).items()
    }


def trainer_settings(name: str, say: Callable[[str], None]) -> dict[str, Any] | None:
    """How the run of a checkpoint validates, from its config.yaml.

    Returns:
        n, temperature, top-p, max-tokens and thinking, by the names of our options, verifier and
        answer_forms; None for other models than our checkpoints. A config that cannot be read, or
        that lacks one of them, is said in a line, and is None too: the evaluation needs none.
    """
    found = _run_and_step(name)
    if found is None or not (found[0] / _CONFIG).is_file():
        return None
    path = found[0] / _CONFIG
    import yaml

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        if _SUPERVISED in config:
            return None  # it did not sample
        return _settings_in(config)
    except (yaml.YAMLError, UnicodeDecodeError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        say(f"{path} does not say how its run validated ({reason})")
        return None


def _run_and_step(name: str) -> tuple[Path, int] | None:
    checkpoint = Path(name).expanduser().resolve()
    match = STEP_FOLDER.fullmatch(checkpoint.name)
    return None if match is None else (checkpoint.parent, int(match[1]))


def _settings_in(config: dict[str, Any]) -> dict[str, Any]:
    sampling = config["actor_rollout_ref"]["rollout"]["val_kwargs"]
    reward = config["custom_reward_function"]
    longest = config["opdvr"]["max_val_response_length"]
    return {
        "n": sampling["n"],
        "temperature": sampling["temperature"],
        "top-p": sampling["top_p"],
        "max-tokens": longest or config["data"]["max_response_length"],
        "thinking": config["data"]["apply_chat_template_kwargs"]["enable_thinking"],
        "verifier": f"{reward['path'].removeprefix(_PACKAGE_SCHEME)}:{reward['name']}",
        "answer_forms": config["opdvr"]["answer_forms"],
    }


def other_verifier(trainers: dict[str, Any] | None, rules: Rules) -> Rules | None:
    """What scored in training, where that is not what scores here."""
    if trainers is None:
        return None
    theirs = Rules(trainers["verifier"], trainers["answer_forms"])
    same = (_located(theirs.verifier), theirs.answer_forms) == (
        _located(rules.verifier),
        rules.answer_forms,
    )
    return None if same else theirs


def _located(verifier: str) -> str:
    """A verifier's name, a file in it by its whole path."""
    source, _, function = verifier.rpartition(":")
    if source.endswith(".py"):
        source = str(Path(source).expanduser().resolve())
    return f"{source}:{function}"


def verifier_line(trainers: dict[str, Any] | None, rules: Rules) -> str | None:
    """One line where a run with a verifier of its own is scored with another; else None."""
    theirs = other_verifier(trainers, rules)
    if theirs is None or theirs == Rules():
        return None
    option = f"--verifier {theirs.verifier}"
    if theirs.is_own:
        option = f"--answer-forms {theirs.answer_forms}"
    return f"the run was scored by {theirs}; here {rules} scores (as there: {option})"


def validation_line(run: dict[str, Any], rules: Rules) -> str:
    """The trainer's figures for a checkpoint, and what it did otherwise; "" where there are none.

    Args:
        run: the content of run.json.
        rules: what scores here.
    """
    figures = ", ".join(f"{key} {value:.3f}" for key, value in run["trainer_validation"].items())
    # Evaluations of earlier versions have not written it down.
    trainers = run.get("trainer_settings")
    if not figures or trainers is None:
        return figures
    settings = run["settings"]
    others = [
        f"{name} {_plain(trainers[name])}"
        for name in ("n", "temperature", "top-p", "max-tokens", "thinking")
        if trainers[name] != settings[name]
    ]
    otherwise = [f"sampled otherwise: {', '.join(others)}"] if others else []
    theirs = other_verifier(trainers, rules)
    otherwise += [f"scored by {theirs}"] if theirs is not None else []
    return f"{figures} ({'; '.join(otherwise)})" if otherwise else figures


def _plain(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
