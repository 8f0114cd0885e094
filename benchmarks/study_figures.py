"""The study's figures, as small SVG files."""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
# Text as text and fixed ids: small files that do not change from one drawing to the next.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "opdvr", "font.size": 9})

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from benchmarks.study_statistics import t_interval  # noqa: E402

_NO_DATE = {"Date": None}
_CURVES = ("opd", "opdvr", "rescue", "mixed", "soft", "grpo")
_OWN_STYLE = 1  # factor first, in a trace point's `styles`

Runs = dict[str, dict[int, dict]]


def draw_all(settings: dict[str, Runs], fast_style: Runs, folder: Path) -> None:
    """accuracy.svg: every method of every setting; style.svg, style-fast.svg: the runs on another
    style over their steps, at the picked learning rates and at the highest one.
    """
    _accuracies({name: runs for name, runs in settings.items() if runs}, folder / "accuracy.svg")
    for name, runs in (("style", settings["style"]), ("style-fast", fast_style)):
        if runs:
            _style(runs, folder / f"{name}.svg")


def _accuracies(settings: dict[str, Runs], path: Path) -> None:
    heights = [len(runs) + 1 for runs in settings.values()]
    figure, panels = plt.subplots(
        len(settings),
        1,
        squeeze=False,
        sharex=True,
        figsize=(6.5, 0.22 * sum(heights) + 0.6 * len(settings)),
        gridspec_kw={"height_ratios": heights},
        layout="constrained",
    )
    for axes, (name, runs) in zip(panels[:, 0], settings.items(), strict=True):
        for place, rows in enumerate(runs.values()):
            values = [100 * row["sampled"] for row in rows.values()]
            interval = t_interval(values)
            axes.plot(values, [place] * len(values), ".", color="0.7", zorder=1)
            axes.errorbar(interval.mean, place, xerr=interval.half_width, fmt="o", color="C0", ms=4)
        axes.set_yticks(range(len(runs)), list(runs))
        axes.invert_yaxis()
        axes.set_title(name, loc="left")
        axes.grid(axis="x", color="0.9")
    panels[-1, 0].set_xlim(0, 100)
    panels[-1, 0].set_xlabel("held-out accuracy when sampling, % (grey: seeds; bars: 95 %)")
    _save(figure, path)


def _style(runs: Runs, path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(8, 3), sharex=True, layout="constrained")
    for color, method in enumerate(name for name in _CURVES if name in runs):
        traces = [row["trace"] for row in runs[method].values()]
        steps = [point["step"] for point in traces[0]]
        right = [[row["acc"][step] for step in steps] for row in runs[method].values()]
        own = [[point["styles"][_OWN_STYLE] for point in trace] for trace in traces]
        for axes, curves in zip(panels, (right, own), strict=True):
            _curves(axes, steps, curves, method, color)
    panels[0].set_title("correct responses of the batch, %", loc="left")
    panels[1].set_title("responses that begin in the own style, %", loc="left")
    panels[0].legend(frameon=False)
    for axes in panels:
        axes.set_xlabel("step (thin: seeds)")
        axes.grid(color="0.9")
    _save(figure, path)


def _curves(axes: Axes, steps: list[int], rows: list[list[float]], label: str, color: int) -> None:
    for row in rows:
        axes.plot(steps, [100 * value for value in row], color=f"C{color}", lw=0.4, alpha=0.4)
    means = [100 * statistics.fmean(values) for values in zip(*rows, strict=True)]
    axes.plot(steps, means, color=f"C{color}", lw=1.5, label=label)


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata=_NO_DATE)
    plt.close(figure)
