"""Top-k distillation on a micro-batch of the update: candidates, their rewards and their loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tensordict import TensorDict

from opdvr.core import (
    STRATEGIES,
    Clip,
    MethodSpec,
    Overlap,
    TokenRewards,
    in_slots,
    top_k_loss,
    top_k_overlap,
    top_k_rewards,
    valid_with_tail,
    with_tail,
)
from opdvr.core.topk import EMPTY, STUDENTS
from opdvr.integration.engine import candidates_of, response_part
from opdvr.integration.head import CANDIDATES, TOP_IDS, TOP_LOG_PROBS
from opdvr.integration.scoring import (
    STUDENT_CANDIDATES,
    STUDENT_TOP_IDS,
    STUDENT_TOP_LOG_PROBS,
    TEACHER_AT_STUDENT,
    TEACHER_TOP_IDS,
    TEACHER_TOP_LOG_PROBS,
)


class CandidateSide(NamedTuple):
    """loss [B,T] with gradient; rewards [B,T,C]; ids [B,T,C] of the candidates, EMPTY for an empty
    slot and the tail; clipped_frac of valid candidates; overlap of the two top K, where both are
    known.
    """

    loss: torch.Tensor
    rewards: TokenRewards
    ids: torch.Tensor
    clipped_frac: float
    overlap: Overlap | None


def candidate_side(
    spec: MethodSpec,
    actor_config: Any,
    model_output: dict,
    data: TensorDict,  # noqa: ANN401
) -> CandidateSide:
    """What the candidates of a micro-batch add to the loss.

    Reads of the batch: student_top_ids, teacher_top_ids, teacher_top_log_probs and
    teacher_at_student_log_probs [B,T,K], as far as spec.top_k_strategy needs them;
    student_candidate_log_probs [B,T,C] of the student that sampled, where the trainer had it
    computed; else this forward's values, detached, stand for it.
    """
    mask = data["response_mask"].bool().unsqueeze(-1)
    ids = candidates_of(data)
    valid = (ids != EMPTY) & mask
    student = response_part(model_output[CANDIDATES], data)
    old = data.get(STUDENT_CANDIDATES, None)
    old = student.detach() if old is None else old
    teacher = _teacher_values(spec, data)
    if spec.tail_bucket:
        student, old, teacher = (with_tail(values, valid) for values in (student, old, teacher))
        valid = valid_with_tail(valid, old)
        ids = torch.nn.functional.pad(ids, (0, 1), value=EMPTY)
    rewards = top_k_rewards(
        spec,
        valid,
        teacher,
        old,
        data["correct"].bool(),
        data["reward_scale"],
        data["group_correct_frac"],
    )
    scored = top_k_loss(student, old, rewards.reward, valid, _clip(actor_config))
    clipped = scored.clipped.sum() / valid.sum().clamp(min=1)
    return CandidateSide(scored.loss, rewards, ids, clipped.item(), _overlap(data, model_output))


def _teacher_values(spec: MethodSpec, data: TensorDict) -> torch.Tensor:
    slots = STRATEGIES[spec.top_k_strategy].slots
    at_student = data[TEACHER_AT_STUDENT] if STUDENTS in slots else None
    return in_slots(spec.top_k_strategy, at_student, data.get(TEACHER_TOP_LOG_PROBS, None))


def _clip(actor_config: Any) -> Clip:  # noqa: ANN401
    low, high = actor_config.clip_ratio_low, actor_config.clip_ratio_high
    plain = actor_config.clip_ratio
    return Clip(
        plain if low is None else low,
        plain if high is None else high,
        actor_config.clip_ratio_c,
    )


def _overlap(data: TensorDict, model_output: dict) -> Overlap | None:
    """From the scoring pass's top ids where there was one, else from this forward's."""
    if TEACHER_TOP_IDS not in data.keys():
        return None
    if STUDENT_TOP_IDS in data.keys():
        ids = data[STUDENT_TOP_IDS].long()
        logprobs = data.get(STUDENT_TOP_LOG_PROBS, data.get(STUDENT_CANDIDATES, None))
        if logprobs is None or logprobs.shape != ids.shape:  # the overlap was not asked for
            return None
    elif TOP_IDS in model_output:
        ids = response_part(model_output[TOP_IDS], data)
        logprobs = response_part(model_output[TOP_LOG_PROBS], data).detach()
    else:
        return None
    return top_k_overlap(ids, logprobs, data[TEACHER_TOP_IDS].long(), data[TEACHER_TOP_LOG_PROBS])
