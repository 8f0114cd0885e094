"""The sides of the `step` benchmark: each runs one training step on the same batch, by phase."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

from benchmarks import verl_workers
from benchmarks.measure import Seconds, Stopwatch
from benchmarks.task_batch import TaskBatch
from opdvr.core import MethodSpec, advantages, group_advantages, token_rewards
from opdvr.integration.engine import ScoringEngine
from opdvr.integration.loss import ForwardLoss
from opdvr.integration.options import OpdvrOptions

SINGLE, RECOMPUTE, GRPO = "OPDVR, single forward", "OPDVR, recompute", "GRPO, single forward"
VERL, VERL_FLOAT32 = "verl's GRPO", "verl's GRPO, float32"
TEACHER, OLD, UPDATE = "teacher scoring", "old log-probs", "update"

Step = Callable[[], Seconds]


@dataclass
class Sides:
    """A student a side, one teacher for all. `norms`: gradient norms of all steps run, by side."""

    batch: TaskBatch
    student: str
    teacher: TrainingWorker
    micro_batches: verl_workers.MicroBatches
    norms: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scores = self.batch.scores
        outcome = group_advantages(scores, self.batch.groups, norm_by_std=True)
        self._mask = self.batch.tensors["response_mask"].bool()
        self._tensors = self.batch.tensors | {
            "correct": scores > MethodSpec.correctness_threshold,
            "reward_scale": torch.ones_like(outcome),
            "outcome": outcome,
            "group_correct_frac": torch.ones_like(outcome),
            # what GRPO trains on; the distilling sides replace it
            "advantages": outcome[:, None] * self._mask,
        }

    def all(self) -> dict[str, Step]:
        """Name to step, students loaded."""
        return {
            SINGLE: self._single_forward(SINGLE, MethodSpec()),
            RECOMPUTE: self._recompute(RECOMPUTE, MethodSpec()),
            GRPO: self._single_forward(GRPO, MethodSpec(estimator="grpo", distill=False)),
            VERL: self._verls(VERL, FSDPEngineWithLMHead),
            VERL_FLOAT32: self._verls(VERL_FLOAT32, verl_workers.VerlEngineInFloat32),
        }

    def _single_forward(self, name: str, spec: MethodSpec) -> Step:
        worker = self._worker(ScoringEngine, partial(ForwardLoss, spec, "update"))

        def step() -> Seconds:
            watch, tensors = Stopwatch(), dict(self._tensors)
            if spec.distill:
                with watch.phase(TEACHER):
                    tensors |= self._teacher_scores()
            with watch.phase(UPDATE):
                self._update(
                    name,
                    worker,
                    tensors,
                    log_entropy=OpdvrOptions.log_entropy,
                    advantages_given=not spec.distill,
                )
            return watch.seconds

        return step

    def _recompute(self, name: str, spec: MethodSpec) -> Step:
        worker = self._worker(ScoringEngine, _verls_loss)

        def step() -> Seconds:
            watch, tensors = Stopwatch(), dict(self._tensors)
            with watch.phase(TEACHER):
                tensors |= self._teacher_scores()
            with watch.phase(OLD):
                tensors["old_log_probs"], _ = verl_workers.score(worker, tensors, True)
            with watch.phase(UPDATE):
                rewards = token_rewards(
                    spec,
                    tensors["teacher_log_probs"],
                    tensors["old_log_probs"],
                    self._mask,
                    tensors["correct"],
                    tensors["reward_scale"],
                )
                tensors["advantages"] = advantages(spec, rewards.reward, self._mask)
                self._update(name, worker, tensors)
            return watch.seconds

        return step

    def _verls(self, name: str, engine: type) -> Step:
        worker = self._worker(engine, _verls_loss)
        unmodified = engine is FSDPEngineWithLMHead

        def step() -> Seconds:
            watch, tensors = Stopwatch(), dict(self._tensors)
            with verl_workers.garbage_collection_as_in_verl() if unmodified else nullcontext():
                with watch.phase(OLD):
                    tensors["old_log_probs"], _ = verl_workers.score(worker, tensors, True)
                with watch.phase(UPDATE):
                    self._update(name, worker, tensors)
            return watch.seconds

        return step

    def _worker(self, engine: type, loss: Callable) -> TrainingWorker:
        worker = verl_workers.training_worker(self.student, self.micro_batches, engine=engine)
        rows, groups = len(self.batch.groups), len(set(self.batch.groups))
        worker.set_loss_fn(loss(actor_config=verl_workers.actor_config(rows, rows // groups)))
        return worker

    def _teacher_scores(self) -> dict[str, torch.Tensor]:
        with_entropy = OpdvrOptions.teacher_entropy
        logprobs, entropy = verl_workers.score(self.teacher, self.batch.tensors, with_entropy)
        scores = {"teacher_log_probs": logprobs}
        return scores | ({"teacher_entropy": entropy} if with_entropy else {})

    def _update(
        self, name: str, worker: TrainingWorker, tensors: dict, **non_tensor: object
    ) -> None:
        norm = verl_workers.update(worker, tensors, **non_tensor)
        self.norms.setdefault(name, []).append(norm)


def _verls_loss(actor_config: object) -> Callable:
    return partial(ppo_loss, config=actor_config)
