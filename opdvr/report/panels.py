"""The panels that `plot_curves` puts together; each takes its axes and all runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opdvr.report import metrics as names
from opdvr.report.series import (
    REST_OF_STEP,
    Line,
    Run,
    mean_over,
    phase_seconds,
    smoothed,
    window_of,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Okabe and Ito's palette, told apart by readers with any common colour blindness. Its yellow is
# left out: it is too faint for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX"
_GREY = "#555555"
_LIGHT_GREY = "#BBBBBB"
# Up to here each step's point is marked: a line through few points hides where they are.
_MARKED_POINTS = 40
# What a third of the picture holds: the characters of a label (of a data source's, which needs
# room for its accuracies), and legend entries in large print.
LABEL_CHARS = 45
_SOURCE_CHARS = 28
_FEW_ENTRIES = 4
# In the order of the stack: first what timing_s/step covers, then what comes on top of it.
PHASE_LABELS = {
    "gen": "generation",
    "reward": "reward",
    "old_log_prob": "old log-prob",
    "update_actor": "update",
    REST_OF_STEP: "rest of step",
    "testing": "validation",
    "save_checkpoint": "checkpoint",
}
_PHASE_COLOURS = dict(zip(PHASE_LABELS, (*PALETTE[:4], _LIGHT_GREY, *PALETTE[4:]), strict=False))
_TRAINING_BATCH = Line("training batch", (names.CORRECT_FRAC,))
_LENGTH = Line("mean length", (names.RESPONSE_LENGTH,))
_TRUNCATED = Line("truncated", (names.TRUNCATED_FRAC, names.CLIP_RATIO))


def plain_label(text: str, most_chars: int = LABEL_CHARS) -> str:
    """Text that matplotlib shows as it is: "$" starts a formula, a leading "_" hides a legend."""
    if len(text) > most_chars:
        text = f"{text[: most_chars - 3]}..."
    if text.startswith("_"):
        text = f" {text}"
    return text.replace("$", r"\$")


def sample_line(label: str, colour: str, **style: Any) -> "Artist":
    """A legend entry."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, label=label, **style)


def _plot(axes: "Axes", steps: Sequence[int], values: Sequence[float], **style: Any) -> None:
    window = window_of(len(steps))
    if window > 1:
        faint = {**style, "linewidth": 0.6, "alpha": 0.25, "linestyle": "-"}
        axes.plot(steps, values, **faint)
        values = smoothed(values, window)
    axes.plot(steps, values, marker="o" if len(steps) <= _MARKED_POINTS else None, **style)


def _draw_line(
    axes: "Axes", runs: Sequence[Run], line: Line, colour: str, dash: str, **style: Any
) -> list["Artist"]:
    """Draws one metric of every run; returns its legend entry, or nothing where none logs it."""
    drawn = False
    for run in runs:
        steps, values = run.series(line.metric_names)
        if steps:
            drawn = True
            run_colour = colour if len(runs) == 1 else run.colour
            style = {"markersize": 3, **style}
            _plot(axes, steps, values, color=run_colour, linestyle=dash, **style)
    colour = colour if len(runs) == 1 else _GREY
    return [sample_line(line.label, colour, linestyle=dash)] if drawn else []


def _finish(axes: "Axes", title: str, unit: str, handles: Sequence["Artist"], columns: int) -> None:
    """Title, grid and a legend below the panel, where it cannot cover a curve."""
    axes.set_title(title, loc="left", fontsize=12)
    if not handles:
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color=_GREY)
        axes.set(xticks=[], yticks=[])
        return
    axes.set(xlabel="training step", ylabel=unit)
    left, right = axes.get_xlim()
    if right - left < 2:
        # A single step; without room for whole steps around it, the ticks would be fractions.
        axes.set_xlim((left + right) / 2 - 1, (left + right) / 2 + 1)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # Many entries in the larger print would push the panels apart.
    print_size = 8.5 if len(handles) <= _FEW_ENTRIES or columns > 3 else 7.5
    style = {"ncols": columns, "fontsize": print_size, "handlelength": 1.8, "columnspacing": 1.2}
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "frameon": False}
    axes.legend(handles=handles, **style, **below)


def draw_lines(
    axes: "Axes", runs: Sequence[Run], lines: Sequence[Line], title: str, unit: str
) -> bool:
    """A panel of plain lines, told apart by dashes (and colour, for one run). False if empty."""
    handles = []
    for index, line in enumerate(lines):
        handles += _draw_line(axes, runs, line, PALETTE[index], _DASHES[index])
    _finish(axes, title, unit, handles, columns=3)
    return bool(handles)


def draw_accuracy(axes: "Axes", runs: Sequence[Run], reference: Mapping[str, float]) -> None:
    """Validation accuracy, that of the training batches behind it, and reference lines."""
    batch_style = {"linewidth": 0.8, "alpha": 0.6, "markersize": 0, "zorder": 1.5}
    handles = _draw_line(axes, runs, _TRAINING_BATCH, _GREY, "-", **batch_style)
    handles = [*_draw_validations(axes, runs), *handles]
    if handles:
        for index, (label, value) in enumerate(reference.items()):
            style = {"linestyle": _DASHES[1 + index % 3], "linewidth": 1.2}
            axes.axhline(value, color=_GREY, **style)
            handles.append(sample_line(plain_label(f"{label} {value:.3f}"), _GREY, **style))
    title = "Accuracy  (○ before training, ★ last)" if axes.has_data() else "Accuracy"
    _finish(axes, title, "share correct", handles, columns=2)
    if handles:
        axes.set_ylim(bottom=0.0)


def _draw_validations(axes: "Axes", runs: Sequence[Run]) -> list["Artist"]:
    per_run = [run.validations() for run in runs]
    shared = [key for key in per_run[0] if all(key in found for found in per_run)]
    if len(runs) > 1 and len(shared) > 1:
        # A line for every source of every run could not be told apart.
        mean = f"mean of {len(shared)} data sources"
        per_run = [{mean: mean_over(found, shared)} for found in per_run]
    keys = dict.fromkeys(key for found in per_run for key in found)
    handles = []
    for index, key in enumerate(keys):
        style = {"linestyle": _DASHES[index % len(_DASHES)], "linewidth": 2.0}
        style |= {"marker": _MARKERS[index % len(_MARKERS)], "markersize": 4}
        label = plain_label(str(key).replace(" acc/", " "), _SOURCE_CHARS)
        source_colour = PALETTE[index % len(PALETTE)] if len(runs) == 1 else _GREY
        for run, found in zip(runs, per_run, strict=True):
            by_step = found.get(key, {})
            colour = source_colour if len(runs) == 1 else run.colour
            axes.plot(list(by_step), list(by_step.values()), color=colour, **style)
            _mark_ends(axes, by_step, colour)
        if len(runs) == 1:
            first, *_, last = [*by_step.values()] * 2
            label += f"  {first:.3f} → {last:.3f}"
        handles.append(sample_line(label, source_colour, **style))
    return handles


def _mark_ends(axes: "Axes", by_step: Mapping[int, float], colour: str) -> None:
    if 0 in by_step:
        axes.plot(0, by_step[0], "o", markersize=9, mfc="white", mec=colour, zorder=4)
    last = max(by_step, default=0)
    if last > 0:
        axes.plot(last, by_step[last], "*", markersize=13, color=colour, zorder=4)


def draw_length(axes: "Axes", runs: Sequence[Run]) -> None:
    """Mean response length, and on an axis of its own the share of truncated responses."""
    handles = _draw_line(axes, runs, _LENGTH, PALETTE[0], "-")
    if handles:
        axes.set_ylim(bottom=0.0)
    if any(run.series(_TRUNCATED.metric_names)[0] for run in runs):
        share = axes.twinx()
        handles += _draw_line(share, runs, _TRUNCATED, PALETTE[1], "--")
        share.set_ylabel("share truncated")
        share.spines["top"].set_visible(False)
        # At least up to 10 %, so that one truncated response does not fill the panel.
        share.set_ylim(0.0, max(0.1, share.get_ylim()[1]))
    _finish(axes, "Response length", "tokens", handles, columns=3)


def draw_seconds(axes: "Axes", runs: Sequence[Run]) -> None:
    """Seconds by phase: of each step for one run, the means side by side for several."""
    by_run = []
    for run in runs:
        timed = {record["step"]: phase_seconds(record) for record in run.records}
        by_run.append({step: seconds for step, seconds in timed.items() if seconds})
    present = {phase for steps in by_run for seconds in steps.values() for phase in seconds}
    phases = [phase for phase in PHASE_LABELS if phase in present]
    handles = [
        sample_line(PHASE_LABELS[phase], _PHASE_COLOURS[phase], linewidth=6) for phase in phases
    ]
    if len(runs) == 1 and phases:
        _stack_steps(axes, by_run[0], phases)
    elif phases:
        _stack_means(axes, runs, by_run, phases)
    _finish(axes, "Seconds per step, by phase", "seconds", handles, columns=4)
    if phases and len(runs) > 1:
        axes.set(xlabel="mean seconds per step", ylabel="", yticks=[])


def _stack_steps(
    axes: "Axes", by_step: Mapping[int, Mapping[str, float]], phases: Iterable[str]
) -> None:
    steps = range(min(by_step), max(by_step) + 1)
    edges = [step - 0.5 for step in (*steps, steps[-1] + 1)]
    below = [0.0] * len(steps)
    for phase in phases:
        seconds = [by_step.get(step, {}).get(phase, 0.0) for step in steps]
        above = [base + value for base, value in zip(below, seconds, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=_PHASE_COLOURS[phase])
        below = above


def _stack_means(
    axes: "Axes",
    runs: Sequence[Run],
    by_run: Sequence[Mapping[int, Mapping[str, float]]],
    phases: Iterable[str],
) -> None:
    for row, (run, by_step) in enumerate(zip(runs, by_run, strict=True)):
        left = 0.0
        for phase in phases:
            total = sum(seconds.get(phase, 0.0) for seconds in by_step.values())
            mean = total / max(len(by_step), 1)
            axes.barh(-row, mean, height=0.45, left=left, color=_PHASE_COLOURS[phase])
            left += mean
        axes.text(0.0, 0.27 - row, run.label, color=run.colour, fontsize=9, va="bottom")
    axes.set_ylim(0.7 - len(runs), 0.7)
