"""Counts, row numbers and foreign text as messages have them."""

import unicodedata
from collections.abc import Sequence

# Enough rows to find the mistake by, few enough for one line.
ROWS_NAMED = 10


def how_many(count: int, noun: str) -> str:
    """A count with its noun: "1 row", "1,590 rows"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def row_numbers(rows: Sequence[int], all_rows: bool = False) -> str:
    """The first ten row numbers, or all of them: "3, 17, 40 …"."""
    shown = rows if all_rows else rows[:ROWS_NAMED]
    return ", ".join(map(str, shown)) + (" …" if len(shown) < len(rows) else "")


def escaped(text: str) -> str:
    """The text with its control and other invisible characters as Python escapes them.

    Line breaks, tabs and the spaces of other scripts stay. A terminal would obey the rest.
    """
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in "\n\t" or character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")
