"""Prompt lengths in tokens, counted by the call that training makes."""

from collections.abc import Sequence

from opdvr.data.progress import Progress


def prompt_lengths(
    prompts: Sequence[list[dict]], tokenizer_path: str, enable_thinking: bool
) -> list[int]:
    """Tokens of each prompt (a list of messages) with the chat template and generation prompt.

    The only part of `opdvr.data` that imports transformers.

    Raises:
        ValueError: no tokenizer there, or one without a chat template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"--tokenizer {tokenizer_path} cannot be loaded ({reason}); give a model folder"
        ) from None
    if tokenizer.chat_template is None:
        raise ValueError(f"--tokenizer {tokenizer_path} has no chat template; training needs one")
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
