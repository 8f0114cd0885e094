"""Who scores a batch before the update, in which order: the student where it must, the teacher.

| candidates | update (one mini-batch, one epoch) | recompute |
| --- | --- | --- |
| sampled token, only_tch | teacher | teacher, student |
| only_stu, intersection | student, teacher | student, teacher |
| union, union-intersection | student, teacher | student, teacher, student |
| full vocabulary | teacher | refused |

Then the update's own forward. A first student pass gives the student's top ids (which the teacher
needs) and the old log-probs at once; the last one gives the student's values at the teacher's ids.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from verl import DataProto

from opdvr.core import STRATEGIES, MethodSpec, NonFiniteError, require_finite
from opdvr.core.spec import SAMPLED_ONLY
from opdvr.core.topk import TEACHERS
from opdvr.integration import signal
from opdvr.teacher.engines import TeacherError

SCORE_KEYS = ["input_ids", "attention_mask", "position_ids", "response_mask"]
STUDENT_TOP_IDS, STUDENT_TOP_LOG_PROBS = "student_top_ids", "student_top_log_probs"
TEACHER_TOP_IDS, TEACHER_TOP_LOG_PROBS = "teacher_top_ids", "teacher_top_log_probs"
TEACHER_AT_STUDENT = "teacher_at_student_log_probs"
STUDENT_CANDIDATES = "student_candidate_log_probs"
TEACHER_HIDDEN = "teacher_hidden"
# what the update reads beside the sampled tokens' log-probs
UPDATE_KEYS = (
    STUDENT_TOP_IDS,
    STUDENT_TOP_LOG_PROBS,
    TEACHER_TOP_IDS,
    TEACHER_TOP_LOG_PROBS,
    TEACHER_AT_STUDENT,
    STUDENT_CANDIDATES,
    TEACHER_HIDDEN,
)


class TeacherNotFinite(NonFiniteError, TeacherError):
    """The teacher gave NaN or infinity: the step is not trained on, the state before it saved."""


@dataclass(frozen=True)
class Plan:
    """The passes of a step. student_first, student_last: a scoring pass of the student before and
    after the teacher's. keep_old: the update needs the candidates' log-probs of these passes,
    because its own forward may come from newer weights. overlap: both models' top ids are wanted
    for the metrics.
    """

    spec: MethodSpec
    student_first: bool
    student_last: bool
    keep_old: bool
    overlap: bool

    @property
    def teacher_top_k(self) -> int:
        """How many of its own top ids the teacher is asked for."""
        k = self.spec.log_prob_top_k
        wanted = k and (self.overlap or STRATEGIES[self.spec.top_k_strategy].needs_teacher)
        return k if wanted else 0

    def describe(self) -> str:
        """One line for the person who waits."""
        passes = ["student"] * self.student_first
        passes += ["teacher"] * self.spec.distill + ["student"] * self.student_last
        scoring = ", ".join(passes) or "none"
        return f"scoring passes a step before the update: {scoring}"


def plan(spec: MethodSpec, student_logprobs: str, overlap: bool) -> Plan:
    """The fewest passes for this method; student_logprobs is resolved (not auto)."""
    recompute = student_logprobs == "recompute"
    if not spec.log_prob_top_k:
        return Plan(spec, False, recompute, keep_old=False, overlap=False)
    strategy = STRATEGIES[spec.top_k_strategy]
    first = strategy.needs_student
    last = recompute and (not first or TEACHERS in strategy.slots)
    return Plan(spec, first, last, keep_old=recompute, overlap=overlap)


@dataclass
class Scorer:
    """Stands in the teacher worker group's place in verl's loop, with what each pass needs.

    old: old_log_probs and entropys of the student's pass of this step, when there was one.
    seconds: of the student's passes in this step. passes: how many of each this step has had.
    """

    plan: Plan
    student: Any
    teacher: Any
    vocabulary: int
    temperature: float
    old: DataProto | None = None
    seconds: float = 0.0
    passes: dict[str, int] = field(default_factory=dict)

    def compute_rm_score(self, batch: DataProto) -> DataProto:
        """teacher_log_probs [B,T] and what the plan asks for beside; stops on NaN or inf."""
        self.old, self.seconds, self.passes = None, 0.0, {"student": 0, "teacher": 0}
        spec, keys = self.plan.spec, list(SCORE_KEYS)
        top = self._score_student(batch, first=True) if self.plan.student_first else {}
        batch.batch.update(top)
        if STUDENT_TOP_IDS in top:
            keys.append(STUDENT_TOP_IDS)
        # Engines of our own read more than verl's worker groups, which would be sent it.
        more, row_keys = getattr(self.teacher, "reads", ((), ()))
        keys += [key for key in more if key in batch.batch.keys()]
        rows = [key for key in row_keys if key in batch.non_tensor_batch]
        request = batch.select(batch_keys=keys, non_tensor_batch_keys=rows)
        request.meta_info = {
            "top_k": self.plan.teacher_top_k,
            "vocabulary": self._vocabulary(),
            "with_hidden": spec.full_vocabulary != SAMPLED_ONLY,
        }
        output = self.teacher.compute_rm_score(request)
        self.passes["teacher"] += 1
        self._require_finite(output, batch)
        if self.plan.student_last and spec.log_prob_top_k:
            output.batch.update(self._score_student(batch.union(output), first=False))
        return output

    def _score_student(self, batch: DataProto, first: bool) -> dict[str, torch.Tensor]:
        """A pass of the student; keeps old log-probs aside and returns the rest."""
        started = time.perf_counter()
        spec = self.plan.spec
        wants_top = first or (self.plan.overlap and STUDENT_TOP_IDS not in batch.batch.keys())
        keys = SCORE_KEYS + [
            key for key in (STUDENT_TOP_IDS, TEACHER_TOP_IDS) if key in batch.batch.keys()
        ]
        request = batch.select(batch_keys=keys, non_tensor_batch_keys=[])
        request.meta_info = {
            "temperature": self.temperature,
            "vocabulary": self._vocabulary(),
            "top_k": spec.log_prob_top_k if wants_top else 0,
            "strategy": None if first else spec.top_k_strategy,
        }
        output = self.student.score_candidates(request)
        self.seconds += time.perf_counter() - started
        self.passes["student"] += 1
        self.old = output.select(batch_keys=["old_log_probs", "entropys"])
        scored = {key: output.batch[key] for key in UPDATE_KEYS if key in output.batch.keys()}
        if first and not self.plan.student_last and self.plan.keep_old:
            # all candidates are among the student's own: one tensor serves both
            scored[STUDENT_CANDIDATES] = scored.pop(STUDENT_TOP_LOG_PROBS)
        elif not self.plan.overlap:
            scored.pop(STUDENT_TOP_LOG_PROBS, None)
        return scored

    def metrics(self) -> dict[str, float]:
        """How many passes this step's scoring took, and how long the student's were."""
        return {
            "opd/student_scoring_passes": self.passes["student"],
            "opd/teacher_passes": self.passes["teacher"],
            "opd/student_scoring_seconds": self.seconds,
        }

    def _vocabulary(self) -> int | None:
        """Ids that both tokenizers have; the sampled token alone needs no cut."""
        return None if self.plan.spec.samples_only else self.vocabulary

    def _require_finite(self, output: DataProto, batch: DataProto) -> None:
        try:
            self._check_finite(output, batch)
        except NonFiniteError as error:
            raise TeacherNotFinite(str(error)) from None

    def _check_finite(self, output: DataProto, batch: DataProto) -> None:
        names = signal.sample_names(batch)
        mask = batch.batch["response_mask"].bool()
        require_finite(output.batch["teacher_log_probs"], mask, "teacher log-prob", names)
        for key in (TEACHER_TOP_LOG_PROBS, TEACHER_AT_STUDENT, TEACHER_HIDDEN):
            if key in output.batch.keys():
                values = output.batch[key]
                wide = mask.unsqueeze(-1).expand_as(values)
                require_finite(values, wide, key.replace("_", " "), names)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.teacher, name)
