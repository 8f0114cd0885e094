"""verl's validation statistics, vectorised: the same numbers, minutes sooner; and their record.

verl draws 1,000 bootstrap samples in a Python loop for each prompt, variable and subset size. The
draws depend on the number of responses alone, so they are made once and shared by all prompts.

The record keeps each problem's accuracy, so that two runs can be compared problem by problem.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
import verl.trainer.ppo.ray_trainer as ray_trainer
from verl import DataProto

from opdvr.report.step_records import VALIDATION_NAME
from opdvr.report.validations import Response, intervals, problem_key, validation_record

BOOTSTRAP_SAMPLES = 1000  # verl's
VOTE = "pred"  # the variable that majority votes are taken on

Metrics = dict[str, dict[str, dict[str, float]]]


def process_validation_metrics(
    data_sources: list[str],
    sample_uids: list[str],
    infos_dict: dict[str, list[Any]],
    seed: int = 42,
) -> Metrics:
    """{data source: {variable: {mean@n, std@n, best@k/mean, worst@k/mean, maj@k/mean, ...}}}.

    Means over the prompts of a data source; k runs over 2, 4, ... and n. A variable that is not a
    number on every row gets none.
    """
    rows: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, (source, uid) in enumerate(zip(data_sources, sample_uids, strict=True)):
        rows[source][uid].append(index)
    numeric = {
        name: np.asarray(values, dtype=np.float64)
        for name, values in infos_dict.items()
        if values and all(isinstance(value, Number) for value in values)
    }
    votes = None
    if VOTE in infos_dict:
        votes = np.unique([str(vote) for vote in infos_dict[VOTE]], return_inverse=True)[1]
    return {
        source: _source_metrics(list(by_uid.values()), numeric, votes, seed)
        for source, by_uid in rows.items()
    }


def _source_metrics(
    prompts: list[list[int]], numeric: dict[str, np.ndarray], votes: np.ndarray | None, seed: int
) -> dict[str, dict[str, float]]:
    collected: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for count in sorted({len(prompt) for prompt in prompts}):
        index = np.array([prompt for prompt in prompts if len(prompt) == count])
        draws = {size: _draws(count, size, seed) for size in _subset_sizes(count)}
        winners = {
            size: None if votes is None else _majority(votes[index], draw)
            for size, draw in draws.items()
        }
        for name, values in numeric.items():
            for metric, per_prompt in _statistics(values[index], draws, winners).items():
                collected[name][metric].extend(per_prompt)
    return {
        name: {metric: float(np.mean(values)) for metric, values in metrics.items()}
        for name, metrics in collected.items()
    }


def _statistics(
    values: np.ndarray, draws: dict[int, np.ndarray], winners: dict[int, np.ndarray | None]
) -> dict[str, np.ndarray]:
    """Per prompt: values [Q, n] and draws {k: [S, k]} to {metric: [Q]}."""
    count = values.shape[1]
    metrics = {f"mean@{count}": values.mean(axis=1)}
    if count == 1:
        return metrics
    metrics[f"std@{count}"] = values.std(axis=1)
    for size, draw in draws.items():
        sampled = values[:, draw]  # [Q, S, k]
        reduced = {"best": sampled.max(axis=2), "worst": sampled.min(axis=2)}
        if winners[size] is not None:
            reduced["maj"] = np.take_along_axis(values, winners[size], axis=1)
        for name, outcome in reduced.items():
            metrics[f"{name}@{size}/mean"] = outcome.mean(axis=1)
            metrics[f"{name}@{size}/std"] = outcome.std(axis=1)
    return metrics


def _subset_sizes(count: int) -> list[int]:
    sizes = []
    size = 2
    while size < count:
        sizes.append(size)
        size *= 2
    return [*sizes, count] if count > 1 else []


def _draws(count: int, size: int, seed: int) -> np.ndarray:
    """[S, k] responses drawn with replacement, verl's own draws for this seed."""
    return np.random.RandomState(seed).choice(count, size=(BOOTSTRAP_SAMPLES, size), replace=True)


def _majority(votes: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """[Q, S]: which response stands for the most frequent vote of each draw, ties to the first."""
    winners = np.empty((len(votes), len(draw)), dtype=np.int64)
    for row, vote in enumerate(votes):
        sampled = vote[draw]  # [S, k]
        counts = (sampled[:, :, None] == sampled[:, None, :]).sum(axis=2)
        winners[row] = draw[np.arange(len(draw)), counts.argmax(axis=1)]
    return winners


def install() -> None:
    """Let verl's `_validate`, which finds the function in its module, use this one."""
    ray_trainer.process_validation_metrics = process_validation_metrics


class RecordedValidation:
    """Mixed into verl's trainer: a line of validation.jsonl and intervals for every validation."""

    global_steps: int
    pending_records: list[tuple[str, dict[str, Any]]]
    _seen: list[Response] | None = None  # of the validation under way

    def _validate(self) -> dict[str, float]:
        """verl's metrics and val-aux/<source>/acc/ci95_low@n, ci95_high@n over problems."""
        self._seen = seen = []
        try:
            metrics = super()._validate()
        finally:
            self._seen = None
        record = validation_record(self.global_steps, seen)
        self.pending_records.append((VALIDATION_NAME, record))
        return metrics | intervals(record)

    def _get_gen_batch(self, batch: DataProto) -> DataProto:
        """verl's; the messages of a prompt are known here only."""
        generated = super()._get_gen_batch(batch)
        if self._seen is None:
            return generated
        rows = len(batch)
        columns = batch.non_tensor_batch
        messages = generated.non_tensor_batch["raw_prompt"]
        sources = columns.get("data_source", ["unknown"] * rows)  # verl's name for none
        models = columns.get("reward_model", [{}] * rows)
        for uid, source, model, prompt in zip(
            columns["uid"], sources, models, messages, strict=True
        ):
            gold = (model or {}).get("ground_truth")
            key = problem_key(str(source), list(prompt), gold)
            self._seen.append(Response(str(uid), str(source), key, str(gold)))
        return generated

    def _see_verdicts(self, accuracies: Sequence[float]) -> None:
        """The verifier's verdicts on the rows that were asked last, in their order."""
        if self._seen is None:
            return
        rows = self._seen[len(self._seen) - len(accuracies) :]
        for row, accuracy in zip(rows, accuracies, strict=True):
            row.accuracy = float(accuracy) if math.isfinite(accuracy) else None

    def _maybe_log_val_generations(
        self, inputs: list[str], outputs: list[str], scores: list[float]
    ) -> None:
        """verl's; the texts of all rows, in the order in which they were asked."""
        super()._maybe_log_val_generations(inputs, outputs, scores)
        for row, text, answer, score in zip(self._seen or [], inputs, outputs, scores, strict=True):
            row.prompt, row.text = text, answer
            row.score = float(score) if math.isfinite(score) else None
