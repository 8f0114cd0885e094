"""Rule rewards for a whole batch: decode once, verify together, errors propagate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from verl import DataProto
from verl.workers.reward_manager.abstract import AbstractRewardManager

from opdvr.verifier import compute_score as own_compute_score
from opdvr.verifier import compute_scores, counters

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
        golds = [model["ground_truth"] for model in models]
        verdicts = [_complete(row) for row in self._verify(sources, texts, golds, extras)]
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

    def _verify(
        self, sources: list[str], texts: list[str], golds: list[Any], extras: list[Any]
    ) -> list[Any]:
        function, arguments = _unwrapped(self.compute_score)
        if function is own_compute_score:
            return compute_scores(sources, texts, golds, **arguments)
        return [
            self.compute_score(
                data_source=source, solution_str=text, ground_truth=gold, extra_info=extra
            )
            for source, text, gold, extra in zip(sources, texts, golds, extras, strict=True)
        ]


def _unwrapped(compute_score: Callable) -> tuple[Callable, dict[str, Any]]:
    """verl wraps the configured function in a partial of (its caller, the function, kwargs)."""
    if isinstance(compute_score, partial) and len(compute_score.args) == 2:
        return compute_score.args
    return compute_score, {}


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


def verifier_failures(area: str) -> dict[str, float]:
    """Comparisons that ran out of time or failed since the last call, which counted as wrong."""
    counts = counters(reset=True)
    return {f"{area}/{name}": float(counts[name]) for name in ("timeout", "error")}
