"""Which responses were cut off at a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from verl import DataProto


def truncated_responses(batch: DataProto, ends: Callable[[], set[int]]) -> torch.Tensor:
    """[B] bool: by the finish reason or, without one, the missing end. Kept in the batch."""
    if "truncated" not in batch.batch.keys():
        batch.batch["truncated"] = without_end(batch, ends)
    return batch.batch["truncated"]


def without_end(batch: DataProto, ends: Callable[[], set[int]]) -> torch.Tensor:
    """[B] bool: the last token ends no response, or there is no token."""
    responses = batch.batch["responses"]
    lengths = batch.batch["attention_mask"][:, -responses.shape[1] :].sum(-1)
    last = responses.gather(1, (lengths - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return ~torch.isin(last, torch.tensor(sorted(ends()))) | (lengths == 0)


def end_tokens(tokenizer: Any, model_path: str) -> set[int]:  # noqa: ANN401
    """Ids that end a response, by the tokenizer and the model's generation configuration."""
    from verl.utils.model import get_generation_config

    ends = {tokenizer.eos_token_id}
    configured = getattr(get_generation_config(model_path), "eos_token_id", None)
    if configured is not None:
        ends |= set(configured) if isinstance(configured, list) else {configured}
    return {token for token in ends if token is not None}
