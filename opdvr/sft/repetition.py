"""Repetition in a text: a line, a chunk anywhere, a block in a row. Near-linear on every text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np


def repeated_line(text: str, length: int = 20, times: int = 5) -> bool:
    """Whether a line of `length` or more characters is there `times` times.

    White space around a line does not count.
    """
    lines = (line.strip() for line in text.splitlines())
    counts = Counter(line for line in lines if len(line) >= length)
    return max(counts.values(), default=0) >= times


def repeated_chunk(text: str, length: int = 100, times: int = 3) -> bool:
    """Whether `length` characters are there `times` times, at any offsets.

    Occurrences that overlap each other count once. Linear in the text: counting from the left is
    counting most, and every chunk is one look into a dictionary.
    """
    seen: dict[str, tuple[int, int]] = {}  # how often, and where the last counted one ends
    for start in range(len(text) - length + 1):
        chunk = text[start : start + length]
        count, end = seen.get(chunk, (0, 0))
        if start >= end:
            if count + 1 >= times:
                return True
            seen[chunk] = (count + 1, start + length)
    return False


def repeated_block(text: str, length: int = 50, times: int = 3, over: int = 5000) -> bool:
    """Whether some block of `length` or more characters comes `times` times in a row.

    Shorter blocks count by their multiples: 25 characters six times in a row are 50 three times.
    Exact; near-linear as `_from_anchors` argues.

    Args:
        text: of any kind.
        length: of the shortest block.
        times: 2 or more.
        over: texts of at most so many characters have none.
    """
    if len(text) <= over or len(text) < length * times:
        return False
    codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
    # Blocks in a row are a stretch in which each character equals the one a block's length on.
    direct = 2 * times * length
    longest = len(text) // times
    for period in range(length, min(direct - 1, longest) + 1):
        differs = np.flatnonzero(codes[:-period] != codes[period:])
        if _longest_gap(differs, len(codes) - period) >= (times - 1) * period:
            return True
    window = direct
    while window <= longest:
        for anchor, period in _from_anchors(text, window, times):
            if _equal_around(codes, anchor, period, times) >= (times - 1) * period:
                return True
        window *= 2
    return False


def _longest_gap(differs: np.ndarray, length: int) -> int:
    """The longest stretch of `length` places without one of the ascending `differs`."""
    if not len(differs):
        return length
    inner = int(np.diff(differs).max(initial=1)) - 1
    return max(int(differs[0]), inner, length - 1 - int(differs[-1]))


def _from_anchors(text: str, window: int, times: int) -> Iterator[tuple[int, int]]:
    """(place, period) where blocks of `window` to 2 * `window` - 1 characters may be in a row.

    `times` blocks of `period` characters in a row are (times - 1) * period places that equal the
    place a period on. A piece that lies among these recurs a period on, and with pieces as long
    as their distance, one does: (times - 1) * period - piece + 1 >= piece.

    A piece has few recurrences to look at: many of them so near mean that the piece has a period
    q of at most half of itself, as its overlapping occurrences do. A stretch of period q that is
    `times` * (length + q) long holds blocks in a row that were found before, with a multiple of q
    as their period. So q is more than about piece / (2 * times), since pieces start at
    2 * times * length: at most some 2 * times recurrences, each verified in O(times * window).
    With n / piece pieces a window, and windows that double, that is O(times^2 * n * log n).
    """
    piece = window if times > 2 else window // 2
    for anchor in range(0, len(text) - window - piece + 1, piece):
        wanted = text[anchor : anchor + piece]
        end = anchor + 2 * window - 1 + piece
        found = text.find(wanted, anchor + window, end)
        while found >= 0:
            yield anchor, found - anchor
            found = text.find(wanted, found + 1, end)


def _equal_around(codes: np.ndarray, anchor: int, period: int, times: int) -> int:
    """How many places in a row, `anchor` among them, equal the place `period` on.

    Counted as far as (times - 1) * period to each side, which is enough to decide.
    """
    reach = (times - 1) * period
    right = codes[anchor : anchor + reach + period]
    left = codes[max(0, anchor - reach) : anchor + period]
    ahead = np.flatnonzero(right[:-period] != right[period:])
    behind = np.flatnonzero(left[:-period] != left[period:])
    before = len(left) - period
    return int(ahead[0] if len(ahead) else len(right) - period) + (
        before - 1 - int(behind[-1]) if len(behind) else before
    )
