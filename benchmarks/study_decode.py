"""Decoding for the embedded task's Qwen3 models with little overhead a token.

transformers' own forward takes twice the processor time at these sizes, most of it for calls.
B rows, P prompt tokens, T response tokens, N heads, D head size, H hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, rotate_half


class Decoder:
    """The model's next-token logits, one token a row at a time, over a cache of fixed size.

    Holds the weights of the moment: make a new one after an update. rows: B. length: P + T.
    Raises ValueError for a model with more than one key-value head or with biases.
    """

    def __init__(self, model: Qwen3ForCausalLM, rows: int, length: int) -> None:
        config = model.config
        if config.num_key_value_heads != 1 or config.attention_bias:
            raise ValueError(
                "the study decodes Qwen3 models with one key-value head and without biases: "
                f"num_key_value_heads={config.num_key_value_heads}, "
                f"attention_bias={config.attention_bias}"
            )
        self._model = model
        self._layers = [_Layer(layer, rows, length) for layer in model.model.layers]
        positions = torch.arange(length)[None]
        probe = torch.empty(0, dtype=torch.float32)
        cos, sin = model.model.rotary_emb(probe, positions)
        self._cos, self._sin = cos[0], sin[0]
        self._filled = 0

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [B,V] after `tokens` [B,n], which follow what was given before."""
        start, self._filled = self._filled, self._filled + tokens.shape[1]
        cos, sin = self._cos[start : self._filled], self._sin[start : self._filled]
        hidden = self._model.model.embed_tokens(tokens)
        for layer in self._layers:
            hidden = layer(hidden, start, cos, sin)
        return self._model.lm_head(_normed(hidden[:, -1], self._model.model.norm))


class _Layer:
    def __init__(self, layer: Qwen3DecoderLayer, rows: int, length: int) -> None:
        self._layer = layer
        attention, mlp = layer.self_attn, layer.mlp
        self._size = attention.head_dim
        # One product instead of three, and of two.
        self._qkv = torch.cat(
            [p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
        )
        self._gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        self._keys = torch.empty(rows, length, self._size)
        self._values = torch.empty(rows, length, self._size)

    def __call__(
        self, hidden: torch.Tensor, start: int, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        layer = self._layer
        attended = self._attention(_normed(hidden, layer.input_layernorm), start, cos, sin)
        hidden = hidden + layer.self_attn.o_proj(attended)
        gate, up = F.linear(_normed(hidden, layer.post_attention_layernorm), self._gate_up).chunk(
            2, -1
        )
        return hidden + layer.mlp.down_proj(F.silu(gate) * up)

    def _attention(
        self, hidden: torch.Tensor, start: int, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        rows, new, _ = hidden.shape
        # [B,n,N+2,D]: the heads' queries, the one key, the one value
        heads = F.linear(hidden, self._qkv).view(rows, new, -1, self._size)
        attention = self._layer.self_attn
        query = _rotated(_normed(heads[:, :, :-2], attention.q_norm), cos, sin)
        end = start + new
        self._keys[:, start:end] = _rotated(
            _normed(heads[:, :, -2:-1], attention.k_norm), cos, sin
        ).squeeze(2)
        self._values[:, start:end] = heads[:, :, -1]
        keys, values = self._keys[:, :end], self._values[:, :end]
        # Heads beside positions, since all share the key: [B,n*N,end]
        scores = query.reshape(rows, -1, self._size) @ keys.transpose(1, 2)
        scores = (scores * self._size**-0.5).view(rows, new, -1, end)
        if new > 1:
            is_future = torch.arange(end) > torch.arange(start, end)[:, None]
            scores = scores.masked_fill(is_future[:, None], -torch.inf)
        weights = scores.softmax(-1).view(rows, -1, end)
        return (weights @ values).view(rows, new, -1)


def _rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    # heads [B,n,N,D], cos and sin [n,D]
    return heads * cos[:, None] + rotate_half(heads) * sin[:, None]


def _normed(values: torch.Tensor, norm: torch.nn.Module) -> torch.Tensor:
    return F.rms_norm(values, values.shape[-1:], norm.weight, norm.variance_epsilon)
