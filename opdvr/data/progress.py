"""A line on stderr now and then, where one would wait without a sign."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
# Seconds without a word that nobody minds; longer once it is known that something goes on.
_FIRST_S, _NEXT_S = 2.0, 10.0


class Progress:
    """Says after 2 s and then every 10 s how many items are done; nothing where it is quicker."""

    def __init__(self, total: int | None, what: str) -> None:
        self._total, self._what = total, what

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, one after the other."""
        due = time.monotonic() + _FIRST_S
        for done, item in enumerate(items):
            if time.monotonic() > due:
                due = time.monotonic() + _NEXT_S
                of = "" if self._total is None else f" of {self._total:,}"
                print(f"opdvr data: {done:,}{of} {self._what}", file=sys.stderr, flush=True)
            yield item
