"""The method on the trainer's side: verdicts, scales and, where the update cannot, advantages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo import core_algos

from opdvr.core import (
    ESTIMATORS,
    MethodSpec,
    TokenRewards,
    advantages,
    correct_responses,
    group_advantages,
    group_correct_frac,
    grpd_scale,
    needs_full_batch,
    needs_outcome,
    token_rewards,
    token_sums,
)
from opdvr.core import response_metrics as core_response_metrics

# Set by `truncated_responses`: rows [B] that are wrong whatever the verifier says, and the tokens
# [B,T] that give a signal. verl's own metrics keep the whole response mask.
COUNTS_WRONG = "counts_wrong"
SIGNAL_MASK = "signal_mask"


def signal_mask(batch: DataProto) -> torch.Tensor:
    """[B,T] bool: the response tokens that give a signal."""
    key = SIGNAL_MASK if SIGNAL_MASK in batch.batch.keys() else "response_mask"
    return batch.batch[key].bool()


def register_estimators() -> None:
    """Make verl accept our names. Its estimators see scores only; `attach` makes the advantages."""

    def masked_rewards(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_unused: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rewards = token_level_rewards * response_mask
        return rewards, rewards

    for name in ESTIMATORS:
        if name not in core_algos.ADV_ESTIMATOR_REGISTRY:  # grpo is verl's already
            core_algos.register_adv_est(name)(masked_rewards)


@dataclass(frozen=True)
class Signal:
    """Per response: verdict [B] bool, GRPD scale [B] or None, outcome advantage [B], group ids.

    group_correct_frac [B]: share of correct responses in the group, None unless the gate needs it.
    """

    scores: torch.Tensor
    correct: torch.Tensor
    scale: torch.Tensor | None
    outcome: torch.Tensor | None
    group_correct_frac: torch.Tensor | None
    group_ids: np.ndarray
    valid: torch.Tensor


def read_signal(spec: MethodSpec, batch: DataProto, norm_outcome_by_std: bool) -> Signal:
    """Verdicts and what follows from them; rows without a valid token leave their group."""
    scores = batch.batch["token_level_scores"].sum(-1)
    groups = batch.non_tensor_batch["uid"]
    valid = signal_mask(batch).any(-1)
    scale = outcome = None
    if spec.grpo_scaled:
        scale = grpd_scale(
            group_advantages(scores, groups, spec.grpo_norm_by_std, valid),
            spec.grpo_scale_baseline,
        )
    if needs_outcome(spec):
        outcome = group_advantages(scores, groups, norm_outcome_by_std, valid)
    correct = correct_responses(scores, spec.correctness_threshold)
    if COUNTS_WRONG in batch.batch.keys():
        correct &= ~batch.batch[COUNTS_WRONG]
    frac = group_correct_frac(correct, groups, valid) if spec.needs_groups else None
    return Signal(scores, correct, scale, outcome, frac, groups, valid)


def attach(
    spec: MethodSpec, batch: DataProto, signal: Signal, student_logprobs: torch.Tensor | None
) -> TokenRewards | None:
    """Write what the update needs into `batch`.

    Always: correct, reward_scale, outcome, group_correct_frac, sample_index [B]. With
    `student_logprobs` [B,T] (or without a teacher) also advantages and returns [B,T], and the token
    rewards are returned; without, the advantages are left to the loss.
    """
    mask = signal_mask(batch)
    rows = len(mask)
    ones = torch.ones(rows)
    batch.batch["correct"] = signal.correct
    batch.batch["reward_scale"] = ones if signal.scale is None else signal.scale
    batch.batch["outcome"] = 0 * ones if signal.outcome is None else signal.outcome
    frac = signal.group_correct_frac
    batch.batch["group_correct_frac"] = ones if frac is None else frac
    batch.batch["sample_index"] = torch.tensor(sample_indices(batch))
    rewards = None
    if not spec.distill:
        batch.batch["advantages"] = signal.outcome.unsqueeze(-1) * mask
    elif student_logprobs is not None:
        rewards = token_rewards(
            spec,
            batch.batch["teacher_log_probs"],
            student_logprobs,
            mask,
            signal.correct,
            signal.scale,
            signal.group_correct_frac,
        )
        batch.batch["advantages"] = advantages(
            spec, rewards.reward, mask, group_ids=signal.group_ids, outcome=signal.outcome
        )
    batch.batch["returns"] = batch.batch["advantages"]
    return rewards


def made_by_the_loss(spec: MethodSpec, student_logprobs: str) -> bool:
    """Whether the rewards are made inside the update's forward; those of candidates always are."""
    if not spec.samples_only:
        return True
    return spec.distill and student_logprobs == "update" and not needs_full_batch(spec)


def trainer_side_sums(
    batch: DataProto, signal: Signal, rewards: TokenRewards | None, student: torch.Tensor
) -> dict[str, float]:
    """Token sums where the trainer has the student's log-probs (recompute and rollout)."""
    return token_sums(
        rewards,
        signal_mask(batch),
        signal.correct,
        student,
        rollout_logprobs=batch.batch["rollout_log_probs"],
        teacher_entropy=batch.batch.get("teacher_entropy"),
        advantages=batch.batch["advantages"],
        truncated=batch.batch["truncated"],
    )


def response_metrics(batch: DataProto, signal: Signal) -> dict[str, float]:
    """Published cg/ and gs/ metrics, and opd/ ones over responses."""
    return core_response_metrics(
        signal.scores,
        signal.correct,
        signal.group_ids,
        scale=signal.scale,
        truncated=batch.batch["truncated"],
        lengths=signal_mask(batch).sum(-1),
    )


def sample_indices(batch: DataProto) -> list[int]:
    """The data file's own row numbers (extra_info.index), else rows of the batch."""
    extras = batch.non_tensor_batch.get("extra_info")
    rows = range(len(batch))
    if extras is None:
        return list(rows)
    return [
        int(extra["index"])
        if isinstance(extra, dict) and isinstance(extra.get("index"), int | np.integer)
        else row
        for row, extra in zip(rows, extras, strict=True)
    ]


def sample_names(batch: DataProto) -> list[str]:
    """What messages call each row."""
    return [f"extra_info.index {index}" for index in sample_indices(batch)]
