"""Where logits come from: a linear output layer, or a table that somebody else computed.

N tokens, H hidden size, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class OutputLayer:
    """A linear output layer: logits = scale * (hidden @ weight.T + bias), then the soft cap.

    Attributes:
        weight: [V,H], whole (not a shard).
        bias: [V] or None. -inf excludes an id, as inference engines do with padded vocabularies.
        logit_scale: multiplies the logits (Cohere multiplies by c; Granite divides by c: give 1/c).
        soft_cap: logits become cap * tanh(logits / cap) (Gemma 2).
        vocabulary: only ids below it exist, the rest is padding of the matrix; None is V.

    Raises:
        ValueError: a scale of 0, a cap that is not positive, a vocabulary outside 1..V.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    logit_scale: float = 1.0
    soft_cap: float | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.logit_scale) and self.logit_scale != 0):
            raise ValueError(f"logit_scale={self.logit_scale} must be finite and not 0")
        if self.soft_cap is not None and not self.soft_cap > 0:
            raise ValueError(f"soft_cap={self.soft_cap} must be positive; None is no cap")
        assert self.weight.dim() == 2, "weight [V,H]"
        assert self.bias is None or self.bias.shape == self.weight.shape[:1], "bias [V]"
        _check_vocabulary(self.vocabulary, self.weight.shape[0])

    @property
    def size(self) -> int:
        """Number of ids that exist."""
        return self.weight.shape[0] if self.vocabulary is None else self.vocabulary


@dataclass(frozen=True, eq=False)
class GivenLogits:
    """Logits that somebody else computed: the fallback where a head is not one linear layer.

    Attributes:
        logits: [N,V], whatever a model's head does already done.
        vocabulary: only ids below it exist; None is V.

    Raises:
        ValueError: a vocabulary outside 1..V.
    """

    logits: torch.Tensor
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        assert self.logits.dim() == 2, "logits [N,V]"
        _check_vocabulary(self.vocabulary, self.logits.shape[1])

    @property
    def size(self) -> int:
        """Number of ids that exist."""
        return self.logits.shape[1] if self.vocabulary is None else self.vocabulary


def _check_vocabulary(vocabulary: int | None, width: int) -> None:
    if vocabulary is not None and not 1 <= vocabulary <= width:
        raise ValueError(f"vocabulary={vocabulary} must be between 1 and the {width} ids there are")


Source = OutputLayer | GivenLogits


def inputs_of(
    source: Source, hidden: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """What a gradient may be wanted for: (hidden or logits, weight or None, bias or None)."""
    if isinstance(source, GivenLogits):
        assert hidden is None, "given logits need no hidden states"
        return source.logits, None, None
    assert hidden is not None and hidden.dim() == 2, "hidden [N,H]"
    assert hidden.shape[1] == source.weight.shape[1], "hidden [N,H], weight [V,H]"
    return hidden, source.weight, source.bias
