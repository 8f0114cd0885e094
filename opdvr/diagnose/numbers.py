"""From measures of prompts to the numbers of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opdvr.core import add_sums, metrics_from_sums
from opdvr.diagnose.prompt_measure import ALL, PARTS, PromptMeasure
from opdvr.eval.statistics import LEVEL, RESAMPLES, SEED, bootstrap_means, interval

# Our name: that of opdvr.core.metrics.
_NAMES = {
    "overlap_ratio": "val-topk/overlap_ratio",
    "overlap_student_mass": "val-topk/overlap_student_mass",
    "overlap_teacher_mass": "val-topk/overlap_teacher_mass",
    "overlap_advantage": "val-topk/overlap_advantage",
    "log_ratio_mean": "opd/log_ratio_mean",
    "log_ratio_abs_mean": "opd/log_ratio_abs_mean",
    "student_entropy": "actor/entropy",
    "teacher_entropy": "teacher/entropy",
    "gate_pass_correct": "opd/gate_pass_frac_correct",
    "gate_pass_incorrect": "opd/gate_pass_frac_incorrect",
}


def token_numbers(measures: Sequence[PromptMeasure], part: str = ALL) -> dict[str, float | None]:
    """Means over the student's tokens in a part of its responses; None without a denominator."""
    sums = add_sums(measure.sums[part] for measure in measures)
    found = metrics_from_sums(sums)
    tokens = sums["valid_tokens"]
    numbers = {"tokens": int(tokens)}
    numbers |= {name: found.get(metric) for name, metric in _NAMES.items()}
    numbers["agreement"] = sums["agreement"] / tokens if tokens else None
    numbers["entropy_gap"] = None
    if tokens:
        numbers["entropy_gap"] = numbers["teacher_entropy"] - numbers["student_entropy"]
    zeroed = found.get("cg/reward_zeroed_frac")
    numbers["gate_pass"] = None if zeroed is None else 1 - zeroed
    return numbers


def end_numbers(measures: Sequence[PromptMeasure]) -> dict[str, float | None]:
    """Means over the student's finished responses of the probabilities in `end_sums`."""
    sums = add_sums(measure.ends for measure in measures)
    finished = sums.pop("finished")
    means = {name: total / finished if finished else None for name, total in sums.items()}
    return {"finished": int(finished), **means}


def accuracies(measures: Sequence[PromptMeasure]) -> dict[str, dict[str, float] | None]:
    """Shares of correct responses with 95 % bootstrap intervals over prompts.

    student, teacher: of their responses. gain: teacher's minus student's. teacher_where_student_
    fails: the teacher's share on each prompt, weighted by the share that the student fails there:
    how likely the teacher is right where a response of the student's is wrong. None where the
    student fails nowhere.
    """
    student = _rates(measures, "student")
    teacher = _rates(measures, "teacher")
    failed = 1 - student
    found = {
        "student": _with_interval(student),
        "teacher": _with_interval(teacher),
        "gain": _with_interval(teacher - student),
        "teacher_where_student_fails": None,
    }
    if failed.any():
        rng = np.random.default_rng(SEED)
        drawn = rng.integers(0, len(failed), (RESAMPLES, len(failed)))
        weights = failed[drawn].sum(axis=1)
        # A draw of solved prompts only has no failures to speak of.
        ratios = ((failed * teacher)[drawn].sum(axis=1)[weights > 0]) / weights[weights > 0]
        low, high = np.percentile(ratios, LEVEL)
        mean = float((failed * teacher).sum() / failed.sum())
        found["teacher_where_student_fails"] = _entry(mean, float(low), float(high))
    return found


def pass_rate(correct: Sequence[bool]) -> float:
    """Share of correct responses."""
    return sum(correct) / len(correct)


def _rates(measures: Sequence[PromptMeasure], role: str) -> np.ndarray:
    return np.array([pass_rate(getattr(measure, f"{role}_correct")) for measure in measures])


def _with_interval(values: np.ndarray) -> dict[str, float]:
    return _entry(float(values.mean()), *interval(bootstrap_means(values)))


def _entry(mean: float, low: float, high: float) -> dict[str, float]:
    return {"mean": mean, "low": low, "high": high}


def all_numbers(measures: Sequence[PromptMeasure]) -> dict[str, Any]:
    """Everything that a diagnosis says of rollouts and scores; docs/recovery.md explains each."""
    numbers: dict[str, Any] = {
        "prompts": len(measures),
        "accuracy": accuracies(measures),
        **token_numbers(measures),
        "by_position": {part: token_numbers(measures, part) for part in PARTS if part != ALL},
        "ends": end_numbers(measures),
    }
    for role in ("student", "teacher"):
        tokens = [n for measure in measures for n in getattr(measure, f"{role}_tokens")]
        finished = [done for measure in measures for done in getattr(measure, f"{role}_finished")]
        numbers[f"{role}_responses"] = len(tokens)
        numbers[f"{role}_mean_tokens"] = sum(tokens) / len(tokens)
        numbers[f"{role}_truncated"] = 1 - sum(finished) / len(finished)
    return numbers
