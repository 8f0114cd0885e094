"""A conversation as token ids with the tokens that carry the loss: what the assistant said.

A response follows its prompt as it does when the student is sampled: the prompt is rendered with
the same template, generation prompt and thinking switch, then comes the response as it was written,
then the token with which the template ends a turn. Rendering the whole conversation instead, as
verl's own data set does, lets templates rewrite it: some drop what an assistant thought, and some
add an empty block of thought to a lone message only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

ASSISTANT = "assistant"
_THINK, _THOUGHT = "<think>", "</think>"
_PROBE = "a probe"  # a content that no template has


@dataclass(frozen=True)
class Example:
    """One row.

    Attributes:
        input_ids: of the whole conversation.
        loss_mask: 1 where the token was the assistant's, else 0; as long as `input_ids`.
        silent_turns: turns of the assistant without loss, since the template rewrites them.
        second_thought: the response brings a thought, and the prompt, with thinking off, has one.
    """

    input_ids: list[int]
    loss_mask: list[int]
    silent_turns: int = 0
    second_thought: bool = False


class Conversations:
    """Turns messages into examples.

    Args:
        tokenizer: the student's.
        template: further keywords of its chat template, such as enable_thinking.

    Raises:
        ValueError: it has no chat template, or neither that nor the tokenizer ends a response.
    """

    def __init__(self, tokenizer: Any, template: dict[str, Any] | None = None):  # noqa: ANN401
        if tokenizer.chat_template is None:
            raise ValueError("the tokenizer has no chat template; put chat_template.jinja there")
        self._tokenizer = tokenizer
        self._template = template or {}
        # Markers need not be among the named special tokens.
        added = tokenizer.added_tokens_decoder.items()
        self._special = {*tokenizer.all_special_ids, *(i for i, token in added if token.special)}
        self.end_ids = self._find_end()

    def example(self, messages: list[dict[str, Any]], thinking: bool) -> Example:
        """The row's tokens.

        Raises:
            ValueError: there is nothing to learn: no answer at the end, or an empty one.
        """
        _require_text(messages)
        response = messages[-1]["content"]
        text = self._render(messages[:-1], thinking, prompt=True)
        prompt_ids = self._ids(text)
        if text.rstrip().endswith(_THINK) and response.lstrip().startswith(_THINK):
            # The generation prompt has opened the block already.
            response = response.lstrip().removeprefix(_THINK).lstrip("\n")
        response_ids = self._continuation(text, prompt_ids, response) + self.end_ids
        mask, silent = self._earlier_turns(messages[:-1], prompt_ids, thinking)
        second_thought = not thinking and _THINK in response and text.rstrip().endswith(_THOUGHT)
        return Example(
            prompt_ids + response_ids, mask + [1] * len(response_ids), silent, second_thought
        )

    def _continuation(self, text: str, prompt_ids: list[int], response: str) -> list[int]:
        """Ids of a response after its prompt, as the tokenizer reads both together if it can."""
        together = self._ids(text + response)
        if together[: len(prompt_ids)] == prompt_ids:
            return together[len(prompt_ids) :]
        return self._ids(response)  # a token would straddle the two, which sampling cannot do

    def _earlier_turns(
        self, messages: list[dict[str, Any]], prompt_ids: list[int], thinking: bool
    ) -> tuple[list[int], int]:
        """(loss mask of the prompt, assistant's turns in it that the template rewrites)."""
        mask, silent = [0] * len(prompt_ids), 0
        for place, message in enumerate(messages):
            if message.get("role") != ASSISTANT:
                continue
            before = self._ids(self._render(messages[:place], thinking, prompt=True))
            after = self._ids(self._render(messages[: place + 1], thinking, prompt=False))
            if after[: len(before)] != before or prompt_ids[: len(after)] != after:
                silent += 1
                continue
            length = _through_first(after[len(before) :], self._special)
            mask[len(before) : len(before) + length] = [1] * length
        return mask, silent

    def _find_end(self) -> list[int]:
        """What ends a response: the template's closing up to its first special token."""
        question = [{"role": "user", "content": _PROBE}]
        answer = {"role": ASSISTANT, "content": _PROBE}
        text = self._render([*question, answer], False, prompt=False)
        place = text.rfind(_PROBE)
        if place < 0:
            raise ValueError("the chat template rewrites what is said, so its end is not found")
        said, closing = text[: place + len(_PROBE)], text[place + len(_PROBE) :]
        closing = self._continuation(said, self._ids(said), closing)
        length = _through_first(closing, self._special)
        if length and closing[length - 1] in self._special:
            return closing[:length]
        if self._tokenizer.eos_token_id is None:
            raise ValueError(
                "neither the chat template nor the tokenizer has a token that ends a response; set "
                "eos_token in tokenizer_config.json"
            )
        return [self._tokenizer.eos_token_id]

    def _render(self, messages: list[dict[str, Any]], thinking: bool, prompt: bool) -> str:
        named = {"enable_thinking": thinking, **self._template}
        try:
            return self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt, **named
            )
        except TemplateError as error:  # a template's own refusal, or its mistake
            raise ValueError(
                f"the chat template refuses it: {' '.join(str(error).split())}"
            ) from None

    def _ids(self, text: str) -> list[int]:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("it holds half a character (a lone surrogate)")
        return self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids


def _require_text(messages: list[dict[str, Any]]) -> None:
    """Raise ValueError for a row that is no conversation in text with an answer at its end."""
    if len(messages) < 2 or messages[-1].get("role") != ASSISTANT:
        raise ValueError("its last message is not the assistant's answer to another one")
    for message in messages:
        if not all(isinstance(message.get(name), str) for name in ("role", "content")):
            raise ValueError("a message has no role, or a content that is no text")
    if not messages[-1]["content"].strip():
        raise ValueError("its last message, the assistant's, is empty")


def _through_first(ids: list[int], wanted: set[int]) -> int:
    """How many of `ids` there are up to the first of `wanted` and with it; all without one."""
    return next((place + 1 for place, token in enumerate(ids) if token in wanted), len(ids))
