"""A chart: lines of groups of runs over steps (or over named places), drawn and readable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from opdvr.report.html.svg import SERIES, new_axes, plot_box, svg_of
from opdvr.report.html.text import markup

_DASHES = ("solid", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
# Up to here each point is marked: a line through few points hides where they are.
_MARKED_POINTS = 40
_MOST_PLACES = 8


@dataclass(frozen=True)
class Curve:
    """One line. Values that are not finite are gaps.

    Attributes:
        colour: place in the palette, from 0. dash: place in the dash patterns, from 0.
        band: lowest and highest value at each step, or None.
        thin: other lines behind it (members of a group, or single steps), steps and values each.
    """

    label: str
    colour: int
    dash: int
    steps: Sequence[int]
    values: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    thin: Sequence[tuple[Sequence[int], Sequence[float]]] = ()


@dataclass(frozen=True)
class Chart:
    """What is drawn under one title. places: names of the steps 0, 1, ... where they are none."""

    title: str
    unit: str
    curves: Sequence[Curve]
    from_zero: bool = False
    places: Sequence[str] = ()
    x_label: str = "training step"


def drawn(chart: Chart, name: str) -> tuple[str, dict]:
    """The chart as a figure element, and what page.js reads from it when a reader points at it.

    Args:
        name: unique in the page; letters and digits.
    """
    figure, axes = new_axes()
    for curve in chart.curves:
        _draw(axes, curve)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.unit)
    axes.margins(x=0.02)
    if chart.places:
        # Of many names every second or third: they would overlap.
        stride = -(-len(chart.places) // _MOST_PLACES)
        at = range(0, len(chart.places), stride)
        axes.set_xticks(at, chart.places[::stride], fontsize=7.5)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
        left, right = axes.get_xlim()
        if right - left < 2:
            # A single step; without whole steps around it the ticks would be fractions.
            axes.set_xlim((left + right) / 2 - 1, (left + right) / 2 + 1)
    _set_range(axes, chart)
    svg = svg_of(figure, name, markup(_in_words(chart)))
    readable = {
        **plot_box(axes),
        "places": list(chart.places),
        "curves": [_readable(curve) for curve in chart.curves],
    }
    return _figure(chart, name, svg), readable


def _draw(axes, curve: Curve) -> None:  # noqa: ANN001  (matplotlib is imported when asked for)
    colour = SERIES[curve.colour]
    for steps, values in curve.thin:
        axes.plot(steps, values, color=colour, linewidth=0.6, alpha=0.4)
    if curve.band:
        # alpha of the face alone: an edge would be drawn twice as dark.
        axes.fill_between(curve.steps, *curve.band, color=colour, alpha=0.16, linewidth=0)
    marker = "o" if len(curve.steps) <= _MARKED_POINTS else None
    style = {"linestyle": _DASHES[curve.dash % len(_DASHES)], "marker": marker, "markersize": 2.6}
    axes.plot(curve.steps, curve.values, color=colour, linewidth=1.5, **style)


def _set_range(axes, chart: Chart) -> None:  # noqa: ANN001
    low, high = axes.dataLim.intervaly
    if chart.from_zero and low >= 0:
        # A little below 0, so that a line along it is not cut; all zeros need some height.
        high = 1.06 * high or 0.1
        axes.set_ylim(-0.02 * high, high)
    elif low < 0 < high:
        axes.axhline(0, color=axes.xaxis.label.get_color(), linewidth=0.8, zorder=1.5)


def _readable(curve: Curve) -> dict:
    low, high = curve.band or ((), ())
    return {
        "label": curve.label,
        "colour": curve.colour + 1,
        "steps": list(curve.steps),
        "values": [float(value) for value in curve.values],
        "low": [float(value) for value in low],
        "high": [float(value) for value in high],
    }


def _in_words(chart: Chart) -> str:
    parts = []
    for curve in chart.curves:
        points = [
            (step, value)
            for step, value in zip(curve.steps, curve.values, strict=True)
            if math.isfinite(value)
        ]
        if points:
            (first, start), (last, end) = points[0], points[-1]
            places = [chart.places[at] if chart.places else f"step {at}" for at in (first, last)]
            parts.append(f"{curve.label}: {start:.4g} at {places[0]}, {end:.4g} at {places[1]}")
    return f"{chart.title}, {chart.unit}. " + "; ".join(parts)


def _figure(chart: Chart, name: str, svg: str) -> str:
    entries = "".join(
        f'<li><svg class="key" viewBox="0 0 24 8" aria-hidden="true"><line x1="0" x2="24" y1="4" '
        f'y2="4" class="dash{curve.dash % len(_DASHES)}" stroke="var(--s{curve.colour + 1})"/>'
        f"</svg>{markup(curve.label)}</li>"
        for curve in chart.curves
    )
    return (
        f'<figure class="chart" id="{name}" tabindex="0"><figcaption><h3>{markup(chart.title)}</h3>'
        f'<ul class="legend">{entries}</ul></figcaption>{svg}'
        '<p class="readout" aria-live="polite"></p></figure>'
    )
