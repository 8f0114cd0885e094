"""The loss that workers run: token rewards from the update's own forward, then verl's PPO loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils import tensordict_utils as tu
from verl.workers.utils.losses import ppo_loss

from opdvr.core import (
    MethodSpec,
    TokenRewards,
    advantages,
    divergence_sums,
    log_ratio,
    overlap_sums,
    require_finite,
    token_rewards,
    token_sums,
)
from opdvr.core.topk import EMPTY
from opdvr.integration.candidates import CandidateSide, candidate_side
from opdvr.integration.engine import response_part
from opdvr.integration.head import DIVERGENCE, DIVERGENCE_LOSS, PASSED, SIGNAL
from opdvr.integration.observed import OBSERVED, SAMPLE_SLOT, observe

_LEAST_SIGNAL = 1e-30  # only keeps 0 / 0 out
SUMS = "opdvr_sums"  # name under which the additive sums of a micro-batch travel to the trainer


@dataclass
class ForwardLoss:
    """verl's `ppo_loss`, with what the update's own forward makes unnecessary to compute before.

    `update`: old log-probs are this forward's, detached, and the advantages are made from them;
    with one mini-batch and one epoch the ratio is 1: the gradient is that of the recompute path.
    `rollout`, and `recompute` in top-k distillation: old log-probs come from the trainer.
    Reads of the batch: teacher_log_probs [B,T], correct, reward_scale, outcome, group_correct_frac
    [B], rollout_log_probs [B,T], sample_index [B], advantages [B,T]; for top-k what
    `candidate_side` reads; sample_slot [B], where responses are to be traced.
    observes: also hand over what single tokens show (`Observed`).
    """

    spec: MethodSpec
    student_logprobs: str
    actor_config: Any = None
    observes: bool = False

    def __call__(
        self, model_output: dict, data: TensorDict, dp_group: object = None
    ) -> tuple[torch.Tensor, dict]:
        """Scalar loss (verl's aggregation) and metrics; 0 for a batch without a valid token.

        Raises:
            NonFiniteError: a student log-prob at a valid position is NaN or infinite.
        """
        model_output = dict(model_output)
        student = response_part(model_output["log_probs"], data).detach().float()
        mask = data["response_mask"].bool()
        require_finite(student, mask, "student log-prob", _names(data))
        old = student if self.student_logprobs == "update" else data["old_log_probs"]
        data["old_log_probs"] = old
        if not data["batch_num_tokens"]:
            tu.assign_non_tensor(data, batch_num_tokens=1)
        if self.spec.samples_only:
            return self._sampled(model_output, data, mask, student, old)
        if self.spec.log_prob_top_k:
            return self._top_k(model_output, data, mask)
        return self._full_vocabulary(model_output, data, mask)

    def _sampled(
        self,
        model_output: dict,
        data: TensorDict,
        mask: torch.Tensor,
        student: torch.Tensor,
        old: torch.Tensor,
    ) -> tuple[torch.Tensor, dict]:
        """One advantage a token: verl's PPO loss as it is."""
        rewards = self._rewards(data, old, mask)
        if not data["advantages_given"] and rewards is not None:
            data["advantages"] = advantages(
                self.spec, rewards.reward, mask, outcome=data["outcome"]
            )
        loss, metrics = ppo_loss(config=self.actor_config, model_output=model_output, data=data)
        metrics[SUMS] = token_sums(
            rewards,
            mask,
            data["correct"].bool(),
            student,
            advantages=data["advantages"],
            **_observed(model_output, data),
        )
        if rewards is not None:
            self._observe(metrics, data, mask, rewards, data["responses"])
        return loss, metrics

    def _top_k(
        self, model_output: dict, data: TensorDict, mask: torch.Tensor
    ) -> tuple[torch.Tensor, dict]:
        """The candidates' loss; verl's takes the outcome advantage, KL and entropy terms."""
        side: CandidateSide = candidate_side(self.spec, self.actor_config, model_output, data)
        loss, metrics = self._with_verls_terms(side.loss, model_output, data, mask)
        metrics["actor/top_k_clipfrac"] = side.clipped_frac
        metrics[SUMS] = token_sums(
            side.rewards,
            mask,
            data["correct"].bool(),
            data["old_log_probs"],
            log_ratio=self._log_ratio(data, mask),
            advantages=data["advantages"] + side.rewards.reward.sum(-1),
            **_observed(model_output, data),
        ) | overlap_sums(side.overlap, mask)
        self._observe(metrics, data, mask, side.rewards, side.ids)
        return loss, metrics

    def _full_vocabulary(
        self, model_output: dict, data: TensorDict, mask: torch.Tensor
    ) -> tuple[torch.Tensor, dict]:
        """The divergence's loss, made inside the head, in the candidates' place."""
        token_loss = response_part(model_output[DIVERGENCE_LOSS], data)
        divergence = response_part(model_output[DIVERGENCE], data)
        require_finite(divergence, mask, "divergence of student and teacher", _names(data))
        if self.spec.grpo_scaled:
            token_loss = token_loss * data["reward_scale"].unsqueeze(-1)
        loss, metrics = self._with_verls_terms(token_loss, model_output, data, mask)
        signal, passed = (response_part(model_output[key], data) for key in (SIGNAL, PASSED))
        ratio = self._log_ratio(data, mask)
        metrics[SUMS] = token_sums(
            None,
            mask,
            data["correct"].bool(),
            data["old_log_probs"],
            log_ratio=ratio,
            advantages=data["advantages"] - token_loss.detach(),
            **_observed(model_output, data),
        ) | divergence_sums(divergence, signal, passed, mask)
        # The gate works on the whole vocabulary: of a sampled token counts the share that passed.
        share = torch.where(signal > 0, passed / signal.clamp(min=_LEAST_SIGNAL), 0.0)
        no_token = torch.full_like(data["responses"], EMPTY)
        gated = TokenRewards(ratio, share * ratio, share * ratio)
        self._observe(metrics, data, mask, gated, no_token)
        return loss, metrics

    def _observe(
        self,
        metrics: dict,
        data: TensorDict,
        mask: torch.Tensor,
        rewards: TokenRewards,
        token_ids: torch.Tensor,
    ) -> None:
        if not self.observes:
            return
        metrics[OBSERVED] = observe(
            self._log_ratio(data, mask),
            rewards,
            token_ids,
            mask,
            data["correct"].bool(),
            data.get(SAMPLE_SLOT, None),
        )

    def _with_verls_terms(
        self, token_loss: torch.Tensor, model_output: dict, data: TensorDict, mask: torch.Tensor
    ) -> tuple[torch.Tensor, dict]:
        """`token_loss` [B,T] aggregated as verl does, plus verl's own terms.

        On the sampled tokens verl sees the outcome advantage alone (0 but for
        token_reward_direct_plus_grpo), so that it never doubles the teacher's signal.
        """
        none = torch.zeros_like(mask, dtype=torch.float32)
        data["advantages"] = advantages(self.spec, none, mask, outcome=data["outcome"])
        loss, metrics = ppo_loss(config=self.actor_config, model_output=model_output, data=data)
        weights = data.get("rollout_is_weights", None)
        if weights is not None:
            token_loss = token_loss * weights
        own = agg_loss(
            loss_mat=token_loss,
            loss_mask=mask,
            loss_agg_mode=self.actor_config.loss_agg_mode,
            **self.actor_config.global_batch_info,
        )
        metrics["actor/pg_loss"] += own.detach().item()
        return loss + own, metrics

    def _rewards(self, data: TensorDict, student: torch.Tensor, mask: torch.Tensor) -> Any:  # noqa: ANN401
        if not self.spec.distill:
            return None
        return token_rewards(
            self.spec,
            data["teacher_log_probs"],
            student,
            mask,
            data["correct"].bool(),
            data["reward_scale"],
            data["group_correct_frac"],
        )

    def _log_ratio(self, data: TensorDict, mask: torch.Tensor) -> torch.Tensor:
        return log_ratio(data["teacher_log_probs"], data["old_log_probs"], mask)


def _names(data: TensorDict) -> list[str]:
    return [f"extra_info.index {int(index)}" for index in data["sample_index"].tolist()]


def _observed(model_output: dict, data: TensorDict) -> dict[str, torch.Tensor | None]:
    """What is only looked at: arguments of token_sums."""
    entropy = model_output.get("logged_entropy", model_output.get("entropy"))
    return {
        "rollout_logprobs": data["rollout_log_probs"],
        "entropy": None if entropy is None else response_part(entropy, data).detach(),
        "teacher_entropy": data.get("teacher_entropy", None),
        "truncated": data.get("truncated", None),
    }
