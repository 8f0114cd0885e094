"""What every benchmark shares: a clock, interleaved rounds, results and their table.

A ratio is peer / ours, so above 1 means that ours took less. It is the median over rounds of the
ratio within a round: both sides of a round meet the same load of the machine, two rounds may not.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Result:
    """One measured figure.

    case, metric: what was measured. value, low, high: median, least and most over rounds, in
    `unit`. peer: whom it is compared with, or None. ratio, ratio_low, ratio_high: peer / ours, the
    same way. Where there is one reading (memory, differences) low and high are the value.
    """

    case: str
    metric: str
    value: float
    unit: str
    peer: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None

    def __post_init__(self) -> None:
        for missing, whole in (
            ("low", "value"),
            ("high", "value"),
            ("ratio_low", "ratio"),
            ("ratio_high", "ratio"),
        ):
            if getattr(self, missing) is None:
                object.__setattr__(self, missing, getattr(self, whole))


@dataclass
class Stopwatch:
    """Seconds by phase; `total` is from the first start to the last end."""

    seconds: dict[str, float] = field(default_factory=dict)
    _started: float | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what runs inside, work queued on a GPU included."""
        start = _now()
        self._started = start if self._started is None else self._started
        yield
        end = _now()
        self.seconds[name] = self.seconds.get(name, 0.0) + end - start
        self.seconds["total"] = end - self._started


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(function: Callable[[], object]) -> Callable[[], Seconds]:
    """`function` as a side of `interleaved`, with one phase: total."""

    def side() -> Seconds:
        watch = Stopwatch()
        with watch.phase("total"):
            function()
        return watch.seconds

    return side


def interleaved(
    sides: Mapping[str, Callable[[], Seconds]], rounds: int, warm_up: int
) -> dict[str, list[Seconds]]:
    """Run every side once a round, in an order that rotates; seconds by phase of each round.

    The first `warm_up` rounds are run and dropped.
    """
    seconds: dict[str, list[Seconds]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(warm_up + rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            measured = sides[name]()
            if number >= warm_up:
                seconds[name].append(measured)
        note(f"round {number + 1} of {warm_up + rounds}")
    return seconds


def over_rounds(
    case: str,
    metric: str,
    unit: str,
    values: Sequence[float],
    peer: str | None = None,
    ratios: Sequence[float] | None = None,
) -> Result:
    """A result from one value (and ratio) a round."""
    spread = {"low": min(values), "high": max(values)}
    if ratios is not None:
        spread |= {
            "ratio": statistics.median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
        }
    return Result(case, metric, statistics.median(values), unit, peer=peer, **spread)


def ratios_of(
    peer: Sequence[Seconds], ours: Sequence[Seconds], phase: str = "total"
) -> list[float]:
    """peer / ours of every round."""
    return [theirs[phase] / mine[phase] for theirs, mine in zip(peer, ours, strict=True)]


def phase_of(seconds: Sequence[Seconds], phase: str = "total") -> list[float]:
    """One phase's seconds of every round."""
    return [measured[phase] for measured in seconds]


def note(text: str) -> None:
    """Progress, kept out of the table's stream."""
    print(text, file=sys.stderr, flush=True)


def table(results: Sequence[Result]) -> str:
    """Plain-text table: median and [least..most] over rounds."""
    rows = [("case", "metric", "value", "unit", "ratio", "peer")]
    for result in results:
        ratio = ""
        if result.ratio is not None:
            ratio = _with_spread(result.ratio, result.ratio_low, result.ratio_high) + "x"
        value = _with_spread(result.value, result.low, result.high)
        rows.append((result.case, result.metric, value, result.unit, ratio, result.peer or ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _with_spread(value: float, low: float, high: float) -> str:
    text = _short(value)
    return text if low == high else f"{text} [{_short(low)}..{_short(high)}]"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
