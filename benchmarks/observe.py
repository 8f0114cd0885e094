"""What looking at single tokens costs a training step: anatomy, quantiles, traced responses, files.

Two students begin equal and train on one fixed batch of the embedded task; one step of each is
teacher scoring and the update, without generation and verdicts, so that the cost is measured
against less than a whole step. The observed one also writes what a run writes, every step.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import step
from benchmarks.measure import Result, Stopwatch, interleaved, note, over_rounds, time_results

WARM_UP_ROUNDS = 2
PLAIN, OBSERVED, WRITING = "not observed", "observed", "metrics and files"


def add_options(parser: argparse.ArgumentParser) -> None:
    """This benchmark's options."""
    step.add_options(parser)
    parser.add_argument("--traced", type=int, default=4, help="responses written token by token")


def run(options: argparse.Namespace) -> list[Result]:
    """Seconds of both sides, the ratio plain / observed, and what the trainer's part takes.

    Raises:
        ValueError: rows that do not divide into groups or micro-batches.
    """
    rounds = options.rounds or 21
    if options.quick:
        rounds, options.rows = 2, 2 * options.group_size
    # verl takes ten seconds to import, which --help need not wait for
    from benchmarks import task_batch, verl_workers
    from opdvr.integration.options import OpdvrOptions

    batch = task_batch.sample(options.student, options.rows, options.group_size)
    note(f"{options.rows} responses, {batch.tokens} tokens")
    verl_workers.start_process(OpdvrOptions.head_chunk_tokens)
    micro_batches = verl_workers.MicroBatches(options.max_token_len, options.micro_batch)
    teacher = verl_workers.training_worker(options.teacher, micro_batches, forward_only=True)
    with tempfile.TemporaryDirectory() as folder:
        sides = _sides(options, batch, teacher, micro_batches, Path(folder))
        seconds = interleaved(sides, rounds, WARM_UP_ROUNDS)
    results = list(time_results(OBSERVED, "step", seconds[OBSERVED], {PLAIN: seconds[PLAIN]}))
    results += time_results(PLAIN, "step", seconds[PLAIN])
    written = [measured[WRITING] for measured in seconds[OBSERVED]]
    return [*results, over_rounds(OBSERVED, WRITING, "s", written)]


def _sides(options: argparse.Namespace, batch, teacher, micro_batches, folder: Path) -> dict:
    """Name to step, students loaded."""
    from transformers import AutoTokenizer

    from benchmarks import verl_workers
    from benchmarks.observe_step import Observing
    from benchmarks.step_sides import TEACHER, UPDATE, Sides
    from opdvr.core import MethodSpec
    from opdvr.integration.engine import ScoringEngine
    from opdvr.integration.loss import ForwardLoss
    from opdvr.integration.options import OpdvrOptions

    made = Sides(batch, options.student, teacher, micro_batches)
    tokenizer = AutoTokenizer.from_pretrained(options.student)
    observing = Observing(batch, tokenizer, options.traced, folder)

    def side(observes: bool):
        loss = partial(ForwardLoss, MethodSpec(), "update", observes=observes)
        worker = made._worker(ScoringEngine, loss)

        def measured():
            watch, tensors = Stopwatch(), dict(made._tensors)
            with watch.phase(TEACHER):
                tensors |= made._teacher_scores()
            with watch.phase(UPDATE):
                if observes:
                    tensors |= observing.slots()
                metrics = verl_workers.update_metrics(
                    worker,
                    tensors,
                    log_entropy=OpdvrOptions.log_entropy,
                    advantages_given=False,
                )
            if observes:
                with watch.phase(WRITING):
                    observing.write(metrics)
            return watch.seconds

        return measured

    return {PLAIN: side(False), OBSERVED: side(True)}
