"""The loss that workers run: token rewards from the update's own forward, then verl's PPO loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.utils.losses import _slice_response_from_unpad_output as response_part
from verl.workers.utils.losses import ppo_loss

from opdvr.core import MethodSpec, advantages, require_finite, token_rewards, token_sums

SUMS = "opdvr_sums"  # name under which the additive sums of a micro-batch travel to the trainer


@dataclass
class ForwardLoss:
    """verl's `ppo_loss`, with what the update's own forward makes unnecessary to compute before.

    `update`: old log-probs are this forward's, detached, and the advantages are made from them;
    with one mini-batch and one epoch the ratio is 1: the gradient is that of the recompute path.
    `rollout`: old log-probs and advantages come from the trainer; only the metrics are made here.
    Reads of the batch: teacher_log_probs [B,T], correct [B], reward_scale [B], outcome [B],
    rollout_log_probs [B,T], sample_index [B], advantages [B,T].
    """

    spec: MethodSpec
    student_logprobs: str
    actor_config: Any = None

    def __call__(
        self, model_output: dict, data: TensorDict, dp_group: object = None
    ) -> tuple[torch.Tensor, dict]:
        """Scalar loss (verl's aggregation) and metrics; 0 for a batch without a valid token.

        Raises:
            NonFiniteError: a student log-prob at a valid position is NaN or infinite.
        """
        student = response_part(model_output["log_probs"], data).detach().float()
        mask = data["response_mask"].bool()
        names = [f"extra_info.index {int(index)}" for index in data["sample_index"].tolist()]
        require_finite(student, mask, "student log-prob", names)
        old = student if self.student_logprobs == "update" else data["old_log_probs"]
        rewards = self._rewards(data, old, mask)
        if not data["advantages_given"] and rewards is not None:
            data["advantages"] = advantages(
                self.spec, rewards.reward, mask, outcome=data["outcome"]
            )
        data["old_log_probs"] = old
        if not data["batch_num_tokens"]:
            tu.assign_non_tensor(data, batch_num_tokens=1)
        loss, metrics = ppo_loss(config=self.actor_config, model_output=model_output, data=data)
        entropy = model_output.get("logged_entropy", model_output.get("entropy"))
        metrics[SUMS] = token_sums(
            rewards,
            mask,
            data["correct"].bool(),
            student,
            rollout_logprobs=data["rollout_log_probs"],
            entropy=None if entropy is None else response_part(entropy, data).detach(),
            teacher_entropy=data.get("teacher_entropy", None),
            advantages=data["advantages"],
        )
        return loss, metrics

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
        )
