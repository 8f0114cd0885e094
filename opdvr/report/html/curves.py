"""Which curves the page has, and how the runs of a group become one line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opdvr.report import metrics as names
from opdvr.report.html.chart import Chart, Curve
from opdvr.report.html.load import Group, LoadedRun
from opdvr.report.html.outcome import accuracy_interval
from opdvr.report.metrics import ValidationKey
from opdvr.report.series import Line, Run, smoothed, window_of

# More points than this cannot be told apart on a panel, and make the file large.
MOST_POINTS = 400
_MOST_BENCHMARKS = 12
_ZEROED_MASS = "opd/zeroed_mass_frac"


@dataclass(frozen=True)
class Panel:
    """A chart by metric names; sign -1 turns the values round."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    sign: int = 1
    from_zero: bool = True


PANELS = (
    Panel("Training batch", "share correct", (Line("correct", (names.CORRECT_FRAC,)),)),
    Panel("Reward", "mean of a token", (Line("reward", ("opd/reward_mean",)),), from_zero=False),
    Panel(
        "KL estimate", "nats per token", (Line("student to teacher", (names.LOG_RATIO_MEAN,)),), -1
    ),
    Panel("Log-ratio, absolute", "nats per token", (Line("mean", (names.LOG_RATIO_ABS_MEAN,)),)),
    Panel("Divergence", "nats per token", (Line("divergence", (names.DIVERGENCE,)),)),
    Panel(
        "Entropy",
        "nats per token",
        (Line("student", (names.ACTOR_ENTROPY,)), Line("teacher", (names.TEACHER_ENTROPY,))),
    ),
    Panel("Response length", "tokens", (Line("mean", (names.RESPONSE_LENGTH,)),)),
    Panel(
        "Truncated",
        "share of responses",
        (Line("truncated", (names.TRUNCATED_FRAC, names.CLIP_RATIO)),),
    ),
    Panel(
        "Passed by the gate",
        "share of token rewards",
        (
            Line("correct", (names.GATE_PASS_CORRECT,)),
            Line("incorrect", (names.GATE_PASS_INCORRECT,)),
        ),
    ),
    Panel(
        "Dropped by the gate",
        "share",
        (Line("of the mass", (_ZEROED_MASS,)), Line("of the rewards", (names.REWARD_ZEROED_FRAC,))),
    ),
    Panel("Scale", "mean over responses", (Line("scale", ("gs/scale_mean",)),)),
    Panel("Gradient norm", "before clipping", (Line("norm", ("actor/grad_norm",)),)),
    Panel(
        "Supervised loss",
        "nats per token",
        (Line("training", (names.SFT_LOSS,)), Line("held out", (names.SFT_VALIDATION_LOSS,))),
        from_zero=False,
    ),
)


def charts(groups: Sequence[Group]) -> tuple[list[Chart], list[str]]:
    """The charts of what any of the groups logged, and the titles of those that none did."""
    found = accuracy_charts(groups)
    missing = [] if found else ["Accuracy"]
    for panel in PANELS:
        curves = [
            curve
            for group in groups
            for place, line in enumerate(panel.lines)
            if (curve := _curve(group, panel, line, place, len(groups) == 1))
        ]
        if curves:
            found.append(Chart(panel.title, panel.unit, curves, panel.from_zero))
        else:
            missing.append(panel.title)
    return found, missing


def accuracy_charts(groups: Sequence[Group]) -> list[Chart]:
    """A chart a benchmark: mean over a group's runs with their range, or one run's interval."""
    keys: dict[ValidationKey, None] = {}
    for group in groups:
        for run in group.runs:
            keys |= dict.fromkeys(Run(run.label, "", run.metrics).validations())
    made = []
    for key in list(keys)[:_MOST_BENCHMARKS]:
        curves = [curve for group in groups if (curve := _accuracy(group, key))]
        made.append(Chart(str(key), "share correct", curves))
    return made


def _accuracy(group: Group, key: ValidationKey) -> Curve | None:
    found = [Run(run.label, "", run.metrics).validations().get(key, {}) for run in group.runs]
    found = [values for values in found if values]
    if not found:
        return None
    curve = _joined(group.title, group.number, 0, found)
    if len(found) > 1 or len(group.runs) > 1:
        return curve
    intervals = [accuracy_interval(group.runs[0], key.data_source, step) for step in curve.steps]
    if all(interval is None for interval in intervals):
        return curve
    pairs = [pair or (math.nan, math.nan) for pair in intervals]
    band = ([low for low, _ in pairs], [high for _, high in pairs])
    return Curve(curve.label, curve.colour, 0, curve.steps, curve.values, band)


def _curve(group: Group, panel: Panel, line: Line, place: int, alone: bool) -> Curve | None:
    width = _bucket_width(group)
    found = [_by_step(run, line, panel.sign, width) for run in group.runs]
    found = [values for values in found if values]
    if not found:
        return None
    label = group.title
    if len(panel.lines) > 1 or alone:
        label = line.label if alone else f"{group.title}, {line.label}"
    return _joined(label, place if alone else group.number, place, found)


def _joined(label: str, colour: int, dash: int, found: Sequence[Mapping[int, float]]) -> Curve:
    """One line of several: the mean where all have a value, their range, themselves thin."""
    window = max(window_of(len(values)) for values in found)
    smooth = [
        dict(zip(values, smoothed(list(values.values()), window), strict=True))
        if window > 1
        else values
        for values in found
    ]
    steps = [step for step in smooth[0] if all(step in values for values in smooth)]
    rows = [[values[step] for values in smooth] for step in steps]
    mean = [sum(row) / len(row) for row in rows]
    several = len(found) > 1
    thin = found if not several else smooth
    return Curve(
        label,
        colour,
        dash,
        steps,
        mean,
        ([min(row) for row in rows], [max(row) for row in rows]) if several else None,
        [(list(v), list(v.values())) for v in thin] if several or window > 1 else (),
    )


def _bucket_width(group: Group) -> int:
    last = max(run.metrics[-1]["step"] for run in group.runs)
    return max(1, math.ceil(last / MOST_POINTS))


def _by_step(run: LoadedRun, line: Line, sign: int, width: int) -> dict[int, float]:
    """Values by step; of a long run the means of `width` steps, at the first of them."""
    buckets: dict[int, list[float]] = {}
    for step, value in zip(*run.series(line.metric_names), strict=True):
        if math.isfinite(value):
            buckets.setdefault(step // width * width, []).append(sign * value)
    return {step: sum(values) / len(values) for step, values in buckets.items()}


def averaging_note(groups: Sequence[Group]) -> str:
    """What was averaged in the lines of long runs; empty where nothing was."""
    width = max(_bucket_width(group) for group in groups)
    window = max(window_of(min(len(run.metrics), MOST_POINTS)) for g in groups for run in g.runs)
    notes = []
    if width > 1:
        notes.append(f"Of the longest run a point is the mean of {width} steps.")
    if window > 1:
        notes.append(f"Strong lines are means of up to {window} neighbouring points; thin, each.")
    return " ".join(notes)
