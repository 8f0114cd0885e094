"""The stages in order: what each runs, in which environment, and what shows that it is done."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opdvr.eval.scoring import RESULTS_JSON
from opdvr.integration.checkpoints import complete_steps
from opdvr.integration.config import SUPERVISED_MODEL
from opdvr.integration.runs import RECORD
from opdvr.pipeline.options import KNOBS, REPO_ROOT, SFT_KNOBS, Options
from opdvr.pipeline.summary import EVALUATION
from opdvr.sft.exports import TRAIN_FILE, VAL_FILE
from opdvr.sft.exports_llamafactory import YAML

ROLLOUTS, SFT = "rollouts", "sft"
_LAST_EXPORT = Path("llamafactory") / YAML
# Of the embedded task's distillation, where the caller says nothing.
_DEMO_DISTILLATION = {"TOTAL_STEPS": "60", "TEST_FREQ": "20"}


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes:
        name: of the stage and of its folder.
        what: a few words for the terminal.
        command: as in subprocess.
        variables: added to the environment (not secrets: they are written down).
        done: whether its output is there.
        environment: the variables that it inherits.
        model: for an evaluation, the stage of the summary that it measures.
        inputs: names of the stages whose output it reads.
        check: variables for a dry run of a launcher, with inputs that are there already.
    """

    name: str
    what: str
    command: tuple[str, ...]
    done: Callable[[], bool]
    environment: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    inputs: tuple[str, ...] = ()
    check: Mapping[str, str] | None = None


def plan(options: Options) -> list[Stage]:
    """All stages; an evaluation follows each model."""
    evaluate = _Evaluations(options)
    folder = options.folder
    stages = [evaluate("raw", options.student)]
    if options.compare:
        stages.append(evaluate("teacher", options.teacher))
        stages += [_distil(options, "opd", "opd_baseline.sh", options.student)]
        stages.append(evaluate("opd", str(folder / "opd")))
    stages += [_rollouts(options), _cold_start(options)]
    start = str(folder / SFT / SUPERVISED_MODEL)
    stages.append(evaluate("sft", start))
    if options.compare:
        stages += [_distil(options, "sft+opd", "opd_baseline.sh", start)]
        stages.append(evaluate("sft+opd", str(folder / "sft+opd")))
    stages += [_distil(options, "sft+opdvr", "opdvr.sh", start)]
    stages.append(evaluate("sft+opdvr", str(folder / "sft+opdvr")))
    return stages


class _Evaluations:
    def __init__(self, options: Options):
        self._options = options

    def __call__(self, name: str, model: str) -> Stage:
        options = self._options
        output = options.folder / "evaluations" / name
        command = [sys.executable, "-m", "opdvr", "eval", "--model", model]
        command += ["--data", options.test, "--output", str(output)]
        return Stage(
            name=f"{EVALUATION}{name}",
            what=f"evaluating {name}",
            command=(*command, *options.evaluation),
            done=(output / RESULTS_JSON).is_file,
            environment=options.for_distillation(),
            model=name,
            inputs=() if name in ("raw", "teacher") else (name,),
        )


def _rollouts(options: Options) -> Stage:
    output = options.folder / ROLLOUTS
    command = [sys.executable, "-m", "opdvr", "sft", "rollout", "--model", options.teacher]
    command += ["--data", options.train, "--output", str(output), "--seed", str(options.seed)]
    return Stage(
        name=ROLLOUTS,
        what="the teacher's rollouts",
        command=(*command, *options.rollout),
        # The exports are written in this order.
        done=lambda: (output / TRAIN_FILE).is_file() and (output / _LAST_EXPORT).is_file(),
        environment=options.for_distillation(),
    )


def _cold_start(options: Options) -> Stage:
    rollouts, output = options.folder / ROLLOUTS, options.folder / SFT
    own = {
        "ACTOR_MODEL_PATH": options.student,
        "TRAIN_DATASET": str(rollouts / TRAIN_FILE),
        "TEST_DATASET": str(rollouts / VAL_FILE) if options.has_held_out_rollouts else "",
        "EXPERIMENT_NAME": f"{options.name}-sft",
        "FINAL_CKPT_DIR": str(output),
        "SEED": str(options.seed),
    }
    return Stage(
        name=SFT,
        what="the cold start",
        command=("bash", str(REPO_ROOT / "sft.sh")),
        done=lambda: _is_finished(output) and (output / SUPERVISED_MODEL / "config.json").is_file(),
        environment=options.for_cold_start(),
        variables=_variables(options, SFT_KNOBS, options.for_cold_start(), own, {}),
        inputs=(ROLLOUTS,),
        check={"TRAIN_DATASET": options.train, "TEST_DATASET": options.test},
    )


def _distil(options: Options, name: str, launcher: str, model: str) -> Stage:
    output = options.folder / name
    own = {
        "ACTOR_MODEL_PATH": model,
        "REWARD_MODEL_PATH": options.teacher,
        "TRAIN_DATASET": options.train,
        "TEST_DATASET": options.test,
        "EXPERIMENT_NAME": f"{options.name}-{name}",
        "FINAL_CKPT_DIR": str(output),
    }
    is_cold = model != options.student
    method = "plain OPD" if launcher == "opd_baseline.sh" else "OPDVR"
    return Stage(
        name=name,
        what=f"{method} from {'the cold start' if is_cold else 'the raw student'}",
        command=(
            *("bash", str(REPO_ROOT / launcher)),
            *("data.shuffle=True", f"data.seed={options.seed}"),
        ),
        done=lambda: _is_finished(output) and bool(complete_steps(output)),
        environment=options.for_distillation(),
        variables=_variables(options, KNOBS, options.for_distillation(), own, _DEMO_DISTILLATION),
        inputs=(SFT,) if is_cold else (),
        check={"ACTOR_MODEL_PATH": options.student},
    )


def _variables(
    options: Options,
    table: str,
    environment: Mapping[str, str],
    own: dict[str, str],
    demo: Mapping[str, str],
) -> dict[str, str]:
    """What the caller has set of the launcher's settings, and what the pipeline sets."""
    chosen = options.knobs(table, environment)
    if options.demo:
        chosen = {**demo, **chosen, "OPDVR_TASK": "demo"}
    return chosen | own


def _is_finished(folder: Path) -> bool:
    record = folder / RECORD
    return record.is_file() and json.loads(record.read_text()).get("finished") is True
