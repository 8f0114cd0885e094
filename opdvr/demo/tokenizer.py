"""A character tokenizer of 29 tokens for the embedded task, as a transformers tokenizer."""

import os

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from opdvr.demo.task import MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS

PAD, EOS, UNK, USER, ASSISTANT = "<pad>", "<eos>", "<unk>", "<|user|>", "<|assistant|>"
# `\boxed{` is one token: spelling it out would double the answer's length.
TOKENS = (PAD, EOS, UNK, USER, ASSISTANT, "\\boxed{", "}", *"0123456789+-*=;?() ,.:")
PAD_ID, EOS_ID = TOKENS.index(PAD), TOKENS.index(EOS)
# Positions that the shipped models were built for; several times the longest prompt and response.
CONTEXT_TOKENS = 256
assert CONTEXT_TOKENS >= MAX_PROMPT_TOKENS + MAX_RESPONSE_TOKENS

# Keywords it does not know, such as enable_thinking, are not used. A message without a role gives
# nothing: that is how verl asks for a template's system prompt.
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<eos>"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer: 29 tokens, ids 0..28, one character each except `\\boxed{` and the markers.

    Padding is on the left, for generation. Any other character becomes `<unk>`.
    """
    core = Tokenizer(models.WordLevel({t: i for i, t in enumerate(TOKENS)}, unk_token=UNK))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=CONTEXT_TOKENS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    assert len(tokenizer) == len(TOKENS)
    return tokenizer


def save_tokenizer(folder: str | os.PathLike[str]) -> None:
    """Write the tokenizer's files, chat template included, into `folder`."""
    build_tokenizer().save_pretrained(os.fspath(folder))
