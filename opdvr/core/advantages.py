"""From token rewards to advantages. B responses, T response tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from opdvr.core.groups import group_index, normalise_in_groups

if TYPE_CHECKING:
    from opdvr.core.spec import MethodSpec

GroupIds = Sequence[Hashable] | torch.Tensor


class Inputs(NamedTuple):
    """What an estimator may use: see `advantages` for shapes."""

    reward: torch.Tensor | None
    valid: torch.Tensor
    group_ids: GroupIds | None
    outcome: torch.Tensor | None


class Estimator(NamedTuple):
    """A registered estimator and what it asks of the training loop."""

    compute: Callable[[MethodSpec, Inputs], torch.Tensor]
    needs_teacher: bool
    needs_outcome: bool
    needs_full_batch: bool


ESTIMATORS: dict[str, Estimator] = {}


def register_estimator(
    name: str, *, teacher: bool = True, outcome: bool = False, full_batch: bool = False
) -> Callable:
    """Decorator that makes an estimator available under `name`.

    The function takes (spec, Inputs) and returns [B,T]; `advantages` masks what it returns.
    teacher, outcome, full_batch: what it needs, for needs_outcome, needs_full_batch and the spec.
    """
    assert name not in ESTIMATORS, f"estimator {name} is registered twice"

    def register(compute: Callable) -> Callable:
        ESTIMATORS[name] = Estimator(compute, teacher, outcome, full_batch)
        return compute

    return register


def advantages(
    spec: MethodSpec,
    reward: torch.Tensor | None,
    mask: torch.Tensor,
    group_ids: GroupIds | None = None,
    outcome: torch.Tensor | None = None,
) -> torch.Tensor:
    """The advantage of every token under spec.estimator.

    Args:
        spec: the method.
        reward: [B,T] token rewards, nats (None for grpo, which has none).
        mask: [B,T], non-zero at valid tokens.
        group_ids: [B], the prompt of each row; token_grpo only, which needs whole groups.
        outcome: [B] from group_advantages; the estimators for which needs_outcome is True.

    Returns:
        [B,T] float32 without gradient, 0 at masked positions.
    """
    estimator = ESTIMATORS[spec.estimator]
    assert reward is not None or not estimator.needs_teacher, f"{spec.estimator} needs rewards"
    assert outcome is not None or not estimator.needs_outcome, f"{spec.estimator} needs outcomes"
    valid = mask.bool()
    reward = None if reward is None else torch.where(valid, reward.detach(), 0.0).float()
    outcome = None if outcome is None else outcome.detach().float()
    values = estimator.compute(spec, Inputs(reward, valid, group_ids, outcome))
    return torch.where(valid, values, 0.0)


def needs_full_batch(spec: MethodSpec) -> bool:
    """True when a row's advantage depends on other rows, so not on a micro-batch alone."""
    return ESTIMATORS[spec.estimator].needs_full_batch


def needs_outcome(spec: MethodSpec) -> bool:
    """True when `advantages` has to be given the outcome advantage of each response."""
    return ESTIMATORS[spec.estimator].needs_outcome


@register_estimator("token_reward_direct")
def _token_reward_direct(spec: MethodSpec, inputs: Inputs) -> torch.Tensor:
    # The reward itself (arXiv 2608.24696): no baseline, no discounting, no whitening.
    return inputs.reward


@register_estimator("token_reward_direct_plus_grpo", outcome=True)
def _token_reward_direct_plus_grpo(spec: MethodSpec, inputs: Inputs) -> torch.Tensor:
    return inputs.reward + spec.grpo_outcome_weight * inputs.outcome[:, None]


@register_estimator("token_grpo", full_batch=True)
def _token_grpo(spec: MethodSpec, inputs: Inputs) -> torch.Tensor:
    """Process-supervision GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.3).

    The token rewards of a group are normalised together (mean and n-1 standard deviation + 1e-6
    over all its valid tokens; a uniform group gives exactly 0); a token's advantage is the sum of
    the normalised rewards from it to the end. A group of one response is normalised over its own
    tokens.
    """
    reward, valid = inputs.reward, inputs.valid
    assert inputs.group_ids is not None, "token_grpo needs group ids"
    index, n_groups = group_index(inputs.group_ids, reward)
    token_index = index[:, None].expand_as(reward).reshape(-1)
    normalised = normalise_in_groups(
        reward.reshape(-1), token_index, n_groups, valid.reshape(-1), by_std=True
    ).view_as(reward)
    to_go = normalised.double().flip(1).cumsum(1).flip(1)
    return to_go.float()


@register_estimator("grpo", teacher=False, outcome=True)
def _grpo(spec: MethodSpec, inputs: Inputs) -> torch.Tensor:
    return inputs.outcome[:, None].expand(inputs.valid.shape)
