"""The trainer's part of observing a step, on a fixed batch: choose, combine, write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl import DataProto

from benchmarks.task_batch import TaskBatch
from opdvr.core import MethodSpec
from opdvr.integration.observed import OBSERVED, SAMPLE_SLOT, combined
from opdvr.integration.recorder import SAMPLED_STEPS, Recorder
from opdvr.integration.signal import Signal
from opdvr.report.run_folder import RunFolder


class Observing:
    """Writes to `folder` what a run writes of its first steps, in which every step is written."""

    def __init__(self, batch: TaskBatch, tokenizer: Any, traced: int, folder: Path):
        rows = len(batch.scores)
        correct = batch.scores > MethodSpec.correctness_threshold
        every = np.ones(rows, dtype=bool)
        self._facts = Signal(batch.scores, correct, None, None, None, np.arange(rows), every)
        self._batch = DataProto.from_dict(
            tensors=batch.tensors | {"truncated": torch.zeros(rows, dtype=torch.bool)},
            non_tensors={
                "data_source": np.array(["demo"] * rows, dtype=object),
                "reward_model": np.array([{"ground_truth": "?"}] * rows, dtype=object),
            },
        )
        self._recorder = Recorder(tokenizer, "data_source", traced, SAMPLED_STEPS)
        self._run = RunFolder(folder).open({}, ["benchmark"], None)
        self._step = 0
        self._slots = torch.zeros(0)

    def slots(self) -> dict[str, torch.Tensor]:
        """Which responses of the next step are traced, as the update reads it."""
        self._step += 1
        self._slots = self._recorder.choose(self._step, self._facts.correct)
        return {SAMPLE_SLOT: self._slots}

    def write(self, metrics: dict[str, list]) -> None:
        """Metrics and lines of the step."""
        observed = combined(metrics[OBSERVED])
        found = self._recorder.metrics(observed)
        assert found, "the update handed nothing over"
        self._run.append_metrics(self._step, found)
        for name, line in self._recorder.records(
            self._step, self._batch, self._facts, self._slots, observed
        ):
            self._run.append_record(name, line)
