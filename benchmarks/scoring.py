"""Compares ways of scoring the same tokens: time, peak memory and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from benchmarks.measure import Result, interleaved, time_results, timed

# log-probs and, where asked for, entropies, in nats
Scores = tuple[torch.Tensor, torch.Tensor | None]
# Results of one pair of sides: (label, ours, peer's name, theirs)
Differences = Callable[[str, object, str, object], list[Result]]

PEAK = "peak memory"


def compare(
    case: str,
    sides: Mapping[str, Callable[[], object]],
    peak_mebibytes: Callable[[str], float],
    rounds: int,
    differences: Differences | None = None,
    held: tuple[str, float] | None = None,
) -> list[Result]:
    """Results of all sides by name; the first is ours, the others are its peers.

    differences: compares what two sides return; None takes Scores. held: a name and MiB that every
    side must hold at its peak; memory is also given beyond it.
    """
    memory = {name: peak_mebibytes(name) for name in sides}
    values = {name: side() for name, side in sides.items()}  # the warm-up, too
    seconds = interleaved({name: timed(side) for name, side in sides.items()}, rounds, warm_up=0)
    ours, *peers = sides
    label = f"{case}: {ours}"
    results = list(time_results(label, "time", seconds[ours], {p: seconds[p] for p in peers}))
    results += _memory(label, memory[ours], {peer: memory[peer] for peer in peers}, held)
    for peer in peers:
        results += (differences or _differences)(label, values[ours], peer, values[peer])
    for peer in peers:
        results += time_results(f"{case}: {peer}", "time", seconds[peer])
        results += _memory(f"{case}: {peer}", memory[peer], {}, held)
    return results


def _memory(
    label: str, mine: float, peers: Mapping[str, float], held: tuple[str, float] | None
) -> list[Result]:
    results = []
    kinds = [(PEAK, 0.0)]
    if held is not None:
        kinds.append((f"{PEAK} beyond {held[0]}", held[1]))
    for metric, less in kinds:
        value = mine - less
        if not peers:
            results.append(Result(label, metric, value, "MiB"))
        for peer, theirs in peers.items():
            results.append(Result(label, metric, value, "MiB", peer, (theirs - less) / value))
    return results


def _differences(label: str, ours: Scores, peer: str, theirs: Scores) -> list[Result]:
    results = []
    for what, mine, other in zip(("log-prob", "entropy"), ours, theirs, strict=True):
        if mine is not None and other is not None:
            largest = (mine - other).abs().max().item()
            results.append(Result(label, f"largest {what} difference", largest, "nats", peer))
    return results
