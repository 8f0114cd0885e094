"""results.json and results.md: what an evaluation found, by benchmark and over benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opdvr.eval import statistics
from opdvr.eval.grading import Benchmark
from opdvr.eval.statistics import MEAN

# Metrics that are averaged over benchmarks as they are.
_AVERAGED = ("avg", "solved_none", "solved_all", "tokens", "truncated", "no_box", "distinct_4gram")


def summarise(
    benchmarks: Sequence[Benchmark], judged: Mapping[str, np.ndarray] | None = None
) -> dict[str, dict[str, Any]]:
    """Each benchmark's metrics, and under `MEAN` their means over benchmarks.

    A benchmark's: problems, n, avg (mean of acc over samples, then problems) with avg_95 (bootstrap
    over problems), pass and maj by k, solved_none and solved_all (shares of problems), tokens (mean
    length), truncated and no_box (shares of samples), distinct_4gram. What cannot be computed is
    None.

    Args:
        benchmarks: verdicts of the rules.
        judged: by benchmark, acc [P, n] with what a judge accepted counted as right; adds
            avg_judge and avg_judge_95.
    """
    found = {benchmark.name: _metrics(benchmark) for benchmark in benchmarks}
    mean = _mean_over(list(found.values()))
    per_problem = [benchmark.acc.mean(axis=1) for benchmark in benchmarks]
    mean["avg_95"] = statistics.interval(statistics.bootstrap_of_benchmarks(per_problem))
    if judged is not None:
        with_judge = [judged[benchmark.name].mean(axis=1) for benchmark in benchmarks]
        for benchmark, values in zip(benchmarks, with_judge, strict=True):
            found[benchmark.name]["avg_judge"] = float(values.mean())
            found[benchmark.name]["avg_judge_95"] = statistics.interval(
                statistics.bootstrap_means(values)
            )
        mean["avg_judge"] = float(np.mean([values.mean() for values in with_judge]))
        mean["avg_judge_95"] = statistics.interval(statistics.bootstrap_of_benchmarks(with_judge))
    return {**found, MEAN: mean}


def _metrics(benchmark: Benchmark) -> dict[str, Any]:
    problems, n = benchmark.acc.shape
    none, every = statistics.solved_shares(benchmark.correct)
    sizes = statistics.sizes_up_to(n)
    majority = None
    if benchmark.votes is not None:
        majority = {
            k: statistics.majority_at_k(benchmark.acc, benchmark.votes, k) for k in sizes if k > 1
        }
    distinct = benchmark.distinct[~np.isnan(benchmark.distinct)]
    return {
        "problems": problems,
        "n": n,
        "avg": statistics.mean_at_n(benchmark.acc),
        "avg_95": statistics.interval(statistics.bootstrap_means(benchmark.acc.mean(axis=1))),
        "pass": {k: statistics.pass_at_k(benchmark.correct, k) for k in sizes},
        "maj": majority,
        "solved_none": none,
        "solved_all": every,
        "tokens": float(benchmark.tokens.mean()),
        "truncated": float(benchmark.truncated.mean()),
        "no_box": float(benchmark.no_box.mean()),
        "distinct_4gram": float(distinct.mean()) if len(distinct) else None,
    }


def _mean_over(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Every benchmark counts the same, however many problems it has."""
    mean: dict[str, Any] = {
        "problems": sum(m["problems"] for m in metrics),
        "n": metrics[0]["n"],
    }
    for name in _AVERAGED:
        values = [m[name] for m in metrics]
        mean[name] = None if None in values else float(np.mean(values))
    for name in ("pass", "maj"):
        found = [m[name] for m in metrics]
        mean[name] = None
        if None not in found:
            mean[name] = {k: float(np.mean([f[k] for f in found])) for k in found[0]}
    return mean


def render_table(results: Mapping[str, Mapping[str, Any]], judge_failures: int = 0) -> str:
    """A Markdown table, one line a benchmark; the mean comes last, where there is more than one.

    Where a judge failed on answers, its column has a star, and a note below the table their number.
    """
    n = results[MEAN]["n"]
    judged = "avg_judge" in results[MEAN]
    star = "*" if judged and judge_failures else ""
    header = ["benchmark", "problems", f"avg@{n}", "95 %"]
    header += [f"avg@{n} with judge{star}"] if judged else []
    header += [f"pass@{n}", f"maj@{n}"] if n > 1 else []
    header += ["solved none", "solved all", "tokens", "truncated", "no box", "distinct-4"]
    rows = [
        _row(name, found, n, judged)
        for name, found in results.items()
        if name != MEAN or len(results) > 2
    ]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [_line(header, widths), _line(["-" * width for width in widths], widths)]
    lines += [_line(row, widths) for row in rows]
    if star:
        answers = "1 answer" if judge_failures == 1 else f"{judge_failures:,} answers"
        lines += ["", rf"\* too low, perhaps: the judge gave no verdict on {answers}"]
    return "\n".join(lines)


def _row(name: str, found: Mapping[str, Any], n: int, judged: bool) -> list[str]:
    low, high = found["avg_95"]
    row = [name.replace("|", r"\|"), f"{found['problems']:,}", _share(found["avg"])]
    row.append(f"{low:.3f} to {high:.3f}")
    row += [_share(found["avg_judge"])] if judged else []
    if n > 1:
        row += [_share(found["pass"][n]), _share(found["maj"] and found["maj"][n])]
    row += [_share(found["solved_none"]), _share(found["solved_all"]), f"{found['tokens']:,.1f}"]
    row += [f"{found['truncated']:.1%}", f"{found['no_box']:.1%}", _share(found["distinct_4gram"])]
    return row


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if place == 0 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
