"""Keeps a model from sampling ids that its tokenizer does not have, as verl's rollout does."""

from __future__ import annotations

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

TOKENS_KEY = "opdvr_tokenizer_tokens"


class WithinTokenizer(LogitsProcessor):
    """Logits of the padding behind the tokenizer's last token become -inf."""

    def __init__(self, vllm_config, device, is_pin_memory):  # noqa: ANN001  (vLLM's own signature)
        self._tokens = vllm_config.additional_config[TOKENS_KEY]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """logits [rows, V], changed in place."""
        logits[:, self._tokens :] = float("-inf")
        return logits

    def is_argmax_invariant(self) -> bool:
        """The likeliest id may be one of the padding."""
        return False

    def update_state(self, batch_update: object) -> None:
        """Nothing depends on the requests."""
