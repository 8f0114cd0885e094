"""Puts `opdvr.core.head` in the place of a model's output layer, inside the model's own forward.

The layer keeps its parameters and name, so FSDP, LoRA and checkpoints see nothing: only its
`forward` is answered by us while a request is set. The unsharded weight exists nowhere else. What a
model does to logits afterwards (a scale, a soft cap) is switched off meanwhile and done by us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from opdvr.core import GivenLogits, OutputLayer, score_tokens
from opdvr.core.divergence import DivergenceScores
from opdvr.integration.terminal import say

# Attributes of a config (or model) that change logits after the output layer: neutral value, and
# what they do to the scale. Gemma 2 and 3; Cohere multiplies; Granite divides.
_SOFT_CAP = "final_logit_softcapping"
_SCALES: dict[str, Callable[[float], float]] = {
    "logit_scale": lambda value: value,
    "logits_scaling": lambda value: 1 / value,
}
# float32 columns hold ids exactly up to here; no vocabulary comes near it.
_LARGEST_EXACT = 2**24
# Largest difference of log-probs, nats, between the model's own logits and ours: rounding only.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.25}


class Column(NamedTuple):
    """A result of `width` float32 values a token."""

    name: str
    width: int


LOG_PROBS, ENTROPY, CANDIDATES = "log_probs", "entropy", "candidate_log_probs"
TOP_IDS, TOP_LOG_PROBS, HIDDEN = "top_ids", "top_log_probs", "hidden"
DIVERGENCE_LOSS, DIVERGENCE = "divergence_loss", "divergence"
SIGNAL, PASSED = "divergence_signal", "divergence_passed"
OF_DIVERGENCE = (DIVERGENCE_LOSS, DIVERGENCE, SIGNAL, PASSED)


@dataclass(frozen=True)
class ScoreRequest:
    """What to compute from hidden states [1, N, H].

    positions [M] int64: packed positions to score, those that predict a response token.
    ids [M, 1 + C] int64: the token that comes next, then candidates, -1 in empty slots.
    top_k: how many of the likeliest ids to give; vocabulary: only ids below it exist, None for all.
    with_hidden: also give the hidden states themselves. divergence: (student's layer, hidden
    states [M, H]) to DivergenceScores [M], or None.
    """

    positions: torch.Tensor
    ids: torch.Tensor
    temperature: float
    with_entropy: bool
    top_k: int = 0
    vocabulary: int | None = None
    with_hidden: bool = False
    divergence: Callable[[Any, torch.Tensor | None], DivergenceScores] | None = None

    def columns(self, hidden_size: int) -> list[Column]:
        """What the answer consists of, in order."""
        widths = {
            LOG_PROBS: 1,
            ENTROPY: int(self.with_entropy),
            CANDIDATES: self.ids.shape[1] - 1,
            TOP_IDS: self.top_k,
            TOP_LOG_PROBS: self.top_k,
            HIDDEN: hidden_size if self.with_hidden else 0,
        } | dict.fromkeys(OF_DIVERGENCE, int(self.divergence is not None))
        return [Column(name, width) for name, width in widths.items() if width]


@dataclass
class _Neutralised:
    """Attributes set to a value inside the context and back after it."""

    changes: list[tuple[object, str, object]] = field(default_factory=list)

    @contextmanager
    def applied(self) -> Iterator[None]:
        before = [getattr(holder, name) for holder, name, _ in self.changes]
        try:
            for holder, name, value in self.changes:
                setattr(holder, name, value)
            yield
        finally:
            for (holder, name, _), value in zip(self.changes, before, strict=True):
                setattr(holder, name, value)


class ScoringHead:
    """Answers an output layer with [1, N, columns], fp32, 0 where not asked.

    Where the model's logits are not a linear layer on the last hidden state (with a scale or soft
    cap that its config names), `columns_of` makes the same from the model's own logits.
    """

    def __init__(self, model: nn.Module, tile_tokens: int | None):
        self._model_name = type(model).__name__
        self._tile_tokens = tile_tokens
        self._request: ScoreRequest | None = None
        self._checked = False
        layer = model.get_output_embeddings()
        self._replaces = isinstance(layer, nn.Linear)
        self._hidden_size = layer.in_features if self._replaces else 0
        self._scale, self._soft_cap, self._neutralised = _after_the_layer(model)
        if not self._replaces:
            self._fall_back(f"its output layer is a {type(layer).__name__}")
            return
        plain_forward = layer.forward

        def forward(hidden: torch.Tensor) -> torch.Tensor:
            if self._request is None or not self._replaces:
                return plain_forward(hidden)
            source = OutputLayer(
                layer.weight,
                layer.bias,
                logit_scale=self._scale,
                soft_cap=self._soft_cap,
                vocabulary=self._request.vocabulary,
            )
            return self._answer(source, hidden[0], hidden.shape[1])

        layer.forward = forward

    def _fall_back(self, reason: str) -> None:
        self._replaces, self._checked = False, True
        say(
            f"opdvr: {self._model_name}: {reason}; scoring takes the model's own logits, whole "
            "[tokens, vocabulary]"
        )

    def output_layer(self, layer: nn.Module) -> OutputLayer:
        """`layer`, the model's own (sharded or not), as a copy on the CPU.

        Raises:
            ValueError: we cannot stand in for this model's head.
        """
        self._require_replaced()

        def whole(tensor: torch.Tensor | None) -> torch.Tensor | None:
            if tensor is None:
                return None
            return getattr(tensor, "full_tensor", lambda: tensor)().detach().cpu().clone()

        return OutputLayer(
            whole(layer.weight),
            whole(layer.bias),
            logit_scale=self._scale,
            soft_cap=self._soft_cap,
        )

    def _require_replaced(self) -> None:
        if not self._replaces:
            raise ValueError(
                "FULL_VOCABULARY (opdvr.full_vocabulary) needs a teacher whose logits are one "
                f"linear layer on the last hidden state; {self._model_name} is not"
            )

    @contextmanager
    def answering(self, request: ScoreRequest) -> Iterator[None]:
        """While open, the model's `logits` are the answer to `request`, or what it is made from."""
        self._request = request
        try:
            if self._replaces:
                with self._neutralised.applied():
                    yield
            else:
                yield
        finally:
            self._request = None

    def columns_of(self, logits: torch.Tensor, request: ScoreRequest) -> dict[str, torch.Tensor]:
        """The model's `logits` of an answered forward as {column: [N, width]}, in packed order.

        Raises:
            ValueError: hidden states are asked of a model whose head we cannot replace.
        """
        if not self._replaces:
            if request.with_hidden:
                self._require_replaced()
            given = logits[0].index_select(0, request.positions)
            source = GivenLogits(given, vocabulary=request.vocabulary)
            self._request = request
            logits = self._answer(source, None, logits.shape[1])
            self._request = None
        columns = request.columns(self._hidden_size)
        parts = logits[0].split([column.width for column in columns], -1)
        return {column.name: part for column, part in zip(columns, parts, strict=True)}

    def check(self, forward: Callable[[], torch.Tensor], n_tokens: int, dtype: torch.dtype) -> None:
        """Once: compare our log-probs of all ids with the model's own logits; falls back if wrong.

        forward: runs the model on n_tokens tokens, without gradient, and gives its `logits`. Every
        rank has to come here at its first forward.
        """
        if self._checked:
            return
        self._checked = True
        own = forward().float()[0]
        device, vocabulary = own.device, own.shape[1]
        request = ScoreRequest(
            positions=torch.arange(n_tokens, device=device),
            ids=torch.arange(-1, vocabulary, device=device).clamp(min=0).expand(n_tokens, -1),
            temperature=1.0,
            with_entropy=False,
        )
        with self.answering(request):
            ours = self.columns_of(forward(), request)[CANDIDATES]
        difference = (ours - own.log_softmax(-1)).abs().amax().item()
        if not difference <= _TOLERANCE[dtype]:
            self._fall_back(
                "its logits are more than one linear layer on the last hidden state (log-probs "
                f"differ by {difference:.3g} nats)"
            )

    def _answer(
        self, source: OutputLayer | GivenLogits, hidden: torch.Tensor | None, n_tokens: int
    ) -> torch.Tensor:
        request = self._request
        if hidden is not None:
            hidden = hidden.index_select(0, request.positions)
        scores = score_tokens(
            source,
            hidden,
            request.ids,
            temperature=request.temperature,
            with_entropy=request.with_entropy,
            top_k=request.top_k,
            tile_tokens=self._tile_tokens,
        )
        assert request.vocabulary is None or request.vocabulary < _LARGEST_EXACT
        values = {
            LOG_PROBS: scores.logprobs[:, :1],
            ENTROPY: None if scores.entropy is None else scores.entropy[:, None],
            CANDIDATES: scores.logprobs[:, 1:],
            TOP_IDS: None if scores.top_ids is None else scores.top_ids.float(),
            TOP_LOG_PROBS: scores.top_logprobs,
            HIDDEN: hidden,
        }
        if request.divergence is not None:
            divergence = request.divergence(source, hidden)
            values |= {
                name: value[:, None] for name, value in zip(OF_DIVERGENCE, divergence, strict=True)
            }
        columns = [values[column.name].float() for column in request.columns(self._hidden_size)]
        joined = torch.cat(columns, -1)
        answer = joined.new_zeros(n_tokens, joined.shape[1])
        return answer.index_copy(0, request.positions, joined).unsqueeze(0)


def _after_the_layer(model: nn.Module) -> tuple[float, float | None, _Neutralised]:
    """(scale, soft cap, what to switch off) of the logits after the output layer."""
    config = model.config.get_text_config()
    scale, neutralised = 1.0, _Neutralised()
    for name, effect in _SCALES.items():
        value = getattr(config, name, None)
        if value in (None, 1.0):
            continue
        scale *= effect(value)
        neutralised.changes += [
            (holder, name, 1.0) for holder in (config, model) if hasattr(holder, name)
        ]
    soft_cap = getattr(config, _SOFT_CAP, None)
    if soft_cap is not None:
        neutralised.changes.append((config, _SOFT_CAP, None))
    return scale, soft_cap, neutralised
