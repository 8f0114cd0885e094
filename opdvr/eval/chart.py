"""accuracy.png: a benchmark a bar, with its interval, pass@n above it and maj@n in it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opdvr.report.panels import PALETTE, plain_label

_DPI = 100
_TITLE_CHARS = 150
# Tried in this order for letters of other scripts; matplotlib brings the first.
_FONTS = (
    *("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans"),
    *("WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Arial Unicode MS"),
)
# Stands for a letter that no font here has; the first font has it.
_NO_GLYPH = "\N{WHITE SQUARE}"
_INCHES_A_BENCHMARK, _INCHES_BESIDE, _HEIGHT_INCHES = 1.2, 4.8, 5.0


def draw_accuracy(results: Mapping[str, Mapping[str, Any]], title: str, output: Path) -> None:
    """Write the picture of one evaluation's results (as `summarise` gives them)."""
    from matplotlib.figure import Figure

    # With one benchmark the mean says the same.
    shown = dict(list(results.items())[: 1 if len(results) == 2 else None])
    n = next(iter(shown.values()))["n"]
    width = _INCHES_BESIDE + _INCHES_A_BENCHMARK * len(shown)
    # A Figure of its own, without pyplot, leaves the caller's matplotlib state alone.
    figure = Figure(figsize=(width, _HEIGHT_INCHES), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    places = list(range(len(shown)))
    average = [found["avg"] for found in shown.values()]
    # An interval of percentiles need not hold the mean in odd cases; a bar's arm has no sign.
    below = [max(0.0, found["avg"] - found["avg_95"][0]) for found in shown.values()]
    above = [max(0.0, found["avg_95"][1] - found["avg"]) for found in shown.values()]
    axes.bar(places, average, 0.6, color=PALETTE[0], label=f"avg@{n}, 95 % interval")
    axes.errorbar(places, average, yerr=[below, above], fmt="none", ecolor="black", capsize=4)
    if n > 1:
        style = {"linestyle": "none", "markersize": 8, "zorder": 3}
        values = [found["pass"][n] for found in shown.values()]
        axes.plot(places, values, marker="^", color=PALETTE[1], label=f"pass@{n}", **style)
        if all(found["maj"] for found in shown.values()):
            values = [found["maj"][n] for found in shown.values()]
            axes.plot(places, values, marker="D", color=PALETTE[4], label=f"maj@{n}", **style)
    fonts = _fonts_here()
    labels = [plain_label(f"{name}\n{found['avg']:.3f}") for name, found in shown.items()]
    labels = [drawable(label, fonts) for label in labels]
    axes.set_xticks(places, labels, fontfamily=fonts)
    axes.set(ylabel="share correct", ylim=(min(0.0, *average), 1.05), xlim=(-0.7, len(shown) - 0.3))
    heading = drawable(plain_label(title, _TITLE_CHARS), fonts)
    axes.set_title(heading, loc="left", fontsize=10, fontfamily=fonts)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    temporary = output.with_name(f".{output.name}.tmp")
    figure.savefig(temporary, format="png")
    os.replace(temporary, output)


def _fonts_here() -> list[str]:
    from matplotlib import font_manager

    there = set(font_manager.get_font_names())
    return [name for name in _FONTS if name in there]


def drawable(text: str, fonts: Sequence[str]) -> str:
    """Text in which a square stands for each letter that none of `fonts` (families) has.

    Matplotlib would draw a box too, and warn of each.
    """
    from matplotlib import font_manager

    known = {ord("\n")}
    for name in fonts:
        known |= font_manager.get_font(font_manager.findfont(name)).get_charmap().keys()
    return "".join(letter if ord(letter) in known else _NO_GLYPH for letter in text)
