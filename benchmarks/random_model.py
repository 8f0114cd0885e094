"""Qwen3 models of any shape with random weights: what they cost is real, what they say is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Shape:
    """Of a model."""

    vocabulary: int
    hidden: int
    layers: int


END_TOKEN, PAD_TOKEN = 1, 0


def write_random_model(folder: Path, name: str, shape: Shape) -> str:
    """A model folder `folder/name` in float32, the same for the same name; returns its path."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(sum(map(ord, name)))
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=3 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // 64,
        num_key_value_heads=max(1, shape.hidden // 128),
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=END_TOKEN,
        pad_token_id=PAD_TOKEN,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).float().save_pretrained(folder / name)
    return str(folder / name)
