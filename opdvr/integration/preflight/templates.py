"""The first training prompts as both models' chat templates render them, and how long they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jinja2 import TemplateError
from omegaconf import DictConfig, OmegaConf

from opdvr.diagnose.tokenizers import template_difference
from opdvr.eval.problems import QUIETLY
from opdvr.integration.preflight.finding import Finding, error, note, warning
from opdvr.integration.preflight.sides import STUDENT, TEACHER, Side

MAX_PROMPT_LENGTH = "MAX_PROMPT_LENGTH (data.max_prompt_length)"
TEMPLATE_OPTIONS = "data.apply_chat_template_kwargs"
_THOUGHT_TAG = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>")
_OPEN, _CLOSED, _ABSENT = "opens a thought", "closes an empty thought", "says nothing of a thought"
_SCORES_IDS = "the teacher scores the student's own token ids, so it reads the student's form"

Prompts = list[tuple[int, list[dict[str, Any]]]]


def template_options(config: DictConfig) -> dict[str, Any]:
    """What the run gives to the chat template."""
    return OmegaConf.to_container(config.data.get("apply_chat_template_kwargs") or DictConfig({}))


def check_templates(
    config: DictConfig, sides: dict[str, Side], tokenizers: dict[str, Any], prompts: Prompts
) -> Iterator[Finding]:
    """A template that is missing or fails; two that render the first prompt otherwise.

    Args:
        tokenizers: by role; at least the student's.
        prompts: (row, messages); none where the training file could not be read.
    """
    texts = {}
    for role, tokenizer in tokenizers.items():
        if tokenizer.chat_template is None:
            yield _no_template(sides[role])
        elif prompts:
            row, messages = prompts[0]
            try:
                texts[role] = render(tokenizer, messages, template_options(config))
            except (TemplateError, TypeError) as reason:
                yield _failing_template(sides[role], row, reason)
    if len(texts) == 2:
        yield from _compare(sides[TEACHER], texts, prompts[0])


def render(tokenizer: Any, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:  # noqa: ANN401
    """A prompt as the rollout builds it.

    Raises:
        jinja2.TemplateError, TypeError: the template refuses it.
    """
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, **options
    )


def tokenised(
    tokenizer: Any,  # noqa: ANN401
    prompts: Prompts,
    options: dict[str, Any],
) -> list[tuple[int, list[int]]]:
    """(row, token ids) of the prompts that the template renders, as the rollout has them."""
    found = []
    for row, messages in prompts:
        try:
            ids = tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=True,
                tokenize=True,
                tokenizer_kwargs=QUIETLY,
                **options,
            )
        except (TemplateError, TypeError):
            continue  # `check_templates` says it of the first one
        found.append((row, list(ids)))
    return found


def check_prompt_lengths(config: DictConfig, lengths: list[tuple[int, int]]) -> Iterator[Finding]:
    """First training prompts, (row, tokens), that are longer than what a prompt may have."""
    limit = config.data.max_prompt_length
    long = [(row, length) for row, length in lengths if length > limit]
    if not long:
        return
    row, length = max(long, key=lambda entry: entry[1])
    what = (
        f"{len(long)} of the first {len(lengths)} prompts are longer than {limit} tokens "
        f"(row {row}: {length})"
    )
    remedy = f"set MAX_PROMPT_LENGTH to {length} or more, or leave these rows out"
    if not config.data.get("filter_overlong_prompts", True):
        why = "data.filter_overlong_prompts=False leaves them in, and the run stops at the first"
        yield error(MAX_PROMPT_LENGTH, what, why, remedy)
    elif len(long) == len(lengths):
        why = "longer ones are dropped before the run, and few or none remain"
        yield error(MAX_PROMPT_LENGTH, what, why, remedy)
    else:
        yield warning(MAX_PROMPT_LENGTH, what, "they are dropped before the run", remedy)


def _no_template(side: Side) -> Finding:
    what = f"the {side.role}'s tokenizer has no chat template ({side.tokenizer_folder})"
    if side.role == STUDENT:
        why = "the rollout builds every prompt with it"
        remedy = (
            "put chat_template.jinja into that folder (the teacher's, where the teacher has one), "
            "or set actor_rollout_ref.model.custom_chat_template"
        )
        return error(str(side.option), what, why, remedy)
    why = (
        "it was trained on plain text, and its tokens for roles may mean little to it; "
        f"{_SCORES_IDS}"
    )
    return warning(
        str(side.option), what, why, "compare the first tokens' log-ratio (opdvr diagnose)"
    )


def _failing_template(side: Side, row: int, reason: Exception) -> Finding:
    what = f"the {side.role}'s chat template fails on training row {row}: {reason}"
    if side.role == STUDENT:
        why = "the run drops every prompt that it fails on"
        remedy = f"mend the row's messages, the template, or {TEMPLATE_OPTIONS}"
        return error(str(side.option), what, why, remedy)
    return note(str(side.option), what, "the two forms were not compared")


def _compare(teacher: Side, texts: dict[str, str], first: tuple[int, list]) -> Iterator[Finding]:
    row, messages = first
    difference = template_difference(texts[STUDENT], texts[TEACHER])
    if difference is None:
        return
    thoughts = {role: _thought(text, messages) for role, text in texts.items()}
    where = str(teacher.option)
    if thoughts[STUDENT] != thoughts[TEACHER]:
        what = (
            f"on training row {row} the student's prompt {thoughts[STUDENT]} and the teacher's "
            f"{thoughts[TEACHER]} ({difference})"
        )
        why = f"{_SCORES_IDS}; the log-ratio of a response's first tokens is then huge"
        remedy = (
            f"set enable_thinking in {TEMPLATE_OPTIONS} to what the teacher was trained with, "
            "or take a teacher of the same mode"
        )
    else:
        what = f"the chat templates render training row {row} otherwise: {difference}"
        why = f"{_SCORES_IDS}, which it may not know"
        remedy = (
            "if the teacher was trained with its own, give that to the student "
            "(actor_rollout_ref.model.custom_chat_template)"
        )
    yield warning(where, what, why, remedy)


def _thought(text: str, messages: list[dict[str, Any]]) -> str:
    """What the template, and not a message, says of a thought at the end of the prompt."""
    for message in messages:
        if isinstance(content := message.get("content"), str) and content:
            text = text.replace(content, " ")
    tags = _THOUGHT_TAG.findall(text)
    if not tags:
        return _ABSENT
    return _CLOSED if tags[-1] else _OPEN
