"""Top-k on-policy distillation: candidate tokens at a position, their rewards and their loss.

Source: Rethinking OPD (arXiv 2604.13016). B responses, T response tokens, K of the top-k, C slots
for candidates (K or 2K, one more with a tail bucket). A slot without a candidate holds id -1; its
log-probs, rewards and losses are exactly 0. What each set and weighting optimises: docs/top-k.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from opdvr.core.rewards import TokenRewards, gate_and_scale, require_finite

if TYPE_CHECKING:
    from opdvr.core.spec import MethodSpec

EMPTY = -1  # the id of a slot without a candidate
# float32 log-probs are good to about 1e-6, so less mass than this is rounding error and no tail.
TAIL_FLOOR = 1e-6
STUDENTS, TEACHERS = "student", "teacher"


class Strategy(NamedTuple):
    """A registered candidate set.

    choose: (student's top ids, teacher's top ids), each [...,K], to [...,C]. needs_student,
    needs_teacher: whose top ids it reads; the other's may be None. slots: whose top ids, masked,
    its slots hold, in order: STUDENTS, TEACHERS or both, so C is K or 2K. normalised: weights are
    a softmax over the valid candidates, else raw probabilities.
    """

    choose: Callable[[torch.Tensor | None, torch.Tensor | None], torch.Tensor]
    needs_student: bool
    needs_teacher: bool
    slots: tuple[str, ...]
    normalised: bool


STRATEGIES: dict[str, Strategy] = {}
# name -> function of (student's, teacher's log-probs of the candidates), giving log weights.
WEIGHTINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {}


def register_strategy(
    name: str, *slots: str, student: bool, teacher: bool, normalised: bool = True
) -> Callable:
    """Decorator that makes a candidate set available under `name`; see Strategy."""
    assert name not in STRATEGIES, f"strategy {name} is registered twice"

    def register(choose: Callable) -> Callable:
        STRATEGIES[name] = Strategy(choose, student, teacher, slots, normalised)
        return choose

    return register


def register_weighting(name: str) -> Callable:
    """Decorator that makes a weighting available under `name`; see WEIGHTINGS."""
    assert name not in WEIGHTINGS, f"weighting {name} is registered twice"

    def register(log_weights: Callable) -> Callable:
        WEIGHTINGS[name] = log_weights
        return log_weights

    return register


def candidate_ids(
    strategy: str, student_ids: torch.Tensor | None, teacher_ids: torch.Tensor | None
) -> torch.Tensor:
    """The candidates of every position.

    Student's top two (7, 3) and teacher's (3, 5): union (7, 3, -1, 5); intersection (-1, 3);
    union-intersection (7, -1, -1, 5).

    Args:
        strategy: a name in STRATEGIES.
        student_ids, teacher_ids: [...,K] int64, distinct at a position, -1 where there are fewer.

    Returns:
        [...,C] int64; no id twice at a position; -1 in slots without a candidate.
    """
    return STRATEGIES[strategy].choose(student_ids, teacher_ids)


def in_slots(strategy: str, of_student: torch.Tensor, of_teacher: torch.Tensor) -> torch.Tensor:
    """What is known of the student's top ids and of the teacher's, each [...,K], as [...,C]: the
    order in which candidate_ids puts them.
    """
    blocks = {STUDENTS: of_student, TEACHERS: of_teacher}
    return torch.cat([blocks[owner] for owner in STRATEGIES[strategy].slots], -1)


def is_among(ids: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """[...,K] bool: whether each of ids [...,K] is one of others [...,K'] at the same position.

    -1 is among nothing. Sorted and searched, because comparing all pairs would take K K' bytes a
    token.
    """
    ordered = others.contiguous().sort(-1).values
    place = torch.searchsorted(ordered, ids.contiguous()).clamp(max=others.shape[-1] - 1)
    return (ordered.gather(-1, place) == ids) & (ids != EMPTY)


@register_strategy("only_stu", STUDENTS, student=True, teacher=False)
def _only_student(student_ids: torch.Tensor, teacher_ids: torch.Tensor | None) -> torch.Tensor:
    return student_ids


@register_strategy("only_tch", TEACHERS, student=False, teacher=True)
def _only_teacher(student_ids: torch.Tensor | None, teacher_ids: torch.Tensor) -> torch.Tensor:
    return teacher_ids


@register_strategy("intersection", STUDENTS, student=True, teacher=True)
def _intersection(student_ids: torch.Tensor, teacher_ids: torch.Tensor) -> torch.Tensor:
    return student_ids.where(is_among(student_ids, teacher_ids), EMPTY)


@register_strategy("union", STUDENTS, TEACHERS, student=True, teacher=True)
def _union(student_ids: torch.Tensor, teacher_ids: torch.Tensor) -> torch.Tensor:
    new = teacher_ids.where(~is_among(teacher_ids, student_ids), EMPTY)
    return torch.cat((student_ids, new), -1)


@register_strategy(
    "union-intersection", STUDENTS, TEACHERS, student=True, teacher=True, normalised=False
)
def _symmetric_difference(student_ids: torch.Tensor, teacher_ids: torch.Tensor) -> torch.Tensor:
    alone = student_ids.where(~is_among(student_ids, teacher_ids), EMPTY)
    new = teacher_ids.where(~is_among(teacher_ids, student_ids), EMPTY)
    return torch.cat((alone, new), -1)


@register_weighting("student_p")
def _by_student(student_logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
    return student_logprobs


@register_weighting("teacher_p")
def _by_teacher(student_logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
    return teacher_logprobs


@register_weighting("none")
def _uniform(student_logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(student_logprobs)


def candidate_weights(
    spec: MethodSpec,
    valid: torch.Tensor,
    teacher_logprobs: torch.Tensor,
    student_logprobs: torch.Tensor,
) -> torch.Tensor:
    """w of every candidate under spec.top_k_strategy and spec.reward_weight_mode.

    Args:
        spec: the method.
        valid: [...,C] bool.
        teacher_logprobs, student_logprobs: [...,C], nats.

    Returns:
        [...,C], without gradient, 0 at slots that are not valid. They sum to 1 over the valid ones
        (union-intersection: raw probabilities, 1 each under `none`). All 0 without a valid slot.
    """
    log_weights = WEIGHTINGS[spec.reward_weight_mode](student_logprobs, teacher_logprobs).detach()
    log_weights = log_weights.masked_fill(~valid, -torch.inf)
    if not STRATEGIES[spec.top_k_strategy].normalised:
        return log_weights.exp()
    # softmax of nothing but -inf is NaN
    return torch.where(valid, log_weights.softmax(-1), 0)


def with_tail(logprobs: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Log-probs [...,C+1]: those of the candidates and, last, that of all other tokens together.

    Differentiable; the tail is log(1 - sum of p over the valid), no lower than log(1e-6), where
    its gradient is 0.
    """
    mass = torch.where(valid, logprobs, -torch.inf).exp().sum(-1, keepdim=True)
    return torch.cat((logprobs, (1 - mass).clamp(min=TAIL_FLOOR).log()), -1)


def valid_with_tail(valid: torch.Tensor, student_logprobs: torch.Tensor) -> torch.Tensor:
    """[...,C+1] bool: valid, and for the tail whether the student has mass to speak of there.

    valid: [...,C]. student_logprobs: [...,C+1] of with_tail. A position without any valid candidate
    (masked) has no tail.
    """
    has_tail = student_logprobs[..., -1:].exp() > 1.5 * TAIL_FLOOR
    return torch.cat((valid, has_tail & valid.any(-1, keepdim=True)), -1)


def top_k_rewards(
    spec: MethodSpec,
    valid: torch.Tensor,
    teacher_logprobs: torch.Tensor,
    student_logprobs: torch.Tensor,
    correct: torch.Tensor,
    scale: torch.Tensor | None = None,
    group_correct_frac: torch.Tensor | None = None,
) -> TokenRewards:
    """(logp_teacher - logp_student) w of every candidate, through the gate and GRPD's scale.

    Args:
        spec: the method.
        valid: [B,T,C] bool; False at masked positions and at empty slots.
        teacher_logprobs, student_logprobs: [B,T,C], nats, each at its own temperature; the student
            that sampled. Slots that are not valid may hold anything.
        correct: [B] bool.
        scale: [B] from grpd_scale; None, as good as ones, only without spec.grpo_scaled.
        group_correct_frac: [B], for gates that need groups.

    Returns:
        TokenRewards of [B,T,C], without gradient, 0 at slots that are not valid; its log_ratio is
        already weighted by w.

    Raises:
        NonFiniteError: a log-probability that is not finite at a valid slot.
    """
    require_finite(teacher_logprobs, valid, "teacher log-probability of a candidate")
    require_finite(student_logprobs, valid, "student log-probability of a candidate")
    teacher = torch.where(valid, teacher_logprobs.detach(), 0)
    student = torch.where(valid, student_logprobs.detach(), 0)
    weights = candidate_weights(spec, valid, teacher, student)
    return gate_and_scale(spec, teacher - student, weights, correct, scale, group_correct_frac)


class Clip(NamedTuple):
    """PPO's clip: the ratio stays within [1 - low, 1 + high]; dual bounds -A ratio for A < 0
    (dual-clip PPO, arXiv 1912.09729).
    """

    low: float
    high: float
    dual: float


class CandidateLoss(NamedTuple):
    """loss: [B,T], summed over candidates. clipped: [B,T,C] bool, where a clip set the loss."""

    loss: torch.Tensor
    clipped: torch.Tensor


# exp() of more overflows into infinities; verl bounds the log of the ratio the same way
_LARGEST_LOG_RATIO = 20.0


def top_k_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    rewards: torch.Tensor,
    valid: torch.Tensor,
    clip: Clip,
) -> CandidateLoss:
    """PPO's clipped loss (arXiv 1707.06347) of every candidate, summed over candidates.

    With old_logprobs equal to logprobs the ratio is 1, the loss is -sum_k reward_k and its gradient
    -sum_k reward_k grad log p(k).

    Args:
        logprobs: [B,T,C], nats, with gradient.
        old_logprobs: [B,T,C], nats, of the student that sampled.
        rewards: [B,T,C], the advantages, constants.
        valid: [B,T,C] bool.
        clip: bounds of the ratio.

    Returns:
        CandidateLoss; 0 at masked positions, and no gradient from slots that are not valid.
    """
    new = torch.where(valid, logprobs, 0)
    old = torch.where(valid, old_logprobs.detach(), 0)
    rewards = torch.where(valid, rewards, 0)
    log_ratio = (new - old).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = -rewards * ratio
    bounded = -rewards * ratio.clamp(1 - clip.low, 1 + clip.high)
    loss = torch.maximum(plain, bounded)
    floor = -rewards * clip.dual
    loss = torch.where(rewards < 0, torch.minimum(loss, floor), loss)
    return CandidateLoss(loss.sum(-1), (loss != plain) & valid)
