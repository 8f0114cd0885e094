"""A model's scores of given responses, by transformers' forward pass and the tiled output layer.

The logits of all tokens are never held: `opdvr.integration.head` answers the output layer, at the
positions that predict a response token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from opdvr.integration.head import (
    CANDIDATES,
    ENTROPY,
    LOG_PROBS,
    TOP_IDS,
    TOP_LOG_PROBS,
    ScoreRequest,
    ScoringHead,
)

# Tokens of one forward pass, padding included: fills a GPU, and fits a CPU's cache of small models.
_BATCH_TOKENS = {"cuda": 32768, "cpu": 4096}
# How many tokens the check of the output layer runs on: each with all logits.
CHECKED_TOKENS = 8


class Scored(NamedTuple):
    """Scores of one response of T tokens, on the CPU; float32, nats.

    Attributes:
        logprobs: [T] of its tokens.
        entropy: [T].
        top_ids: [T,K] int64, by falling probability; -1 where fewer ids exist.
        top_logprobs: [T,K].
        end_logprobs: [E], of the end ids at the place of its last token.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    end_logprobs: torch.Tensor


@dataclass(frozen=True)
class Scoring:
    """How to score.

    vocabulary: only ids below it exist. end_ids: [E]. temperature: divides the logits.
    device, dtype: torch's names.
    """

    vocabulary: int
    end_ids: tuple[int, ...]
    top_k: int
    temperature: float
    device: str
    dtype: str


Tokens = tuple[tuple[int, ...], tuple[int, ...]]  # prompt, response


def score_responses(folder: Path, sequences: Sequence[Tokens], scoring: Scoring) -> list[Scored]:
    """Scores of each (prompt ids, response ids), in order; the model's memory is free afterwards.

    Raises:
        ValueError: the model does not load.
    """
    assert all(prompt and response for prompt, response in sequences), "neither may be empty"
    model = _load(folder, scoring)
    head = ScoringHead(model, None)
    _take_batches(model)
    results: list[Scored | None] = [None] * len(sequences)
    with torch.no_grad():
        _check(model, head, sequences[0], scoring)
        for places in _batches([len(p) + len(r) for p, r in sequences], scoring.device):
            batch = [sequences[place] for place in places]
            for place, scored in zip(
                places, _score_batch(model, head, batch, scoring), strict=True
            ):
                results[place] = scored
    del model, head
    if scoring.device == "cuda":
        torch.cuda.empty_cache()
    return results


def _load(folder: Path, scoring: Scoring) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    try:
        dtype = getattr(torch, scoring.dtype)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{folder} does not load as a causal language model: {reason}") from None
    return model.to(scoring.device).eval()


def _take_batches(model: torch.nn.Module) -> None:
    """`ScoringHead` answers packed rows, [1, N, H]: batches are laid out as one row."""
    layer = model.get_output_embeddings()
    if not isinstance(layer, torch.nn.Linear):
        return
    answer = layer.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        return answer(hidden.reshape(1, -1, hidden.shape[-1]))

    layer.forward = forward


def _packed_logits(model: torch.nn.Module, **inputs: torch.Tensor) -> torch.Tensor:
    logits = model(**inputs, use_cache=False).logits
    return logits.reshape(1, -1, logits.shape[-1])


def _check(model: torch.nn.Module, head: ScoringHead, sequence: Tokens, scoring: Scoring) -> None:
    """Once: our scores against the model's own logits."""
    ids = torch.tensor([sequence[0] + sequence[1]], device=scoring.device)[:, :CHECKED_TOKENS]
    dtype = getattr(torch, scoring.dtype)
    head.check(lambda: _packed_logits(model, input_ids=ids), ids.shape[1], dtype)


def _batches(lengths: Sequence[int], device: str) -> Iterator[list[int]]:
    """Places of about equally long sequences, at most so many padded tokens together."""
    places: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        # The first one is the longest.
        if places and (len(places) + 1) * lengths[places[0]] > _BATCH_TOKENS[device]:
            yield places
            places = []
        places.append(place)
    if places:
        yield places


def _score_batch(
    model: torch.nn.Module, head: ScoringHead, batch: Sequence[Tokens], scoring: Scoring
) -> Iterator[Scored]:
    width = max(len(prompt) + len(response) for prompt, response in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    positions, wanted = [], []
    for row, (prompt, response) in enumerate(batch):
        ids[row, : len(prompt) + len(response)] = torch.tensor(prompt + response)
        mask[row, : len(prompt) + len(response)] = 1
        # A token is predicted one place before it.
        start = row * width + len(prompt) - 1
        positions += range(start, start + len(response))
        wanted += [(token, *scoring.end_ids) for token in response]
    request = ScoreRequest(
        positions=torch.tensor(positions, device=scoring.device),
        ids=torch.tensor(wanted, device=scoring.device),
        temperature=scoring.temperature,
        with_entropy=True,
        top_k=scoring.top_k,
        vocabulary=scoring.vocabulary,
    )
    inputs = {"input_ids": ids.to(scoring.device), "attention_mask": mask.to(scoring.device)}
    with head.answering(request):
        logits = _packed_logits(model, **inputs)
    columns = head.columns_of(logits, request)
    found = {name: column[request.positions].cpu() for name, column in columns.items()}
    return _by_response(found, [len(response) for _, response in batch])


def _by_response(found: dict[str, torch.Tensor], lengths: Sequence[int]) -> Iterator[Scored]:
    parts: dict[str, Any] = {name: column.split(lengths) for name, column in found.items()}
    for row in range(len(lengths)):
        yield Scored(
            logprobs=parts[LOG_PROBS][row][:, 0],
            entropy=parts[ENTROPY][row][:, 0],
            top_ids=parts[TOP_IDS][row].long(),
            top_logprobs=parts[TOP_LOG_PROBS][row],
            end_logprobs=parts[CANDIDATES][row][-1] if CANDIDATES in parts else torch.zeros(0),
        )
