"""Two training runs: is the difference more than chance, and what was set otherwise?

Benchmarks are paired problem by problem (validation.jsonl), training metrics step by step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from opdvr.eval import paired, statistics
from opdvr.report import metrics as names
from opdvr.report.metrics import number_of
from opdvr.report.run_folder import METRICS_NAME, read_metrics
from opdvr.report.step_records import VALIDATION_KEYS, VALIDATION_NAME, require_keys
from opdvr.report.validations import accuracies

LAST, BEST = "last", "best"
# Shown name, and the metrics of which the first that both runs logged counts.
TRAINING = (
    ("batch accuracy", (names.CORRECT_FRAC, names.SCORE_MEAN)),
    ("log-ratio (nats)", (names.LOG_RATIO_MEAN,)),
    ("entropy (nats)", (names.ACTOR_ENTROPY,)),
    ("length (tokens)", (names.RESPONSE_LENGTH,)),
    ("seconds a step", (names.STEP_SECONDS,)),
)
# Fewer pairs than this make no interval: a bootstrap of a handful is too narrow.
LEAST_STEPS = 10
# What every run has of its own, and what a resume sets.
_OWN_SETTINGS = (
    "trainer.experiment_name",
    "trainer.default_local_dir",
    "trainer.resume_mode",
    "trainer.resume_from_path",
    "ray_kwargs.",
)
_ABSENT = "(not there)"
# A folder of an evaluation has one of these instead of metrics.jsonl.
_OF_AN_EVALUATION = ("results.json", "samples.jsonl")


@dataclass(frozen=True)
class _Run:
    folder: Path
    steps: dict[int, dict[str, Any]]  # training steps of metrics.jsonl
    validations: dict[int, dict[str, Any]]  # of validation.jsonl, the last of each step
    settings: dict[str, Any] | None


def compare_runs(one: Path, other: Path, at: str = LAST) -> dict[str, Any]:
    """What run B (`other`) has over run A (`one`).

    Args:
        one, other: run folders.
        at: "last" (the last step that both validated), "best" (each run's own best step, by the
            mean over the benchmarks that both have) or a step that both validated.

    Returns:
        runs (two folders); steps (validated steps compared, None without); n (responses a problem);
        rows (as `opdvr.eval.paired.rows`; {} without); unpaired (problems of only one run); notes
        (why there are no rows, and more of the kind); training (by name: steps, before, after,
        difference, difference_95 or None); differing (settings, {option: [A, B]}; None where a
        config.yaml is missing).

    Raises:
        ValueError: a folder is no run, a file is damaged, or `at` is no step that both validated.
    """
    runs = (_read(one), _read(other))
    notes: list[str] = []
    steps = _chosen(runs, at, notes)
    found: dict[str, Any] = {
        "runs": [str(run.folder) for run in runs],
        "at": at,
        "steps": None if steps is None else list(steps),
        "n": None,
        "rows": {},
        "unpaired": [0, 0],
    }
    if steps is not None:
        records = [run.validations[step] for run, step in zip(runs, steps, strict=True)]
        found["n"] = [record["n"] for record in records]
        found["rows"], found["unpaired"] = _benchmarks(records, notes)
    found["training"] = _training(runs)
    found["differing"] = _differing(runs)
    found["notes"] = notes
    return found


def _read(folder: Path) -> _Run:
    if not (folder / METRICS_NAME).is_file():
        if any((folder / name).is_file() for name in _OF_AN_EVALUATION):
            raise ValueError(
                f"{folder} is an evaluation, not a training run; compare evaluations with: "
                "python -m opdvr eval compare A B"
            )
        raise ValueError(f"{folder} is no training run: it has no {METRICS_NAME}")
    logged = read_metrics(folder)
    config = folder / "config.yaml"
    settings = None
    if config.is_file():
        try:
            settings = dict(_flat(yaml.safe_load(config.read_text(encoding="utf-8")) or {}))
        except (yaml.YAMLError, UnicodeDecodeError):
            raise ValueError(f"{config} is damaged: restore it, or move it away") from None
    return _Run(
        folder,
        {record["step"]: record for record in logged if names.STEP_SECONDS in record},
        {
            record["step"]: record
            for record in require_keys(folder / VALIDATION_NAME, VALIDATION_KEYS)
        },
        settings,
    )


def _chosen(runs: Sequence[_Run], at: str, notes: list[str]) -> tuple[int, int] | None:
    """The validated step of each run; None, with a note, where a run has no validation.jsonl."""
    without = [str(run.folder) for run in runs if not run.validations]
    common = sorted(runs[0].validations.keys() & runs[1].validations.keys())
    if without:
        notes.append(
            f"no benchmarks: there is no {VALIDATION_NAME} in {' and '.join(without)} (never "
            "validated, or by an older version)"
        )
        return None
    if at == BEST:
        return _best(runs[0], runs[1]), _best(runs[1], runs[0])
    validated = ", ".join(map(str, common)) or "none"
    if at == LAST:
        if common:
            if common[-1] == 0:
                notes.append(
                    "step 0, before any training, is the last that both validated: --at best "
                    "takes each run's own best step"
                )
            return common[-1], common[-1]
        notes.append("no benchmarks: no step was validated in both runs; --at best needs none")
        return None
    if not at.isdecimal() or int(at) not in common:
        raise ValueError(
            f"--at {at}: use {LAST}, {BEST}, or a step that both runs validated ({validated})"
        )
    return int(at), int(at)


def _best(run: _Run, other: _Run) -> int:
    """The run's step of the highest mean over the benchmarks that both runs have; the first."""
    shared = {source for record in other.validations.values() for source in record["sources"]}

    def mean(step: int) -> float:
        record = run.validations[step]
        values = [
            np.mean(list(accuracies(record, source).values()))
            for source in record["sources"]
            if source in shared and accuracies(record, source)
        ]
        return float(np.mean(values)) if values else -math.inf

    return min(run.validations, key=lambda step: (-mean(step), step))


def _benchmarks(
    records: Sequence[Mapping[str, Any]], notes: list[str]
) -> tuple[dict[str, Any], list[int]]:
    """Rows of the problems that both records have, and how many only one has."""
    values, unpaired = {}, [0, 0]
    for source in dict.fromkeys([*records[0]["sources"], *records[1]["sources"]]):
        one, other = (accuracies(record, source) for record in records)
        both = [key for key in one if key in other]
        unpaired[0] += len(one) - len(both)
        unpaired[1] += len(other) - len(both)
        if both:
            values[source] = np.array([(one[key], other[key]) for key in both])
    if records[0]["n"] != records[1]["n"]:
        notes.append(
            f"not sampled alike: {records[0]['n']} responses a problem in A, {records[1]['n']} in B"
        )
    if not values:
        notes.append("no benchmarks: the runs validated no problem in common")
        return {}, unpaired
    return paired.rows(values), unpaired


def _training(runs: Sequence[_Run]) -> dict[str, dict[str, Any]]:
    """By shown name what the runs logged at the steps that both have."""
    common = sorted(runs[0].steps.keys() & runs[1].steps.keys())
    found = {}
    for shown, metric_names in TRAINING:
        pairs = [[number_of(run.steps[step], *metric_names) for run in runs] for step in common]
        values = np.array(
            [pair for pair in pairs if None not in pair and np.isfinite(pair).all()], dtype=float
        ).reshape(-1, 2)
        if len(values):
            found[shown] = _difference(values)
    return found


def block_length(steps: int) -> int:
    """Neighbouring steps that are drawn together: the cube root of their number, rounded."""
    return max(1, round(steps ** (1 / 3)))


def _difference(values: np.ndarray) -> dict[str, Any]:
    """One metric's line; values [N, 2], of A and of B at the same step."""
    differences = values[:, 1] - values[:, 0]
    low_high = None
    if len(values) >= LEAST_STEPS:
        block = block_length(len(values))
        low_high = statistics.interval(statistics.block_bootstrap_means(differences, block))
    before, after = values.mean(axis=0)
    return {
        "steps": len(values),
        "before": float(before),
        "after": float(after),
        "difference": float(differences.mean()),
        "difference_95": low_high,
    }


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:  # noqa: ANN401
    """(option, value) of all leaves; a list is a leaf."""
    if not isinstance(value, dict) or not value:
        return [(prefix, value)]
    found = []
    for name, inner in value.items():
        found += _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    return found


def _differing(runs: Sequence[_Run]) -> dict[str, list[Any]] | None:
    one, other = (run.settings for run in runs)
    if one is None or other is None:
        return None
    return {
        option: [one.get(option, _ABSENT), other.get(option, _ABSENT)]
        for option in sorted(one.keys() | other.keys())
        if one.get(option, _ABSENT) != other.get(option, _ABSENT)
        and not option.startswith(_OWN_SETTINGS)
    }


def render(found: Mapping[str, Any]) -> str:
    """What `compare_runs` found, for a person."""
    lines = [f"A: {found['runs'][0]}", f"B: {found['runs'][1]}", *found["notes"], ""]
    if found["rows"]:
        one, other = found["steps"]
        where = f"step {one}" if one == other else f"step {one} of A, step {other} of B"
        lines.append(f"validation at {where}; intervals: paired bootstrap over problems")
        if any(found["unpaired"]):
            a, b = found["unpaired"]
            lines.append(f"not in both, left out: {a} problems of A, {b} of B")
        lines += ["", *paired.table(found["rows"]), ""]
    lines += [*_training_table(found["training"]), "", *_setting_lines(found["differing"])]
    return "\n".join(lines)


def _training_table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["training: no step in common"]
    lines = [
        "training, means over the steps that both runs have; intervals: moving-block bootstrap "
        "over paired steps",
        "",
        "| metric           | steps |         A |         B |     B - A | 95 %                   |",
        "| ---------------- | ----- | --------- | --------- | --------- | ---------------------- |",
    ]
    for name, row in rows.items():
        spread = "too few steps"
        if row["difference_95"] is not None:
            spread = "{:+.3g} to {:+.3g}".format(*row["difference_95"])
        lines.append(
            f"| {name:<16} | {row['steps']:>5,} | {row['before']:>9.4g} | {row['after']:>9.4g} | "
            f"{row['difference']:>+9.3g} | {spread:<22} |"
        )
    return lines


def _setting_lines(differing: Mapping[str, Sequence[Any]] | None) -> list[str]:
    if differing is None:
        return ["settings: not compared, for a run has no config.yaml"]
    if not differing:
        return ["settings: the same"]
    lines = ["settings that differ:"]
    for option, values in differing.items():
        one, other = (json.dumps(value, ensure_ascii=False, default=str) for value in values)
        lines.append(f"  {option}: {one} in A, {other} in B")
    return lines
