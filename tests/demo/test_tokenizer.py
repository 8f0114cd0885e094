"""The character tokenizer: length, round trip and chat template."""

import random

import pytest
from transformers import AutoTokenizer

from opdvr.demo.task import (
    MAX_PROMPT_TOKENS,
    MAX_RESPONSE_TOKENS,
    STYLES,
    Habits,
    problems,
    solve,
)
from opdvr.demo.tokenizer import EOS_ID, PAD_ID, TOKENS, build_tokenizer, save_tokenizer


@pytest.fixture(scope="module", params=["built", "saved"])
def tokenizer(request, tmp_path_factory):
    if request.param == "built":
        return build_tokenizer()
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_length_equals_vocabulary(tokenizer):
    assert len(tokenizer) == tokenizer.vocab_size == len(TOKENS) == 29
    assert sorted(tokenizer.get_vocab().values()) == list(range(29))
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD_ID, EOS_ID)
    assert MAX_PROMPT_TOKENS + MAX_RESPONSE_TOKENS <= tokenizer.model_max_length < 10_000


def test_round_trip_one_token_a_character(tokenizer):
    text = r"7*8+9=65; (4-1)?,.: \boxed{2785}"
    ids = tokenizer(text).input_ids
    # \boxed{ is seven characters and one token, everything else one each.
    assert len(ids) == len(text) - 6
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, EOS_ID, PAD_ID], skip_special_tokens=True) == text


def test_unknown_characters_become_unk(tokenizer):
    assert tokenizer.convert_ids_to_tokens(tokenizer("1\nx").input_ids) == ["1", "<unk>", "<unk>"]


def test_chat_template(tokenizer):
    chat = [{"role": "user", "content": "347*8+9=?"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>347*8+9=?<|assistant|>"
    quiet = tokenizer.apply_chat_template(chat, add_generation_prompt=True, enable_thinking=False)
    assert quiet == tokenizer(text).input_ids
    chat.append({"role": "assistant", "content": "1"})
    whole = tokenizer.apply_chat_template(chat, tokenize=False)
    assert whole == "<|user|>347*8+9=?<|assistant|>1<eos>"
    # verl asks for the system prompt's tokens this way.
    assert tokenizer.apply_chat_template([{}], tokenize=True) == []


def test_stated_lengths_hold_for_every_careful_solution(tokenizer):
    chosen = random.Random(0).sample(problems("train"), 2000)
    prompts = {
        len(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": p.prompt}], add_generation_prompt=True
            )
        )
        for p in chosen
    }
    assert prompts == {MAX_PROMPT_TOKENS}
    for style in STYLES:
        texts = [solve(p, Habits(style=style)) for p in chosen]
        longest = max(len(ids) + 1 for ids in tokenizer(texts).input_ids)  # and the end token
        assert longest == MAX_RESPONSE_TOKENS
