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
TOTAL, CPU = "total", "CPU"


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
    """Seconds by phase; TOTAL from the first start to the last end, CPU the processor time of it.

    Processor time feels less of what else the machine does, and nothing of a GPU's work.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    _started: tuple[float, float] | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what runs inside, work queued on a GPU included."""
        start, start_cpu = _now()
        self._started = self._started or (start, start_cpu)
        yield
        end, end_cpu = _now()
        self.seconds[name] = self.seconds.get(name, 0.0) + end - start
        self.seconds[TOTAL] = end - self._started[0]
        self.seconds[CPU] = end_cpu - self._started[1]


def _now() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def timed(function: Callable[[], object]) -> Callable[[], Seconds]:
    """`function` as a side of `interleaved`, with one phase."""

    def side() -> Seconds:
        watch = Stopwatch()
        with watch.phase("call"):
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


def time_results(
    case: str,
    metric: str,
    ours: Sequence[Seconds],
    peers: Mapping[str, Sequence[Seconds]] | None = None,
) -> Iterator[Result]:
    """Wall and processor time of `ours`, once for each peer with the ratio peer / ours, or once."""
    for name, phase in ((metric, TOTAL), (f"{metric}, CPU", CPU)):
        seconds = phase_of(ours, phase)
        if not peers:
            yield over_rounds(case, name, "s", seconds)
        for peer, theirs in (peers or {}).items():
            pairs = zip(phase_of(theirs, phase), seconds, strict=True)
            ratios = [other / mine for other, mine in pairs]
            yield over_rounds(case, name, "s", seconds, peer, ratios)


def phase_of(seconds: Sequence[Seconds], phase: str = TOTAL) -> list[float]:
    """One phase's seconds of every round."""
    return [measured[phase] for measured in seconds]


def device() -> str:
    """Where models run here: "cuda" or "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


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
