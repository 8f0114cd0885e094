"""Token rewards of on-policy distillation: log-ratio, then gate, then scale.

Source: OPDVR (arXiv 2608.24696). B responses, T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from opdvr.core.gates import apply_gate

if TYPE_CHECKING:
    from opdvr.core.spec import MethodSpec


class NonFiniteError(FloatingPointError):
    """A NaN or an infinity at a position that trains."""


class TokenRewards(NamedTuple):
    """The three stages of a token's reward, each [B,T] float32, nats, 0 at masked positions.

    In top-k distillation they are a candidate's, [B,T,C], and log_ratio includes its weight.

    log_ratio: logp_teacher - logp_student, the plain OPD reward.
    gated: what the correctness gate let through.
    reward: gated times the response's scale; what the update uses.
    """

    log_ratio: torch.Tensor
    gated: torch.Tensor
    reward: torch.Tensor


def correct_responses(verifier_scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """[B] bool: the verifier's score [B] is strictly greater than the threshold.

    Raises:
        NonFiniteError: a score that is not finite, which is no verdict.
    """
    require_finite(verifier_scores, torch.ones_like(verifier_scores), "verifier score")
    return verifier_scores > threshold


def log_ratio(
    teacher_logprobs: torch.Tensor, student_logprobs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """logp_teacher - logp_student of the sampled tokens, minus the k1 estimate of KL(S||T).

    A token that the student gives 0.2 and the teacher 0.5 gets ln(0.5 / 0.2) = +0.9163.

    Args:
        teacher_logprobs, student_logprobs: [B,T], nats.
        mask: [B,T], non-zero at valid tokens.

    Returns:
        [B,T] float32, differentiable; exactly 0 at masked positions, whatever lies there (NaN
        included), and no gradient from them.
    """
    # A tensor of another width could broadcast, and every token would get its neighbour's reward.
    shapes = [tuple(tensor.shape) for tensor in (teacher_logprobs, student_logprobs, mask)]
    assert shapes.count(shapes[0]) == 3, f"teacher, student and mask are {shapes}: not one shape"
    # Masked before the subtraction: inf - inf is NaN, and so would be its gradient times 0.
    valid = mask.bool()
    teacher = torch.where(valid, teacher_logprobs.float(), 0.0)
    student = torch.where(valid, student_logprobs.float(), 0.0)
    return teacher - student


def require_finite(
    values: torch.Tensor, mask: torch.Tensor, what: str, row_names: Sequence[str] | None = None
) -> None:
    """Does nothing when every valid value is finite.

    Args:
        values: [B,...]; masked positions may hold anything.
        mask: shape of values, non-zero where valid.
        what: what the values are, for the message.
        row_names: [B] names for the message instead of row numbers.

    Raises:
        NonFiniteError: naming the first such row and position, the value and `what`.
    """
    shapes = tuple(values.shape), tuple(mask.shape)
    assert shapes[0] == shapes[1], f"{what} is {shapes[0]} and its mask {shapes[1]}"
    bad = mask.bool() & ~torch.isfinite(values)
    if not bad.any():
        return
    first = bad.nonzero()[0].tolist()
    row = first[0] if row_names is None else row_names[first[0]]
    place = f"row {row}" + "".join(f", position {position}" for position in first[1:])
    raise NonFiniteError(
        f"{what} is {values[tuple(first)].item()} at {place} ({int(bad.sum())} such values): look "
        "at the checkpoint and dtype of the model that produced it"
    )


def token_rewards(
    spec: MethodSpec,
    teacher_logprobs: torch.Tensor,
    student_logprobs: torch.Tensor,
    mask: torch.Tensor,
    correct: torch.Tensor,
    scale: torch.Tensor | None = None,
    group_correct_frac: torch.Tensor | None = None,
) -> TokenRewards:
    """Sampled-token OPD reward through the spec's gate and, with GRPD, the response's scale.

    Args:
        spec: the method; its gate is applied first, the scale after it.
        teacher_logprobs, student_logprobs: [B,T], nats, each at its own temperature.
        mask: [B,T], non-zero at valid tokens.
        correct: [B] bool.
        scale: [B] from grpd_scale; None, as good as ones, only without spec.grpo_scaled.
        group_correct_frac: [B] from groups.group_correct_frac, for gates that need groups.

    Returns:
        TokenRewards; without gradient, because a reward is a constant to the policy gradient.

    Raises:
        NonFiniteError: a log-probability that is not finite at a valid token.
    """
    teacher_logprobs, student_logprobs = teacher_logprobs.detach(), student_logprobs.detach()
    require_finite(teacher_logprobs, mask, "teacher log-probability")
    require_finite(student_logprobs, mask, "student log-probability")
    ratio = log_ratio(teacher_logprobs, student_logprobs, mask)
    return gate_and_scale(spec, ratio, None, correct, scale, group_correct_frac)


def gate_and_scale(
    spec: MethodSpec,
    ratio: torch.Tensor,
    weights: torch.Tensor | None,
    correct: torch.Tensor,
    scale: torch.Tensor | None,
    group_correct_frac: torch.Tensor | None,
) -> TokenRewards:
    """The three stages from log-ratios [B,T] or [B,T,C]; weights alike, None for ones."""
    assert scale is not None or not spec.grpo_scaled, "grpo_scaled needs a scale"
    gated = apply_gate(
        ratio,
        correct,
        spec.gate,
        group_correct_frac=group_correct_frac,
        settings=spec.gate_settings,
    )
    if weights is not None:
        # After the gate: all the same to OPDVR's, but soft and margin speak of nats.
        ratio, gated = weights * ratio, weights * gated
    if scale is None:
        return TokenRewards(ratio, gated, gated)
    per_response = scale.to(gated.dtype).view(-1, *[1] * (gated.dim() - 1))
    return TokenRewards(ratio, gated, gated * per_response)
