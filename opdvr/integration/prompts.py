"""What can be wrong with the prompts once verl has read and filtered them."""

from __future__ import annotations

from omegaconf import DictConfig
from verl.utils.dataset.rl_dataset import RLHFDataset

from opdvr.integration.terminal import say


def refuse_too_few(config: DictConfig, train_rows: int, val_rows: int) -> None:
    """Raise ValueError if the length filter left less than one step of training, or nothing."""
    limit = config.data.max_prompt_length
    say(f"{train_rows} training and {val_rows} validation prompts of up to {limit} tokens")
    if train_rows < config.data.train_batch_size or not val_rows:
        raise ValueError(
            f"{train_rows} training and {val_rows} validation prompts are left within "
            f"MAX_PROMPT_LENGTH (data.max_prompt_length) = {limit} tokens, but one step takes "
            f"{config.data.train_batch_size}; raise it, or lower MINI_BATCH_SIZE"
        )


def refuse_long_prompts(option: str, dataset: RLHFDataset, limit: int) -> None:
    """Raise ValueError, naming option and row, for the first prompt over `limit` tokens."""
    for row, messages in enumerate(dataset.dataframe[dataset.prompt_key]):
        ids = dataset.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, **dataset.apply_chat_template_kwargs
        )
        if len(ids) > limit:
            raise ValueError(
                f"{option}: the prompt of row {row} has {len(ids)} tokens, over MAX_PROMPT_LENGTH "
                f"(data.max_prompt_length) = {limit}; raise it, or let "
                "data.filter_overlong_prompts=True leave such rows out"
            )
