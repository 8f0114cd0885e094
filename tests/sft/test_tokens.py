"""Which tokens of a conversation carry the loss, token by token under the chat template."""

import chat
import pytest

from opdvr.demo.tokenizer import build_tokenizer
from opdvr.sft.tokens import Conversations

USER = {"role": "user", "content": "How much is it?"}


def split(template, messages, thinking=False, **named):
    """(text without loss, text with loss) of a row, and the example itself."""
    tokenizer = chat.tokenizer(template, **named)
    example = Conversations(tokenizer).example(messages, thinking)
    assert len(example.input_ids) == len(example.loss_mask)
    parts = [
        tokenizer.decode(
            [i for i, m in zip(example.input_ids, example.loss_mask, strict=True) if m == wanted]
        )
        for wanted in (0, 1)
    ]
    return (*parts, example)


def answer(text):
    return {"role": "assistant", "content": text}


def test_every_token_of_a_plain_row():
    tokenizer = chat.tokenizer(chat.PLAIN)
    example = Conversations(tokenizer).example([USER, answer("Four.")], False)
    rows = zip(tokenizer.convert_ids_to_tokens(example.input_ids), example.loss_mask, strict=True)
    assert list(rows) == [
        ("<|im_start|>", 0),
        ("user", 0),
        ("\n", 0),
        *[(token, 0) for token in ("How", " ", "much", " ", "is", " ", "it", "?")],
        ("<|im_end|>", 0),
        ("\n", 0),
        ("<|im_start|>", 0),
        ("assistant", 0),
        ("\n", 0),
        ("Four", 1),
        (".", 1),
        # The end is learnt; the line break behind it is never sampled.
        ("<|im_end|>", 1),
    ]


def test_the_embedded_tasks_template():
    tokenizer = build_tokenizer()
    messages = [{"role": "user", "content": "347*8+9=?"}, answer("7*8+9=65;\\boxed{2785}")]
    example = Conversations(tokenizer).example(messages, False)
    assert tokenizer.decode(example.input_ids) == (
        "<|user|>347*8+9=?<|assistant|>7*8+9=65;\\boxed{2785}<eos>"
    )
    assert example.loss_mask == [0] * 11 + [1] * (9 + 1 + 4 + 1 + 1)


def test_a_default_system_message_is_part_of_the_prompt():
    prompt, learnt, _ = split(chat.WITH_SYSTEM, [USER, answer("Four.")])
    assert prompt.startswith("<|im_start|>system\nYou are kind<|im_end|>\n<|im_start|>user\n")
    assert learnt == "Four.<|im_end|>"


def test_a_system_message_of_ones_own_is_kept_and_not_learnt():
    system = {"role": "system", "content": "You are kind"}
    prompt, learnt, _ = split(chat.WITH_SYSTEM, [system, USER, answer("Four.")])
    assert prompt.count("You are kind") == 1 and learnt == "Four.<|im_end|>"


def test_without_thinking_the_empty_thought_is_the_prompts():
    prompt, learnt, _ = split(chat.EMPTY_THOUGHT, [USER, answer("Four.")], thinking=False)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert learnt == "Four.<|im_end|>"


def test_with_thinking_the_thought_is_learnt():
    text = "<think>\nbecause\n</think>\n\nFour."
    prompt, learnt, _ = split(chat.EMPTY_THOUGHT, [USER, answer(text)], thinking=True)
    assert prompt.endswith("<|im_start|>assistant\n")
    assert learnt == f"{text}<|im_end|>"


@pytest.mark.parametrize(
    "written", ["<think>\nbecause</think>\n\nFour.", "because</think>\n\nFour."]
)
def test_a_thought_that_the_prompt_opens_is_opened_once_and_never_lost(written):
    prompt, learnt, _ = split(chat.FORGETS_THOUGHTS, [USER, answer(written)])
    assert prompt.endswith("<|im_start|>assistant\n<think>\n")
    assert learnt == "because</think>\n\nFour.<|im_end|>"


def test_earlier_answers_are_learnt_too():
    messages = [USER, answer("Four."), USER, answer("Five.")]
    prompt, learnt, example = split(chat.PLAIN, messages)
    assert learnt == "Four.<|im_end|>Five.<|im_end|>"
    assert prompt.count("<|im_start|>assistant\n") == 2 and example.silent_turns == 0


def test_earlier_answers_that_the_template_rewrites_carry_no_loss():
    messages = [USER, answer("<think>\nbecause</think>\n\nFour."), USER, answer("Five.")]
    prompt, learnt, example = split(chat.FORGETS_THOUGHTS, messages)
    assert learnt == "Five.<|im_end|>" and example.silent_turns == 1
    assert "because" not in prompt and "Four." in prompt


def test_a_template_without_an_end_takes_the_tokenizers():
    _, learnt, _ = split(chat.WITHOUT_END, [USER, answer("Four.")])
    assert learnt == "Four.\n<|end|>" or learnt == "Four.<|end|>"


@pytest.mark.parametrize(
    ("template", "eos", "message"),
    [(None, "<|end|>", "no chat template"), (chat.WITHOUT_END, None, "ends a response")],
)
def test_tokenizers_that_cannot_be_learnt_with_are_refused(template, eos, message):
    with pytest.raises(ValueError, match=message):
        Conversations(chat.tokenizer(template, eos=eos))


@pytest.mark.parametrize(
    "messages",
    [[], [USER], [answer("Four.")], [USER, answer("")], [USER, answer(" \n")], [USER, USER]],
)
def test_rows_without_an_answer_are_refused(messages):
    with pytest.raises(ValueError, match="last message"):
        Conversations(chat.tokenizer(chat.PLAIN)).example(messages, False)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"role": "user"}, "no text"),
        ({"role": None, "content": "Hi"}, "no role"),
        ({"role": "user", "content": [{"type": "text", "text": "Hi"}]}, "no text"),
        ({"role": "user", "content": "Hi \ud83d"}, "half a character"),
    ],
)
def test_broken_messages_are_refused(broken, message):
    with pytest.raises(ValueError, match=message):
        Conversations(chat.tokenizer(chat.PLAIN)).example([broken, answer("Four.")], False)


def test_what_a_template_refuses_is_said_in_its_words():
    refuses = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system, please') }}{% endif %}"
    )
    messages = [{"role": "system", "content": "You are kind"}, USER, answer("Four.")]
    with pytest.raises(ValueError, match="the chat template refuses it: No system, please"):
        Conversations(chat.tokenizer(refuses + chat.PLAIN)).example(messages, False)


def test_an_end_marker_that_is_special_without_a_name():
    """Some tokenizers mark <end_of_turn> as special, and name only <eos>."""
    from tokenizers import AddedToken

    tokenizer = chat.tokenizer(chat.PLAIN.replace("<|im_end|>", "<end_of_turn>"))
    tokenizer.add_tokens([AddedToken("<end_of_turn>", special=True)])
    assert "<end_of_turn>" not in tokenizer.all_special_tokens
    conversations = Conversations(tokenizer)
    assert tokenizer.convert_ids_to_tokens(conversations.end_ids) == ["<end_of_turn>"]
    messages = [USER, answer("Four."), USER, answer("Five.")]
    example = conversations.example(messages, False)
    learnt = [i for i, m in zip(example.input_ids, example.loss_mask, strict=True) if m]
    assert tokenizer.decode(learnt) == "Four.<end_of_turn>Five.<end_of_turn>"


@pytest.mark.parametrize(("thinking", "noticed"), [(False, True), (True, False)])
def test_a_thought_behind_an_empty_one_is_noticed(thinking, noticed):
    text = "<think>\nbecause\n</think>\n\nFour."
    example = split(chat.EMPTY_THOUGHT, [USER, answer(text)], thinking)[2]
    assert example.second_thought is noticed
    assert not split(chat.PLAIN, [USER, answer(text)])[2].second_thought
