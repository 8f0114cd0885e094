"""The `sft` option group: what verl's SFT configuration has no place for."""

from __future__ import annotations

from dataclasses import dataclass

from opdvr.integration.options import MODEL_DTYPES


@dataclass
class SftOptions:
    """`sft.<field>=value` on the command line.

    Attributes:
        thinking: render every row with the template's thinking on or off; None takes each row's
            own `enable_thinking`, which the rollouts write, and off for rows without.
        model_dtype: dtype of computation; the weights that are trained are float32.
        head_chunk_tokens: tokens in a tile of logits; None lets the device choose.
        demo: this is the embedded task.
    """

    thinking: bool | None = None
    model_dtype: str = "bfloat16"
    head_chunk_tokens: int | None = None
    demo: bool = False

    def validate(self) -> None:
        """Raise ValueError for what is out of range."""
        if self.model_dtype not in MODEL_DTYPES:
            raise ValueError(
                f"MODEL_DTYPE (sft.model_dtype) is {self.model_dtype!r}; it must be one of "
                f"{', '.join(MODEL_DTYPES)}"
            )
