"""The same responses scored in two layouts, which must agree: packed into one row, and alone.

Packed is how a run scores: sequences one after another without padding, positions from 0 for each,
and only the tiled output layer (`opdvr.integration.head`). Alone is one sequence at a time through
the model's own logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from opdvr.diagnose.forward import CHECKED_TOKENS, Scored, Tokens
from opdvr.integration.head import (
    CANDIDATES,
    ENTROPY,
    LOG_PROBS,
    TOP_IDS,
    TOP_LOG_PROBS,
    ScoreRequest,
    ScoringHead,
)


@dataclass(frozen=True)
class Packed:
    """Sequences in one row of N tokens, with M response tokens.

    Attributes:
        input_ids, position_ids: [1, N] int64.
        positions: [M] int64, where in the row each response token is predicted.
        targets: [M] int64, the response tokens.
        lengths: of the responses, in order.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    lengths: list[int]

    def to(self, device: str) -> Packed:
        """The same with its tensors there."""
        names = ("input_ids", "position_ids", "positions", "targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def pack(rows: Sequence[Tokens]) -> Packed:
    """One row of all (prompt ids, response ids); neither part may be empty."""
    ids: list[int] = []
    places: list[int] = []
    positions: list[int] = []
    for prompt, response in rows:
        # A token is predicted one place before it.
        first = len(ids) + len(prompt) - 1
        positions += range(first, first + len(response))
        places += range(len(prompt) + len(response))
        ids += [*prompt, *response]
    return Packed(
        torch.tensor([ids]),
        torch.tensor([places]),
        torch.tensor(positions),
        torch.tensor([token for _, response in rows for token in response]),
        [len(response) for _, response in rows],
    )


def score_packed(
    model: torch.nn.Module,
    head: ScoringHead,
    row: Packed,
    temperature: float,
    ends: Sequence[int],
    top_k: int,
) -> list[Scored]:
    """Scores of each response as a run makes them, on the CPU; logits are never held for all."""
    request = ScoreRequest(
        positions=row.positions,
        ids=torch.stack([row.targets, *(torch.full_like(row.targets, end) for end in ends)], dim=1),
        temperature=temperature,
        with_entropy=True,
        top_k=top_k,
    )
    head.check(
        lambda: model(input_ids=row.input_ids[:, :CHECKED_TOKENS], use_cache=False).logits,
        min(CHECKED_TOKENS, row.input_ids.shape[1]),
        torch.float32,
    )
    with head.answering(request):
        logits = model(
            input_ids=row.input_ids,
            position_ids=row.position_ids,
            attention_mask=None,
            use_cache=False,
        ).logits
    columns = head.columns_of(logits, request)
    found = {name: part[row.positions].cpu().split(row.lengths) for name, part in columns.items()}
    none = torch.zeros(0)
    return [
        Scored(
            logprobs=found[LOG_PROBS][place][:, 0],
            entropy=found[ENTROPY][place][:, 0],
            top_ids=found[TOP_IDS][place].long(),
            top_logprobs=found[TOP_LOG_PROBS][place],
            end_logprobs=found[CANDIDATES][place][-1] if ends else none,
        )
        for place in range(len(row.lengths))
    ]


def score_alone(
    model: torch.nn.Module, rows: Sequence[Tokens], temperature: float, device: str
) -> list[torch.Tensor]:
    """[T] log-probs of each response, nats, by the model's own logits of one sequence at a time."""
    scores = []
    for prompt, response in rows:
        ids = torch.tensor([[*prompt, *response]], device=device)
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        targets = ids[0, len(prompt) :, None]
        scores.append((logits / temperature).log_softmax(-1).gather(-1, targets)[:, 0].cpu())
    return scores


@dataclass(frozen=True)
class Difference:
    """Where two scores of one token lie farthest apart: nats, its response and place from 0.

    NaN is the largest difference of all.
    """

    nats: float
    response: int
    place: int


def largest_difference(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> Difference:
    """Over all tokens of all responses."""
    worst = Difference(0.0, 0, 0)
    for response, (ours, theirs) in enumerate(zip(one, other, strict=True)):
        apart = torch.nan_to_num((ours - theirs).abs(), nan=torch.inf)
        nats, place = apart.max(0)
        if nats.item() > worst.nats:
            worst = Difference(nats.item(), response, int(place))
    return worst
