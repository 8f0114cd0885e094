"""Compares ways of scoring the same tokens: time, peak memory and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from benchmarks.measure import Result, interleaved, time_results, timed

# log-probs and, where asked for, entropies, in nats
Scores = tuple[torch.Tensor, torch.Tensor | None]


def compare(
    case: str,
    sides: Mapping[str, Callable[[], Scores]],
    peak_mebibytes: Callable[[str], float],
    rounds: int,
) -> list[Result]:
    """Results of all sides by name; the first is ours, the others are its peers."""
    memory = {name: peak_mebibytes(name) for name in sides}
    values = {name: side() for name, side in sides.items()}  # the warm-up, too
    seconds = interleaved({name: timed(side) for name, side in sides.items()}, rounds, warm_up=0)
    ours, *peers = sides
    label = f"{case}: {ours}"
    results = list(time_results(label, "time", seconds[ours], {p: seconds[p] for p in peers}))
    for peer in peers:
        ratio = memory[peer] / memory[ours]
        results.append(Result(label, "peak memory", memory[ours], "MiB", peer, ratio))
        results += _differences(label, values[ours], peer, values[peer])
    for peer in peers:
        results += time_results(f"{case}: {peer}", "time", seconds[peer])
        results.append(Result(f"{case}: {peer}", "peak memory", memory[peer], "MiB"))
    return results


def _differences(label: str, ours: Scores, peer: str, theirs: Scores) -> list[Result]:
    results = []
    for what, mine, other in zip(("log-prob", "entropy"), ours, theirs, strict=True):
        if mine is not None and other is not None:
            largest = (mine - other).abs().max().item()
            results.append(Result(label, f"largest {what} difference", largest, "nats", peer))
    return results
