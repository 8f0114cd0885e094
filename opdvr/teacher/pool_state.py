"""What a pool of servers keeps about each server, teacher and sequence."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field

from opdvr.teacher.addresses import Address
from opdvr.teacher.engines import Sequence
from opdvr.teacher.scorer import Scorer

# Waits before a lost server is tried again: doubled each time, with some jitter.
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
# After a 429 without Retry-After, doubled while nothing gets through.
FIRST_BUSY_WAIT_S = 0.1
_JITTER = 0.25


@dataclass(eq=False)
class Job:
    """A sequence on its way."""

    sequence: Sequence
    failures: int = 0


@dataclass(eq=False)
class Server:
    """A server's state. `under_way` has its requests, at most `limit`, which 429 lowers."""

    scorer: Scorer
    limit: float
    up: bool = False
    lost_at: float = 0.0
    moved: int = 0
    reason: str = "not asked yet"
    not_before: float = 0.0
    failures: int = 0
    busy: int = 0
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: dict[asyncio.Task, tuple[Teacher, Job]] = field(default_factory=dict)

    @property
    def address(self) -> Address:
        """Where it is."""
        return self.scorer.address

    def take_fewer(self, now: float, retry_after_s: float) -> float:
        """After a 429: half as many at once, none for a while; returns until when, from `now`."""
        self.limit = max(1, len(self.under_way) // 2)
        wait = retry_after_s or min(LONGEST_WAIT_S, FIRST_BUSY_WAIT_S * 2**self.busy)
        self.busy = min(self.busy + 1, 16)
        self.not_before = now + wait
        return wait

    def take_more(self, most: int) -> None:
        """After a success: one more at once for every `limit` of them."""
        self.failures = self.busy = 0
        self.limit = min(most, self.limit + 1 / self.limit)

    def next_wait_s(self) -> float:
        """How long to leave it alone, longer each time until a request succeeds."""
        self.failures += 1
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self.failures - 1, 16))
        return wait * random.uniform(1 - _JITTER, 1 + _JITTER)


@dataclass(eq=False)
class Teacher:
    """The servers of one data source, and the work that waits for them."""

    source: str
    servers: list[Server]
    waiting: deque[Job] = field(default_factory=deque)
    pending: int = 0
    pending_since: float = 0.0
    last_success: float = 0.0
    all_down_since: float = 0.0

    def __str__(self) -> str:
        return f"the teacher of data_source {self.source!r}" if self.source else "the teacher"
