"""Teacher engines: vLLM read as packed tensors against dictionaries, overlap, agreement.

`throughput`: response tokens scored a second, the same vLLM engine asked through ours and through
its own `prompt_logprobs`. `overlap`: a rollout whose responses end at different times, the teacher
asked as they end against after the last. `agreement`: the embedded task's teacher on the same
tokens, each engine against plain transformers in float32. `failover`: two servers, one killed in
the middle of a step and started again (`--quick` leaves servers out).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import engine_agreement, engine_failover, engine_overlap
from benchmarks.engine_sides import OURS, PEERS, Scorers, random_sequences
from benchmarks.measure import (
    CPU,
    TOTAL,
    Result,
    Seconds,
    device,
    interleaved,
    note,
    over_rounds,
    phase_of,
    timed,
)
from benchmarks.memory import peak_mebibytes
from benchmarks.random_model import Shape, write_random_model

WARM_UP_ROUNDS = 1
PARTS = ("throughput", "overlap", "agreement", "failover")


def add_options(parser: argparse.ArgumentParser) -> None:
    """This benchmark's options."""
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--k", default="0,64", help="how many of the teacher's top ids")
    parser.add_argument("--rows", type=int, default=4, help="responses a call")
    parser.add_argument("--prompt", type=int, default=32, help="tokens")
    parser.add_argument("--response", type=int, default=224, help="tokens")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))


def run(options: argparse.Namespace) -> list[Result]:
    """Results of the parts asked for."""
    rounds = options.rounds or 3
    if options.quick:
        rounds, options.rows, options.response = 2, 4, 32
        options.vocabulary, options.hidden, options.layers, options.k = 2048, 64, 2, "4"
    parts = options.parts.split(",")
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise ValueError(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        shape = Shape(options.vocabulary, options.hidden, options.layers)
        if "throughput" in parts:
            model = write_random_model(Path(folder), "teacher", shape)
            for k in map(int, options.k.split(",")):
                results += _throughput(options, model, k, rounds)
        if "overlap" in parts:
            results += engine_overlap.run(Path(folder), options.quick, options.rounds)
        if "agreement" in parts:
            results += engine_agreement.run(options.quick)
        if "failover" in parts and not options.quick:
            results += engine_failover.run()
    return results


def _throughput(options: argparse.Namespace, model: str, top_k: int, rounds: int) -> list[Result]:
    case = f"K={top_k}, {options.rows} x {options.response} tokens"
    setting = {
        "model": model,
        "top_k": top_k,
        "max_tokens": options.prompt + options.response,
        "dtype": options.dtype,
    }
    rows = {key: getattr(options, key) for key in ("rows", "prompt", "response", "vocabulary")}
    seconds, difference = _timed_ways(setting, rows, rounds)
    results = []
    tokens = options.rows * options.response
    for peer in PEERS:
        for phase, unit in ((TOTAL, "tokens/s"), (CPU, "tokens/CPU s")):
            ours, theirs = (phase_of(seconds[name], phase) for name in (OURS, peer))
            ratios = [other / mine for mine, other in zip(ours, theirs, strict=True)]
            speeds = [tokens / mine for mine in ours]
            results.append(over_rounds(case, "scored", unit, speeds, peer, ratios))
        results.append(Result(case, f"largest difference to {peer}", difference[peer], "nats"))
    if options.quick:  # a process each
        return results
    peaks = {
        way: peak_mebibytes("benchmarks.engine:prepare", way=way, setting=setting, rows=rows)
        for way in (OURS, *PEERS)
    }
    for peer in PEERS:
        ratio = peaks[peer] / peaks[OURS]
        results.append(Result(case, "peak memory", peaks[OURS], "MiB", peer, ratio))
    return results


def _timed_ways(
    setting: dict, rows: dict, rounds: int
) -> tuple[dict[str, list[Seconds]], dict[str, float]]:
    """Seconds of every way, and each peer's largest difference from ours in the log-probs."""
    scorers = Scorers(device=device(), **setting)
    sequences = random_sequences(seed=0, **rows)
    ours = scorers.ways[OURS](sequences)
    difference = {}
    for peer in PEERS:
        theirs = scorers.ways[peer](sequences)
        difference[peer] = max(
            float(np.abs(mine.log_probs - other.log_probs).max())
            for mine, other in zip(ours, theirs, strict=True)
        )
    sides = {name: timed(lambda way=way: way(sequences)) for name, way in scorers.ways.items()}
    note(f"throughput with top {setting['top_k']}")
    seconds = interleaved(sides, rounds, WARM_UP_ROUNDS)
    scorers.close()
    return seconds, difference


def prepare(way: str, setting: dict, rows: dict) -> object:
    """For benchmarks.memory: one call of a way, on an engine that has scored once."""
    scorers = Scorers(device=device(), **setting)
    few = dict(rows, rows=1)
    scorers.ways[way](random_sequences(seed=1, **few))
    sequences = random_sequences(seed=0, **rows)
    return lambda: scorers.ways[way](sequences)
