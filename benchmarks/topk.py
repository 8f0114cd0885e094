"""A step of top-k distillation against a step of sampled-token distillation, by candidate set.

Two models of one shape, a backbone of about 2.4 times the output layer's size (as in a model of 0.6
billion parameters), random weights; one fixed batch, one mini-batch a step, rewards gated.
Generation and verdicts are outside the clock. Every side has its own student, all begin equal.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.measure import (
    CPU,
    TOTAL,
    Result,
    Seconds,
    Stopwatch,
    interleaved,
    note,
    over_rounds,
    phase_of,
    time_results,
)
from benchmarks.random_model import Shape, write_random_model

WARM_UP_ROUNDS = 1
SCORING, UPDATE = "scoring passes", "update"
SAMPLED = "K=0"
PROMPT_WIDTH = 32


def add_options(parser: argparse.ArgumentParser) -> None:
    """This benchmark's options."""
    parser.add_argument("--k", default="4,64", help="sizes K of the candidate sets")
    parser.add_argument("--strategies", default="only_tch,only_stu,union")
    parser.add_argument("--rows", type=int, default=4, help="responses a step")
    parser.add_argument("--response-width", type=int, default=96)
    parser.add_argument("--vocabulary", type=int, default=32_768)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)


def run(options: argparse.Namespace) -> list[Result]:
    """Seconds by phase, and K=0's time / a side's: below 1 where candidates cost time."""
    rounds, shape = options.rounds or 5, Shape(options.vocabulary, options.hidden, options.layers)
    if options.quick:
        rounds, shape = 2, Shape(vocabulary=512, hidden=64, layers=1)
    # verl takes ten seconds to import, which --help need not wait for
    from benchmarks import verl_workers
    from opdvr.core import MethodSpec

    specs = {SAMPLED: MethodSpec()}
    for k in map(int, options.k.split(",")):
        for strategy in options.strategies.split(","):
            specs[f"K={k} {strategy}"] = MethodSpec(log_prob_top_k=k, top_k_strategy=strategy)
    batch = _batch(options.rows, options.response_width, shape.vocabulary)
    verl_workers.start_process(None)
    micro_batches = verl_workers.MicroBatches(rows=options.rows)
    with tempfile.TemporaryDirectory() as folder:
        student, teacher_folder = (write_random_model(Path(folder), name, shape) for name in "st")
        teacher = verl_workers.training_worker(teacher_folder, micro_batches, forward_only=True)
        sides = {
            name: _side(spec, student, teacher, micro_batches, batch, shape.vocabulary)
            for name, spec in specs.items()
        }
    note(f"{options.rows} x {PROMPT_WIDTH + options.response_width} tokens, {shape}")
    return _results(interleaved(sides, rounds, WARM_UP_ROUNDS))


def _results(seconds: dict[str, list[Seconds]]) -> list[Result]:
    results = []
    for name, rounds in seconds.items():
        for phase in rounds[0]:
            if phase not in (TOTAL, CPU):
                results.append(over_rounds(name, phase, "s", phase_of(rounds, phase)))
        peers = {} if name == SAMPLED else {SAMPLED: seconds[SAMPLED]}
        results += time_results(name, "step", rounds, peers)
    return results


def _side(
    spec: object,
    student: str,
    teacher: object,
    micro_batches: object,
    batch: dict[str, torch.Tensor],
    vocabulary: int,
) -> Callable[[], Seconds]:
    from verl import DataProto

    from benchmarks import verl_workers
    from opdvr.integration import scoring
    from opdvr.integration.loss import ForwardLoss

    rows = len(batch["input_ids"])
    worker = verl_workers.training_worker(student, micro_batches)
    worker.set_loss_fn(ForwardLoss(spec, "update", verl_workers.actor_config(rows, 1)))
    scorer = verl_workers.scorer(spec, "update", worker, teacher, vocabulary)
    options = {}
    if spec.log_prob_top_k:
        options = {"strategy": spec.top_k_strategy, "vocabulary": vocabulary}

    def step() -> Seconds:
        watch = Stopwatch()
        data = DataProto.from_dict(tensors=dict(batch))
        with watch.phase(SCORING):
            data = data.union(scorer.compute_rm_score(data))
        tensors = {key: data.batch[key] for key in data.batch.keys()}
        overlap = {}
        if options and scoring.STUDENT_TOP_IDS not in tensors:
            overlap = {"top_k": spec.log_prob_top_k}
        with watch.phase(UPDATE):
            verl_workers.update(
                worker, tensors, log_entropy=True, advantages_given=False, **options, **overlap
            )
        return watch.seconds

    return step


def _batch(rows: int, response_width: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """verl's layout, full width, with what the update reads beside the scores."""
    generator = torch.Generator().manual_seed(0)
    width = PROMPT_WIDTH + response_width
    ids = torch.randint(2, vocabulary, (rows, width), generator=generator)
    ones, zeros = torch.ones(rows), torch.zeros(rows, response_width)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(width).expand(rows, -1).contiguous(),
        "response_mask": torch.ones(rows, response_width, dtype=torch.long),
        "prompts": ids[:, :PROMPT_WIDTH],
        "responses": ids[:, PROMPT_WIDTH:],
        "rollout_log_probs": zeros,
        "old_log_probs": zeros,
        "advantages": zeros,
        "correct": torch.arange(rows) % 2 == 0,
        "reward_scale": ones,
        "outcome": 0 * ones,
        "group_correct_frac": ones / 2,
        "sample_index": torch.arange(rows),
    }
