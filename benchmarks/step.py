"""One training step by phase: ours, single forward and recompute, against verl's own GRPO step.

Every side has its own student; all begin equal and train on one fixed batch of the embedded task.
Generation and verdicts are the same for all and made once, outside the clock.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import opdvr.demo
from benchmarks.measure import (
    CPU,
    TOTAL,
    Result,
    Seconds,
    interleaved,
    note,
    over_rounds,
    phase_of,
    time_results,
)
from opdvr.integration.options import OpdvrOptions

WARM_UP_ROUNDS = 2  # the first builds optimizer states, the second is the first like all others
_MODELS = Path(opdvr.demo.__file__).parent / "models"


def add_options(parser: argparse.ArgumentParser) -> None:
    """This benchmark's options."""
    parser.add_argument("--rows", type=int, default=128, help="responses a step")
    parser.add_argument("--group-size", type=int, default=8, help="responses a prompt")
    parser.add_argument("--max-token-len", type=int, default=1024, help="tokens a micro-batch")
    parser.add_argument("--micro-batch", type=int, help="rows a micro-batch, instead of tokens")
    parser.add_argument("--student", default=str(_MODELS / "student"))
    parser.add_argument("--teacher", default=str(_MODELS / "teacher-faulty"))


def run(options: argparse.Namespace) -> list[Result]:
    """Seconds by phase, tokens a second, ratios to verl's GRPO step, and gradient norms.

    Raises:
        ValueError: rows that do not divide into groups or micro-batches.
    """
    rounds = options.rounds or 11
    if options.quick:
        rounds, options.rows = 2, 2 * options.group_size
    for name in ("group_size", "micro_batch"):
        size = getattr(options, name)
        if size is not None and options.rows % size:
            flag = name.replace("_", "-")
            raise ValueError(f"--rows {options.rows} is no multiple of --{flag} {size}: change one")
    # verl takes ten seconds to import, which --help need not wait for
    from benchmarks import task_batch, verl_workers
    from benchmarks.step_sides import Sides

    batch = task_batch.sample(options.student, options.rows, options.group_size)
    correct = (batch.scores > 0).float().mean().item()
    note(f"{options.rows} responses, {batch.tokens} tokens, {correct:.0%} correct")
    verl_workers.start_process(OpdvrOptions.head_chunk_tokens)
    micro_batches = verl_workers.MicroBatches(options.max_token_len, options.micro_batch)
    teacher = verl_workers.training_worker(options.teacher, micro_batches, forward_only=True)
    sides = Sides(batch, options.student, teacher, micro_batches)
    seconds = interleaved(sides.all(), rounds, WARM_UP_ROUNDS)
    return _time_results(seconds, batch.tokens) + _norm_results(sides.norms)


def _time_results(seconds: dict[str, list[Seconds]], tokens: int) -> list[Result]:
    from benchmarks.step_sides import VERL, VERL_FLOAT32

    results, references = [], (VERL, VERL_FLOAT32)
    for name, rounds in seconds.items():
        for phase in rounds[0]:
            if phase not in (TOTAL, CPU):
                results.append(over_rounds(name, phase, "s", phase_of(rounds, phase)))
        peers = {} if name in references else {peer: seconds[peer] for peer in references}
        results += time_results(name, "step", rounds, peers)
        rates = [tokens / total for total in phase_of(rounds)]
        results.append(over_rounds(name, "throughput", "tokens/s", rates))
    return results


def _norm_results(norms: dict[str, list[float]]) -> list[Result]:
    """Gradient norms of the first step, and how far single forward ever is from recompute."""
    from benchmarks.step_sides import RECOMPUTE, SINGLE

    results = [Result(name, "gradient norm", values[0], "") for name, values in norms.items()]
    pairs = zip(norms[SINGLE], norms[RECOMPUTE], strict=True)
    largest = max(abs(single - recompute) for single, recompute in pairs)
    metric = "largest gradient norm difference"
    return [*results, Result(SINGLE, metric, largest, "", RECOMPUTE)]
