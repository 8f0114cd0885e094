"""The gate's anatomy drawn: distributions of the log-ratio, and curves by position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from opdvr.report.html.anatomy import VERDICTS, Anatomy, gate_rows, measured_row
from opdvr.report.html.chart import Chart, Curve, drawn
from opdvr.report.html.load import Group
from opdvr.report.html.svg import SERIES, new_axes, svg_of
from opdvr.report.html.text import markup, percent, table

_COLOURS = {"correct": 0, "incorrect": 1}
_MOST_TICKS = 9


def anatomy_block(group: Group, anatomy: Anatomy, name: str) -> tuple[str, dict[str, dict]]:
    """One window's tables and charts as markup, and what page.js reads of the charts by name."""
    distributions, lines, readable = [], [], {}
    for number, (verdict, what) in enumerate(
        (verdict, what) for what in ("tokens", "mass") for verdict in VERDICTS
    ):
        if anatomy.log_ratio[verdict]:
            distributions.append(_distribution(anatomy, verdict, what, f"{name}d{number}"))
    for number, chart in enumerate(_by_position(anatomy)):
        figure, readable[f"{name}p{number}"] = drawn(chart, f"{name}p{number}")
        lines.append(figure)
    body = (
        f'{_gate_table(group, anatomy)}<div class="panels pairs">{"".join(distributions)}</div>'
        f'<div class="panels">{"".join(lines)}</div>'
    )
    return body, readable


def _gate_table(group: Group, anatomy: Anatomy) -> str:
    rows = [
        [
            markup(row.name),
            *map(percent, (row.correct, row.incorrect, row.all)),
            "–" if math.isnan(row.mean) else f"{row.mean:+.4f}",
        ]
        for row in (measured_row(anatomy), *gate_rows(anatomy, group.runs[0]))
    ]
    head = ["gate", "of correct", "of incorrect", "of all", "mean, nats a token"]
    caption = (
        "Share of the mass (sum of |log-ratio|) that each gate keeps of these same tokens, before "
        "any scale. soft weighs up to twice what agrees, so it may be above 100 %. Gates that "
        "look at a whole group (mixed, rescue) cannot be worked out from it."
    )
    return table(head, rows, caption, "numbers")


def _distribution(anatomy: Anatomy, verdict: str, what: str, name: str) -> str:
    bins = anatomy.log_ratio[verdict]
    whole = bins["tokens"] if what == "tokens" else np.abs(bins["sum"])
    kept = bins["kept_tokens"] if what == "tokens" else bins["kept"]
    total = max(whole.sum(), 1e-30)
    figure, axes = new_axes()
    first, last = _occupied(anatomy)
    places = np.arange(first, last + 2)
    colour = SERIES[_COLOURS[verdict]]
    shares = [100 * part[first : last + 1] / total for part in (whole, kept)]
    axes.stairs(shares[0], places, fill=True, color=colour, alpha=0.22)
    axes.stairs(shares[0], places, color=colour, linewidth=0.9)
    axes.stairs(shares[1], places, fill=True, color=colour, alpha=0.75)
    labels = [(at, text) for at, text in _ticks(anatomy.edges) if first <= at <= last + 1]
    stride = math.ceil(len(labels) / _MOST_TICKS)
    labels = [pair for pair in labels if _is_kept(pair, labels, stride)]
    axes.set_xticks([at for at, _ in labels], [text for _, text in labels], fontsize=7.5)
    axes.set(xlabel="log-ratio, nats (teacher - student)", ylabel=f"% of {what}")
    title = f"{'Tokens' if what == 'tokens' else 'Mass'} of {verdict} responses"
    share = kept.sum() / total
    below = whole[: int(np.searchsorted(anatomy.edges, 0.0))].sum() / total
    words = f"{title}: {percent(below)} below 0; the gate kept {percent(share)}."
    svg = svg_of(figure, name, markup(words))
    key = (
        f'<li><span class="swatch s{_COLOURS[verdict] + 1} faint"></span>all</li>'
        f'<li><span class="swatch s{_COLOURS[verdict] + 1}"></span>kept, {percent(share)}</li>'
    )
    return (
        f'<figure class="chart" id="{name}"><figcaption><h3>{title}</h3><ul class="legend">{key}'
        f'</ul></figcaption>{svg}<p class="readout">{percent(below)} below 0</p></figure>'
    )


def _occupied(anatomy: Anatomy) -> tuple[int, int]:
    """First and last bin that any verdict has tokens in, so that all charts share an axis."""
    counts = sum(rows["tokens"] for rows in anatomy.log_ratio.values() if rows)
    there = np.nonzero(counts)[0]
    return (int(there[0]), int(there[-1])) if len(there) else (0, len(counts) - 1)


def _ticks(edges: np.ndarray) -> list[tuple[int, str]]:
    """Places and labels of the edges at 0 and at whole powers of ten."""
    found = []
    for place, edge in enumerate(edges):
        if not math.isfinite(edge):
            continue
        power = math.log10(abs(edge)) if edge else 0.0
        if edge == 0 or abs(power - round(power)) < 1e-6:
            found.append((place, f"{edge:g}".replace("-", "\u2212")))
    return found


def _is_kept(pair: tuple[int, str], labels: Sequence[tuple[int, str]], stride: int) -> bool:
    """Every `stride`-th label, counted from 0 outwards."""
    zero = next((at for at, (_, text) in enumerate(labels) if text == "0"), 0)
    return (labels.index(pair) - zero) % stride == 0


def _by_position(anatomy: Anatomy) -> list[Chart]:
    there = {verdict: rows for verdict, rows in anatomy.position.items() if rows}
    if not there:
        return []
    used = max(int(np.nonzero(rows["tokens"])[0].max(initial=0)) for rows in there.values()) + 1
    starts = list(anatomy.position_starts)
    # As many names as bins: a bin ends where the next begins.
    ends = [start - 1 for start in starts[1:]] + [None]
    places = [_span(a, b) for a, b in zip(starts, ends, strict=True)][:used]
    made = []
    for title, unit, row in (
        ("Log-ratio by position", "nats per token", "log_ratio"),
        ("Absolute log-ratio by position", "nats per token", "log_ratio_abs"),
        ("Kept by position", "share of tokens", "kept_tokens"),
    ):
        curves = []
        for verdict, rows in there.items():
            tokens = rows["tokens"][:used]
            means = np.where(tokens > 0, rows[row][:used] / np.maximum(tokens, 1), np.nan)
            colour = _COLOURS[verdict]
            curves.append(Curve(verdict, colour, colour, range(used), means.tolist()))
        made.append(Chart(title, unit, curves, True, places, "token of the response"))
    return made


def _span(start: int, end: int | None) -> str:
    if end is None:
        return f"{start}+"
    return str(start) if start == end else f"{_short(start)}–{_short(end)}"


def _short(count: int) -> str:
    return str(count) if count < 1000 else f"{count / 1024:.0f}k"
