"""Prompt lengths in tokens, counted by the call that training makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opdvr.data.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# One of these is part of every tokenizer.
_FILES = ("tokenizer*", "vocab*")


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder, with a chat template.

    The only part of `opdvr.data` that imports transformers.

    Raises:
        ValueError: no such folder, no tokenizer there, or one without a chat template.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"--tokenizer {folder}: tokenizer folder not found")
    if not any(file for pattern in _FILES for file in Path(folder).glob(pattern)):
        raise ValueError(f"--tokenizer {folder} has no tokenizer; give a model folder")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"--tokenizer {folder} cannot be loaded ({reason}); give a model folder"
        ) from None
    if tokenizer.chat_template is None:
        raise ValueError(f"--tokenizer {folder} has no chat template; training needs one")
    return tokenizer


def prompt_lengths(
    prompts: Sequence[list[dict]], tokenizer: PreTrainedTokenizerBase, enable_thinking: bool
) -> list[int]:
    """Tokens of each prompt (a list of messages) with the chat template and generation prompt."""
    counted = Progress(len(prompts), "prompts tokenized").over(prompts)
    return [
        len(
            tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                enable_thinking=enable_thinking,
            )
        )
        for messages in counted
    ]
