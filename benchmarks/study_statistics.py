"""Means over seeds and paired differences, with 95 % intervals of Student's t distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy.stats import t as student_t

_LEVEL = 0.95


class Interval(NamedTuple):
    """mean of n values and the half-width of its 95 % interval; NaN for a single value."""

    mean: float
    half_width: float
    n: int


def t_interval(values: Sequence[float]) -> Interval:
    """Mean +- t(0.975, n-1) s / sqrt(n), s with n-1.

    Values 1, 2, 3: mean 2, s 1, t(0.975, 2) = 4.3027, so 2 +- 2.4841.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("an interval needs a value: run the study first")
    n = len(values)
    if n == 1:
        return Interval(values[0], math.nan, 1)
    error = statistics.stdev(values) / math.sqrt(n)
    return Interval(statistics.fmean(values), student_t.ppf((1 + _LEVEL) / 2, n - 1) * error, n)


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """Interval of ours - theirs over the seeds (keys) that both have; None where there are none."""
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    return t_interval([ours[seed] - theirs[seed] for seed in shared])
