"""How far a rollout is, and how long it has taken over all the processes that worked on it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from opdvr.eval.jsonl import read_object, write_whole
from opdvr.eval.progress import Progress

SECONDS_FILE = "seconds.json"
# A kill loses the account of so much time at most.
_SAVED_EVERY_S = 10.0


class RolloutProgress(Progress):
    """Counts slots and attempts, and says rate and time left.

    Args:
        stream: where the line goes.
        total: slots of the whole rollout.
        accepted: slots that earlier processes filled.
        exhausted: slots that they gave up.
        rejected: attempts that they rejected.
        clock: seconds from any start.
    """

    def __init__(
        self,
        stream: TextIO,
        total: int,
        accepted: int = 0,
        exhausted: int = 0,
        rejected: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._accepted, self._exhausted, self._rejected = accepted, exhausted, rejected
        super().__init__(stream, total, accepted + exhausted, clock)

    def count(self, accepted: bool, settled: bool, tokens: int) -> None:
        """One more attempt; `settled`: its slot gets no other."""
        self._accepted += accepted
        self._rejected += not accepted
        self._exhausted += settled and not accepted
        self._done += settled - 1  # `add` counts one
        self.add(tokens)

    def line(self) -> str:
        """accepted/slots, what was rejected, tokens a second since the start, time left."""
        seconds = max(self._clock() - self._started, 1e-9)
        made = self._done - self._before
        parts = [
            f"{self._accepted:,}/{self._total:,} accepted",
            f"{self._rejected:,} rejected",
            f"{self._tokens / seconds:,.0f} tok/s",
        ]
        if self._exhausted:
            parts.insert(2, f"{self._exhausted:,} given up")
        return " | ".join([*parts, self._rest(seconds, made)])


class Stopwatch:
    """Seconds of sampling, those of earlier processes included, kept in seconds.json.

    Raises:
        ValueError: that file is damaged.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic):
        self._path = folder / SECONDS_FILE
        self._clock = clock
        self._before = 0.0
        if self._path.exists():
            remedy = "take it away; only the rollout's time is in it"
            seconds = read_object(self._path, ("seconds",), remedy)["seconds"]
            if not isinstance(seconds, int | float):
                raise ValueError(f"{self._path} is damaged (no number of seconds); {remedy}")
            self._before = float(seconds)
        self._started: float | None = None
        self._saved = 0.0

    def start(self) -> None:
        """From now on time counts."""
        self._started = self._saved = self._clock()

    def seconds(self) -> float:
        """Seconds so far; from the last `save` with `now` on they stand still."""
        return self._before + (0.0 if self._started is None else self._clock() - self._started)

    def save(self, now: bool = False) -> None:
        """Write them down, if it is time or `now`."""
        if self._started is None or not (now or self._clock() - self._saved > _SAVED_EVERY_S):
            return
        self._saved = self._clock()
        if now:
            self._before, self._started = self.seconds(), None
        write_whole(self._path, json.dumps({"seconds": round(self.seconds(), 1)}) + "\n")
