"""Histograms of what was measured on prompts, those that stay apart from those that do not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from opdvr.data.align_filters import KEPT, LIMITS
from opdvr.report.panels import PALETTE

_WIDTH_INCHES, _HEIGHT_INCHES, _DPI = 15.0, 8.0, 100
_BINS = 24
_PANELS = {
    "teacher_pass": "Teacher's pass rate",
    "student_pass": "Student's pass rate",
    "overlap_ratio": "Overlap of both top K",
    "agreement": "Agreement (probability in common)",
    "log_ratio_mean": "Mean log-ratio, nats",
}
_PASS_RATES = ("teacher_pass", "student_pass")


def draw_histograms(
    rows: Sequence[Mapping[str, float]],
    reasons: Sequence[str],
    bounds: Mapping[str, float | None],
    output: Path,
) -> None:
    """Write the picture: one panel a measure, dropped prompts on top of kept ones, bounds dashed.

    Args:
        rows: `figures` of each prompt. reasons: `reason_to_drop` of each.
        bounds: a bound or None for each of LIMITS.
    """
    from matplotlib.figure import Figure

    # A Figure of its own, without pyplot, leaves the caller's matplotlib state alone.
    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), dpi=_DPI, layout="constrained")
    *panels, last = figure.subplots(2, 3).flat
    is_kept = [reason == KEPT for reason in reasons]
    for axes, (name, title) in zip(panels, _PANELS.items(), strict=True):
        values = [row[name] for row in rows]
        dashed = [
            bound
            for limit, bound in bounds.items()
            if bound is not None and LIMITS[limit].measure == name
        ]
        # Pass rates of a few responses are few values: each in the middle of a bar.
        span = (-0.02, 1.02) if name in _PASS_RATES else _around([*values, *dashed])
        kept = [value for value, stays in zip(values, is_kept, strict=True) if stays]
        dropped = [value for value, stays in zip(values, is_kept, strict=True) if not stays]
        axes.hist(
            [kept, dropped],
            bins=_BINS,
            range=span,
            stacked=True,
            color=[PALETTE[0], PALETTE[1]],
            label=[f"kept ({len(kept):,})", f"dropped ({len(dropped):,})"],
        )
        for bound in dashed:
            axes.axvline(bound, color="black", linestyle="--", linewidth=1.0)
        axes.set_title(title, fontsize=11)
        axes.set_ylabel("prompts")
        axes.spines[["top", "right"]].set_visible(False)
    last.axis("off")
    handles, labels = panels[0].get_legend_handles_labels()
    last.legend(handles, labels, loc="center", frameon=False, fontsize=12)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.tmp")
    figure.savefig(temporary, format="png")
    os.replace(temporary, output)


def _around(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    # Equal values have no span of their own.
    return (low, high) if high > low else (low - 0.5, high + 0.5)
