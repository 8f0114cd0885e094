"""What the curves are drawn from: series of a run's metrics, smoothed, averaged or split up."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opdvr.report import metrics as names
from opdvr.report.metrics import ValidationKey, number_of, phase_key, validation_accuracies

# From here on noise hides the trend, most of all where several runs cross.
_SMOOTHED_POINTS = 100
# Each smoothed point is the mean of this share of the run.
_SMOOTHED_SHARE = 1 / 25
# The part of timing_s/step that no phase of the stack covers.
REST_OF_STEP = "rest"
# The others are too short to see; they are in the rest.
STACKED_PHASES = ("gen", "reward", "old_log_prob", "update_actor", *names.OUTER_PHASES)


@dataclass(frozen=True)
class Run:
    """A run to draw: its records from metrics.jsonl under a label, in a colour of its own."""

    label: str
    colour: str
    records: Sequence[Mapping[str, Any]]

    def series(self, metric_names: Iterable[str]) -> tuple[list[int], list[float]]:
        """Steps and values of the first of the names that each step logged."""
        found = [(record["step"], number_of(record, *metric_names)) for record in self.records]
        points = [(step, value) for step, value in found if value is not None]
        return [step for step, _ in points], [value for _, value in points]

    def validations(self) -> dict[ValidationKey, dict[int, float]]:
        """Validation accuracy by step, for each data source."""
        by_key: dict[ValidationKey, dict[int, float]] = {}
        for record in self.records:
            for key, accuracy in validation_accuracies(record).items():
                by_key.setdefault(key, {})[record["step"]] = accuracy
        return by_key


@dataclass(frozen=True)
class Line:
    """One line of a panel: the first of these metrics that is logged."""

    label: str
    metric_names: tuple[str, ...]


def window_of(points: int) -> int:
    """Points that a smoothed one is the mean of; odd, and 1 for a short run."""
    if points < _SMOOTHED_POINTS:
        return 1
    return 2 * round(points * _SMOOTHED_SHARE / 2) + 1


def smoothing_note(runs: Sequence[Run]) -> str:
    """What the faint and the strong lines are; empty where every run is short."""
    window = max(window_of(len(run.records)) for run in runs)
    if window == 1:
        return ""
    return f"faint: each step; strong: mean of up to {window} steps around it"


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Each value's mean with its neighbours, `window` values in all and fewer at the ends.

    NaN and infinite values are left out of the means; a mean of none is NaN.
    """
    reach = window // 2
    means = []
    for index in range(len(values)):
        near = values[max(index - reach, 0) : index + reach + 1]
        finite = [value for value in near if math.isfinite(value)]
        means.append(sum(finite) / len(finite) if finite else math.nan)
    return means


def mean_over(
    found: Mapping[ValidationKey, Mapping[int, float]], keys: Sequence[ValidationKey]
) -> dict[int, float]:
    """The unweighted mean over data sources, at the steps where all of them were validated."""
    steps = [step for step in found[keys[0]] if all(step in found[key] for key in keys)]
    return {step: sum(found[key][step] for key in keys) / len(keys) for step in steps}


def phase_seconds(record: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of one step by phase; they add up to the step, its validation and checkpoint."""
    logged = {phase: number_of(record, phase_key(phase)) for phase in STACKED_PHASES}
    seconds = {phase: value for phase, value in logged.items() if value is not None and value > 0.0}
    whole = number_of(record, names.STEP_SECONDS)
    inside = sum(value for phase, value in seconds.items() if phase in names.INNER_PHASES)
    if whole is not None and whole > inside:
        seconds[REST_OF_STEP] = whole - inside
    return seconds


def time_shares(record: Mapping[str, Any]) -> dict[str, float]:
    """opd/time_frac_<phase>: each phase's part of the step, its validation and checkpoint.

    They add up to 1; {} for a record without the step's seconds.
    """
    if number_of(record, names.STEP_SECONDS) is None:
        return {}
    seconds = phase_seconds(record)
    whole = sum(seconds.values())
    return {f"{names.TIME_SHARE_PREFIX}{phase}": part / whole for phase, part in seconds.items()}
