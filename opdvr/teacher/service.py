"""A teacher engine in a process of its own: takes sequences, keeps their scores until collected.

Made to be a Ray actor with several threads (so that `submit` gets through while `collect` waits),
but knows nothing of Ray.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from opdvr.teacher import ENGINES
from opdvr.teacher.engines import (
    Scores,
    Sequence,
    TeacherError,
    TeacherSettings,
    Wanted,
    take_announced,
)

# Fields of Scores that travel packed, rows of all sequences one after the other.
SCORE_FIELDS = ("log_probs", "entropy", "top_ids", "top_log_probs", "candidate_log_probs")
# Threads of the actor: two that collect or wait, the rest for what comes in meanwhile.
SERVICE_THREADS = 8


@dataclass(frozen=True)
class Collected:
    """Scores of the sequences asked for, in the order of the keys.

    Attributes:
        scores: field of `Scores` -> its rows for all sequences, [sum of T, ...]; fields that the
            run does not want are left out.
        busy_s: seconds since the last collection in which the engine had work.
        hidden_s: the part of busy_s before anybody asked: nobody waited for it.
    """

    scores: dict[str, np.ndarray]
    busy_s: float
    hidden_s: float


class BusyClock:
    """Adds up the seconds in which there is work in hand."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._pending = 0
        self._since = 0.0
        self._total = 0.0

    def begin(self, count: int) -> None:
        """`count` more things to do."""
        if self._pending == 0:
            self._since = self._now()
        self._pending += count

    def end(self) -> None:
        """One thing is done."""
        self._pending -= 1
        if self._pending == 0:
            self._total += self._now() - self._since

    def seconds(self) -> float:
        """Busy so far, the stretch under way included."""
        return self._total + (self._now() - self._since if self._pending else 0.0)


class ScoringService:
    """One engine, its unclaimed scores, and the clock that says what was hidden."""

    def __init__(self, engine: str, settings: TeacherSettings, wanted: Wanted):
        self._changed = threading.Condition()
        self._scores: dict[int, Scores] = {}
        self._clock = BusyClock()
        self._collected_s = 0.0
        self._failure: BaseException | None = None
        module, name = ENGINES[engine].factory.split(":")
        factory = getattr(importlib.import_module(module), name)
        try:
            self._engine = factory(settings, wanted, self._done, self._failed)
        except Exception as error:  # raised by `ready`: out of here Ray would bury it in its own
            self._failed(error)

    def ready(self) -> None:
        """Returns once the engine is there.

        Raises:
            TeacherError: it did not come up, as it says why.
        """
        self._require_alive()

    def submit(self, sequences: list[Sequence]) -> None:
        """Take on more work and return.

        Raises:
            TeacherError, or whatever ended the engine.
        """
        with self._changed:
            self._require_alive()
            self._clock.begin(len(sequences))
        try:
            self._engine.add(sequences)
        except BaseException as error:  # else whoever waits for these would wait for ever
            self._failed(error)
            raise

    def collect(self, keys: list[int]) -> Collected:
        """Wait for the scores of `keys`, submitted before or still on their way, and forget them.

        Raises:
            TeacherError, or whatever ended the engine.
        """
        with self._changed:
            hidden_s = self._clock.seconds() - self._collected_s
            self._changed.wait_for(lambda: self._failure or all(k in self._scores for k in keys))
            self._require_alive()
            found = [self._scores.pop(key) for key in keys]
            busy_s = self._clock.seconds() - self._collected_s
            self._collected_s += busy_s
        return Collected(pack(found), busy_s, hidden_s)

    def news(self) -> list[str]:
        """What the engine has announced since the last time, for the person who waits."""
        return take_announced()

    def sleep(self) -> None:
        """Give device memory back."""
        self._ask(self._engine.sleep)

    def wake(self) -> None:
        """Take it again."""
        self._ask(self._engine.wake)

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    def _ask(self, action: Callable[[], None]) -> None:
        self._require_alive()
        try:
            action()
        except Exception as error:
            self._failed(error)
            self._require_alive()

    def _done(self, key: int, scores: Scores) -> None:
        with self._changed:
            self._scores[key] = scores
            self._clock.end()
            self._changed.notify_all()

    def _failed(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _require_alive(self) -> None:
        if isinstance(self._failure, TeacherError):
            raise self._failure
        if self._failure is not None:
            raise TeacherError(
                f"the teacher's engine ended: {type(self._failure).__name__}: {self._failure}"
            ) from self._failure


def pack(scores: list[Scores]) -> dict[str, np.ndarray]:
    """Fields of all sequences one after the other; fields that none has are left out."""
    packed = {}
    for name in SCORE_FIELDS:
        parts = [getattr(score, name) for score in scores]
        if parts and parts[0] is not None:
            packed[name] = np.concatenate(parts)
    return packed
