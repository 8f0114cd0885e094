"""Puts `opdvr.core.head` in the place of a model's output layer, inside the model's own forward.

The layer keeps its parameters and name, so FSDP, LoRA and checkpoints see nothing: only its
`forward` is answered by us while a request is set. The unsharded weight exists nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from opdvr.core import score_tokens

# A config that has one of these, not neutral, changes logits after the output layer.
_LOGIT_CHANGERS = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}


@dataclass(frozen=True)
class ScoreRequest:
    """What to compute from hidden states [1, N, H].

    positions [M] int64: packed positions to score, those that predict a response token;
    targets [M] int64: the token that comes next at each of them.
    """

    positions: torch.Tensor
    targets: torch.Tensor
    temperature: float
    with_entropy: bool


class ScoringHead:
    """Answers an output layer with [1, N, 2]: log-prob and entropy, fp32, 0 where not asked."""

    def __init__(self, model: nn.Module, chunk_tokens: int):
        layer = model.get_output_embeddings()
        changers = [
            name
            for name, neutral in _LOGIT_CHANGERS.items()
            if getattr(model.config, name, neutral) not in (None, neutral)
        ]
        if not isinstance(layer, nn.Linear) or changers:
            raise ValueError(
                f"{type(model).__name__} is not supported: its logits are not one linear layer on "
                f"the last hidden state ({', '.join(changers) or type(layer).__name__})"
            )
        self._chunk_tokens = chunk_tokens
        self._request: ScoreRequest | None = None
        plain_forward = layer.forward

        def forward(hidden: torch.Tensor) -> torch.Tensor:
            if self._request is None:
                return plain_forward(hidden)
            return self._score(layer, hidden)

        layer.forward = forward

    @contextmanager
    def answering(self, request: ScoreRequest) -> Iterator[None]:
        """While open, the model's `logits` are the scores of `request`."""
        self._request = request
        try:
            yield
        finally:
            self._request = None

    def _score(self, layer: nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
        request = self._request
        logprobs, entropy = score_tokens(
            hidden[0].index_select(0, request.positions),
            layer.weight,
            request.targets,
            bias=layer.bias,
            temperature=request.temperature,
            chunk_tokens=self._chunk_tokens,
            with_entropy=request.with_entropy,
        )
        columns = torch.stack(
            (logprobs, torch.zeros_like(logprobs) if entropy is None else entropy), dim=-1
        )
        scores = columns.new_zeros(hidden.shape[1], 2)
        return scores.index_copy(0, request.positions, columns).unsqueeze(0)
