"""Text of unknown origin on its way into the page: markup, JSON, numbers."""

from __future__ import annotations

import html
import json
import math
import re
from typing import Any

# Controls that no font shows, halves of characters, and marks that turn the writing direction.
_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def markup(text: object) -> str:
    """Text as HTML that shows it; what cannot be shown becomes U+FFFD."""
    return html.escape(_UNSHOWABLE.sub("\ufffd", str(text)))


def script_json(value: Any) -> str:
    """A value as JSON that may stand inside a script element, whatever text it holds.

    All that is not ASCII, and "<", ">" and "&", are escapes, so that neither "</script>" nor a line
    separator is ever in the page. Numbers that are not finite become null.
    """
    text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda match: _IN_SCRIPT[match[0]], text)


def finite(value: Any) -> Any:
    """The same value with None for every float that is not finite, and floats to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def shortened(text: object, most: int) -> str:
    """At most `most` characters of a text, and a note of what is left out."""
    text = str(text)
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"


def number(value: float | None, digits: int = 3) -> str:
    """A share or an accuracy; a dash for none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent; a dash for none."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def table(head: list[str], rows: list[list[str]], caption: str = "", kind: str = "") -> str:
    """A table of cells that are markup already; the first cell of a row is its heading."""
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    caption = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table class="{kind}">{caption}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
