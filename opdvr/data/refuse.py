"""One message for all the rows of a source that cannot be used."""

import re
from collections.abc import Sequence

from opdvr.data.rows import Removed, Unusable
from opdvr.data.wording import how_many, row_numbers

# What the verifier says of a gold answer may end with the answer itself.
_REASON_AND_GOLD = re.compile(
    r"(?P<reason>.*?)(?: in| of)? \(?(?P<gold>(?P<quote>['\"]).*(?P=quote))\)?", re.DOTALL
)


def refuse(left_out: Sequence[Removed | Unusable], total: int, remedy: str) -> None:
    """Raise ValueError that names these rows by reason, the first ten of each; no rows, no error.

    Args:
        total: rows of the source.
        remedy: what to do about them.
    """
    if not left_out:
        return
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for item in left_out:
        reason, detail, noun, number = _described(item)
        groups.setdefault((reason, noun), []).append((number, detail))
    parts = []
    for (reason, noun), items in groups.items():
        numbers, details = zip(*items, strict=True)
        example = f" ({details[0]})" if details[0] else ""
        parts.append(f"{reason}: {how_many(len(items), noun)}: {row_numbers(numbers)}{example}")
    first_line = ", the first line 1" if any(noun == "line" for _, noun in groups) else ""
    first = left_out[0]
    file = (first.row.place if isinstance(first, Removed) else first.place).file
    raise ValueError(
        f"{file}: {len(left_out):,} of {how_many(total, 'row')} cannot be used: "
        f"{'; '.join(parts)}; {remedy} (the first row is 0{first_line})"
    )


def _described(item: Removed | Unusable) -> tuple[str, str, str, int]:
    """Reason, more about this one, "row" or "line", and its number."""
    if isinstance(item, Removed):
        match = _REASON_AND_GOLD.fullmatch(item.reason)
        reason, detail = (match["reason"], match["gold"]) if match else (item.reason, "")
        return reason, detail, "row", item.row.place.row
    if item.line is not None:
        return item.reason, item.detail, "line", item.line
    return item.reason, item.detail, "row", item.place.row
