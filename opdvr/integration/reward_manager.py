"""Rule rewards for a whole batch: decode once, verify together, errors propagate."""

from __future__ import annotations

from typing import Any

import torch
from verl import DataProto
from verl.workers.reward_manager.abstract import AbstractRewardManager

VERDICT_KEYS = ("score", "acc", "pred")


class VerifierRewardManager(AbstractRewardManager):
    """verl's reward-manager interface around a `compute_score` function."""

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401
        num_examine: int,
        compute_score: Any,  # noqa: ANN401
        reward_fn_key: str = "data_source",
        **_kwargs: object,
    ):
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.compute_score = compute_score
        self.reward_fn_key = reward_fn_key

    def __call__(self, data: DataProto, return_dict: bool = False) -> torch.Tensor | dict[str, Any]:
        """reward_tensor [B,T] fp32: the score at each response's last token, 0 elsewhere.

        With return_dict also reward_extra_info: score, acc and pred, a list of B each.
        """
        responses = data.batch["responses"]
        lengths = data.batch["attention_mask"][:, -responses.shape[1] :].sum(-1)
        texts = self.tokenizer.batch_decode(
            [
                row[:length]
                for row, length in zip(responses.tolist(), lengths.tolist(), strict=True)
            ],
            skip_special_tokens=True,
        )
        sources = data.non_tensor_batch[self.reward_fn_key]
        models = data.non_tensor_batch["reward_model"]
        extras = data.non_tensor_batch.get("extra_info", [None] * len(texts))
        verdicts = [
            _complete(
                self.compute_score(
                    data_source=source,
                    solution_str=text,
                    ground_truth=model["ground_truth"],
                    extra_info=extra,
                )
            )
            for source, text, model, extra in zip(sources, texts, models, extras, strict=True)
        ]
        scores = torch.tensor([verdict["score"] for verdict in verdicts], dtype=torch.float32)
        rewards = torch.zeros(responses.shape, dtype=torch.float32)
        last = (lengths - 1).clamp(min=0)
        rewards[torch.arange(len(texts)), last] = scores
        if not return_dict:
            return rewards
        keys = sorted(set().union(*verdicts), key=lambda key: (key not in VERDICT_KEYS, key))
        return {
            "reward_tensor": rewards,
            "reward_extra_info": {key: [v.get(key) for v in verdicts] for key in keys},
        }


def _complete(verdict: dict[str, Any] | float) -> dict[str, Any]:
    """One schema on every row, also where a user's own function returns a number or half a dict."""
    if not isinstance(verdict, dict):
        verdict = {"score": float(verdict)}
    score = float(verdict["score"])
    return {
        **verdict,
        "score": score,
        "acc": float(verdict.get("acc", score)),
        "pred": verdict.get("pred", ""),
    }
