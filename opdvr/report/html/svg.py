"""Matplotlib figures as SVG for the page: its colours, its font, names that do not clash."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that are drawn with and then become variables of page.css, so that both themes work.
SERIES = tuple(f"#fe00{number:02x}" for number in range(1, 8))
TEXT, MUTED, GRID = "#fe0110", "#fe0111", "#fe0112"
_VARIABLES = {colour: f"var(--s{number})" for number, colour in enumerate(SERIES, start=1)} | {
    TEXT: "var(--text)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
}
_POINTS_AN_INCH = 72
WIDTH, HEIGHT = 345.6, 180.0
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "opdvr",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": TEXT,
    "grid.color": GRID,
    "axes.unicode_minus": True,
    "text.parse_math": False,
}


def new_axes() -> tuple[Figure, Axes]:
    """A figure of the page's size and its only axes; close nothing, pyplot is not involved."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        size = (WIDTH / _POINTS_AN_INCH, HEIGHT / _POINTS_AN_INCH)
        figure = Figure(figsize=size, dpi=_POINTS_AN_INCH, layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=2.5, width=0.7)
    return figure, axes


def svg_of(figure: Figure, prefix: str, description: str) -> str:
    """The figure as an svg element.

    Args:
        prefix: of every id, different for each figure of a page.
        description: what a reader who does not see it is told; markup.
    """
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(stream, format="svg", metadata={"Date": None}, transparent=True)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    opening = (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{description}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    body = svg[svg.index(">") + 1 :]
    return re.sub(r"\n\s*", "\n", opening + body).strip()


def plot_box(axes: Axes) -> dict[str, Any]:
    """Where the axes lie in the svg's own units, and the range of x; call after drawing."""
    box = axes.get_window_extent()
    return {
        "left": box.x0,
        "right": box.x1,
        "top": HEIGHT - box.y1,
        "bottom": HEIGHT - box.y0,
        "x": list(axes.get_xlim()),
    }
