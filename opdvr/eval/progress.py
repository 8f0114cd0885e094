"""How far the sampling is: one line refreshed on a terminal, one every ten seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from opdvr.report.progress import format_duration

PLAIN_EVERY_S = 10.0
TERMINAL_EVERY_S = 0.2
_ERASE = "\r\x1b[K"


class Progress:
    """Counts completions, and says rate and time left.

    Args:
        stream: where the line goes.
        total: completions of the whole evaluation.
        done: those that an earlier process made.
        clock: seconds from any start.
    """

    def __init__(
        self,
        stream: TextIO,
        total: int,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._stream = stream
        self._total = total
        self._before = done
        self._done = done
        self._tokens = 0
        self._clock = clock
        self._terminal = stream.isatty()
        self.start()

    def start(self) -> None:
        """Set the clock to now: what went before was no sampling."""
        self._started = self._shown = self._clock()

    def add(self, tokens: int) -> None:
        """One more completion, of so many tokens."""
        self._done += 1
        self._tokens += tokens
        every = TERMINAL_EVERY_S if self._terminal else PLAIN_EVERY_S
        now = self._clock()
        if now - self._shown >= every:
            self._shown = now
            self._show()

    def line(self) -> str:
        """done/total, share, samples and tokens a second since the start, time left."""
        seconds = max(self._clock() - self._started, 1e-9)
        made = self._done - self._before
        parts = [
            f"{self._done:,}/{self._total:,} samples",
            f"{self._done / self._total:.0%}",
            f"{made / seconds:,.1f} samples/s",
            f"{self._tokens / seconds:,.0f} tok/s",
        ]
        return " | ".join([*parts, self._rest(seconds, made)])

    def _rest(self, seconds: float, made: int) -> str:
        if made and self._done < self._total:
            left = (self._total - self._done) * seconds / made
            return f"{format_duration(left)} left"
        return f"{format_duration(seconds)} taken"

    def finish(self) -> None:
        """The last state, left standing."""
        self._show()
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()

    def _show(self) -> None:
        text = f"{_ERASE}{self.line()}" if self._terminal else f"{self.line()}\n"
        self._stream.write(text)
        self._stream.flush()
