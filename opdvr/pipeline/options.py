"""What the pipeline is told by environment variables, as the launchers are."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opdvr.eval.options import read_sample_options
from opdvr.sft.rollout_options import read_rollout_options

REPO_ROOT = Path(__file__).parents[2]
DEMO_MODELS = REPO_ROOT / "opdvr" / "demo" / "models"
DEMO_DATA = REPO_ROOT / "datasets"
SFT_PREFIX = "SFT_"
# The tables of the launchers' settings.
KNOBS, SFT_KNOBS = "KNOBS", "SFT_KNOBS"
# What these commands cannot do without, for reading the rest of their arguments.
_ANY = ("--model", "any", "--data", "any", "--output", "any")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
# The embedded task: what each stage does where the caller does not say otherwise.
_DEMO_ROLLOUTS = "--limit 2048 --n 1 --temperature 1 --max-tokens 36"
_DEMO_EVALUATION = "--n 4 --temperature 1 --top-p 1 --max-tokens 36"


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        folder: everything is written below it.
        name: of the experiment.
        student, teacher: model folders or hub names.
        train, test: prompts with gold answers, for rollouts and distillation, and for evaluation.
        compare: also distil without the gate, from the raw student and from the cold start, and
            evaluate the teacher.
        seed: of rollouts, cold start and the order of prompts.
        rollout, evaluation: further arguments of `opdvr sft rollout` and `opdvr eval`.
        environment: the caller's variables, for the launchers.
        demo: this is the embedded task.
    """

    folder: Path
    name: str
    student: str
    teacher: str
    train: str
    test: str
    compare: bool
    seed: int
    rollout: tuple[str, ...]
    evaluation: tuple[str, ...]
    environment: Mapping[str, str]
    demo: bool

    def __post_init__(self) -> None:
        """Refuse arguments and names of later stages now."""
        known = knob_names(SFT_KNOBS)
        for name in self.environment:
            if name.startswith(SFT_PREFIX) and name.removeprefix(SFT_PREFIX) not in known:
                raise ValueError(
                    f"{name} is no setting of the cold start; they are "
                    f"{', '.join(SFT_PREFIX + knob for knob in known)}"
                )
        for variable, arguments, read in (
            ("ROLLOUT_ARGS", self.rollout, read_rollout_options),
            ("EVAL_ARGS", self.evaluation, read_sample_options),
        ):
            try:
                read([*_ANY, *arguments])
            except ValueError as mistake:
                raise ValueError(f"{variable}: {mistake}") from None

    @property
    def has_held_out_rollouts(self) -> bool:
        """Whether the rollouts leave rows for the cold start's validation."""
        return read_rollout_options([*_ANY, *self.rollout]).val_fraction > 0

    def for_distillation(self) -> dict[str, str]:
        """The environment of distillation, without what is the cold start's."""
        others = set(knob_names(SFT_KNOBS)) - set(knob_names(KNOBS))
        return {
            name: value
            for name, value in self.environment.items()
            if not name.startswith(SFT_PREFIX) and name not in others
        }

    def knobs(self, table: str, environment: Mapping[str, str]) -> dict[str, str]:
        """The launchers' settings that the caller has set, of a table in scripts/knobs.sh."""
        return {name: environment[name] for name in knob_names(table) if environment.get(name)}

    def for_cold_start(self) -> dict[str, str]:
        """The same for sft.sh: SFT_ACTOR_LR becomes ACTOR_LR, and distillation's own is left out.

        What names places, devices and the model's dtype holds for both.
        """
        others = set(knob_names(KNOBS)) - _SHARED
        shared = {
            name: value
            for name, value in self.environment.items()
            if not name.startswith(SFT_PREFIX) and name not in others
        }
        own = {
            name.removeprefix(SFT_PREFIX): value
            for name, value in self.environment.items()
            if name.startswith(SFT_PREFIX)
        }
        return shared | own


def knob_names(table: str) -> list[str]:
    """The variables of a table in scripts/knobs.sh."""
    text = (REPO_ROOT / "scripts" / "knobs.sh").read_text(encoding="utf-8")
    lines = text.split(f"\n{table}='\n", 1)[1].split("\n'", 1)[0].splitlines()
    return [line.split()[0] for line in lines]


# The launchers' settings that hold for both trainings.
_SHARED = {"LORA_RANK", "LORA_ALPHA", "MODEL_DTYPE", "PARALLEL_SIZE", "NGPUS_PER_NODE"}
_SHARED |= {"PROJECT_NAME"}


def read_options(environment: Mapping[str, str] = os.environ) -> Options:
    """The options.

    Raises:
        ValueError: a variable is missing or out of range: one line that names it.
    """
    value = {name: text for name, text in environment.items() if text}
    demo = _is_demo(value)
    student = value.get("ACTOR_MODEL_PATH") or str(DEMO_MODELS / "student-other-pretraining")
    name = value.get("EXPERIMENT_NAME") or f"pipeline_{Path(student).name}"
    folder = value.get("FINAL_CKPT_DIR") or str(REPO_ROOT / "checkpoints" / name)
    given = {
        "teacher": value.get("REWARD_MODEL_PATH"),
        "train": value.get("TRAIN_DATASET"),
        "test": value.get("TEST_DATASET"),
    }
    if demo:
        kind = value.get("DEMO_TEACHER", "good")
        defaults = {
            "teacher": str(DEMO_MODELS / f"teacher-{kind}"),
            "train": str(DEMO_DATA / "demo-train.parquet"),
            "test": str(DEMO_DATA / "demo-test.parquet"),
        }
        given = {name: text or defaults[name] for name, text in given.items()}
    for variable, text in (
        ("REWARD_MODEL_PATH", given["teacher"]),
        ("TRAIN_DATASET", given["train"]),
        ("TEST_DATASET", given["test"]),
    ):
        if not text:
            raise ValueError(f"{variable} is not set: the pipeline needs it, as opdvr.sh does")
    return Options(
        folder=Path(folder).expanduser().absolute(),
        name=name,
        student=student,
        compare=_bool(value, "PIPELINE_COMPARE", default=demo),
        seed=_int(value, "SEED", default=0),
        rollout=_words(value, "ROLLOUT_ARGS", _DEMO_ROLLOUTS if demo else ""),
        evaluation=_words(value, "EVAL_ARGS", _DEMO_EVALUATION if demo else ""),
        environment=dict(environment),
        demo=demo,
        **given,
    )


def _is_demo(value: Mapping[str, str]) -> bool:
    named = value.get("OPDVR_TASK")
    if named not in (None, "demo", "none"):
        raise ValueError(f"OPDVR_TASK={named!r} is unknown: use demo or none")
    if named:
        return named == "demo"
    return "ACTOR_MODEL_PATH" not in value and value.get("OPDVR_DEVICE") == "cpu"


def _words(value: Mapping[str, str], name: str, default: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value.get(name, default)))
    except ValueError as reason:
        raise ValueError(f"{name} is no list of arguments ({reason})") from None


def _bool(value: Mapping[str, str], name: str, default: bool) -> bool:
    text = value.get(name)
    if text is None:
        return default
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(f"{name}={text!r} is not a yes or no: use True or False")
    return text.lower() in _TRUE


def _int(value: Mapping[str, str], name: str, default: int) -> int:
    text = value.get(name)
    if text is None:
        return default
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r} is not a whole number of 0 or more")
    return int(text)
