"""Paired differences of two sides, each value a problem's or a step's: figures and their table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opdvr.eval import statistics
from opdvr.eval.statistics import MEAN


def rows(values: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """By benchmark, and over benchmarks as `MEAN`, what two sides come to.

    Args:
        values: by benchmark [P, 2], each problem's average on the one side and on the other.

    Returns:
        problems, before and after (averages), difference, difference_95 (percentile interval of a
        paired bootstrap over problems), p (two-sided).
    """
    found = {}
    for name, pairs in values.items():
        drawn = statistics.bootstrap_means(pairs[:, 1] - pairs[:, 0])
        found[name] = _figures(len(pairs), *pairs.mean(axis=0), drawn)
    before, after = np.mean([pairs.mean(axis=0) for pairs in values.values()], axis=0)
    differences = [pairs[:, 1] - pairs[:, 0] for pairs in values.values()]
    drawn = statistics.bootstrap_of_benchmarks(differences)
    found[MEAN] = _figures(sum(map(len, differences)), before, after, drawn)
    return found


def _figures(problems: int, before: float, after: float, drawn: np.ndarray) -> dict[str, Any]:
    return {
        "problems": problems,
        "before": float(before),
        "after": float(after),
        "difference": float(after - before),
        "difference_95": statistics.interval(drawn),
        "p": statistics.two_sided_p(drawn),
    }


def table(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The lines of a table of `rows`; the mean only where there are several benchmarks."""
    shown = {name: row for name, row in found.items() if name != MEAN or len(found) > 2}
    width = max(len("benchmark"), *map(len, shown))
    lines = [
        f"| {'benchmark':<{width}} | problems |      A |      B |  B - A | 95 %             |"
        "      p |",
        f"| {'-' * width} | -------- | ------ | ------ | ------ | ---------------- | ------ |",
    ]
    for name, row in shown.items():
        low, high = row["difference_95"]
        lines.append(
            f"| {name:<{width}} | {row['problems']:>8,} | {row['before']:6.3f} | "
            f"{row['after']:6.3f} | {row['difference']:+6.3f} | {low:+.3f} to {high:+.3f} | "
            f"{row['p']:6.4f} |"
        )
    return lines
