"""What an update's forward shows of single tokens: sums over all, and traces of a few responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from opdvr.core import Anatomy, TokenRewards, add_anatomies, anatomy_of

OBSERVED = "opdvr_observed"  # name under which it travels from a micro-batch to the trainer
SAMPLE_SLOT = "sample_slot"  # [B] int64: which trace a response becomes, NO_SLOT for none
NO_SLOT = -1


class Trace(NamedTuple):
    """A response's T valid tokens, on the CPU.

    log_ratio: [T] float32 of the sampled token, nats. reward: [T] float32, the final reward, summed
    over candidates. zeroed: [T] bool, there was a signal and the gate left nothing of it.
    """

    log_ratio: torch.Tensor
    reward: torch.Tensor
    zeroed: torch.Tensor


class Observed(NamedTuple):
    """Of one micro-batch; combined by `combined`."""

    anatomy: Anatomy
    traces: dict[int, Trace]


def observe(
    log_ratio: torch.Tensor,
    rewards: TokenRewards,
    token_ids: torch.Tensor,
    mask: torch.Tensor,
    correct: torch.Tensor,
    slots: torch.Tensor | None,
) -> Observed:
    """What a micro-batch's rewards show.

    Args:
        log_ratio: [B,T] of the sampled tokens, nats.
        rewards: three times [B,T] or [B,T,C].
        token_ids: like rewards; which token each is for, negative for none.
        mask: [B,T], non-zero at valid tokens; with candidates those with a negative id count only
            where their reward before the gate is not 0 (the tail).
        correct: [B] bool.
        slots: [B] int64, NO_SLOT for responses without a trace; None for no trace at all.
    """
    valid = mask.bool()
    by_element = valid
    if token_ids.dim() == 3:
        by_element = valid.unsqueeze(-1) & ((token_ids >= 0) | (rewards.log_ratio != 0))
    anatomy = anatomy_of(*rewards, token_ids, by_element, correct)
    if slots is None:
        return Observed(anatomy, {})
    rows = torch.nonzero(slots != NO_SLOT).squeeze(-1).tolist()
    return Observed(anatomy, {int(slots[i]): _trace(i, log_ratio, rewards, valid) for i in rows})


def _trace(row: int, log_ratio: torch.Tensor, rewards: TokenRewards, valid: torch.Tensor) -> Trace:
    kept = valid[row]
    ungated, gated, reward = (stage[row].detach()[kept] for stage in rewards)
    if reward.dim() == 2:
        reward = reward.sum(-1)
        zeroed = (ungated != 0).any(-1) & (gated == 0).all(-1)
    else:
        zeroed = (ungated != 0) & (gated == 0)
    return Trace(log_ratio[row].detach()[kept].float().cpu(), reward.float().cpu(), zeroed.cpu())


def combined(parts: Sequence[Observed]) -> Observed | None:
    """Of all micro-batches and ranks; None for none. The last trace of a slot counts."""
    anatomy = add_anatomies(part.anatomy for part in parts)
    if anatomy is None:
        return None
    traces: dict[int, Trace] = {}
    for part in parts:
        traces.update(part.traces)
    return Observed(anatomy, traces)
