"""Prompts as teachers were post-trained with them: a small registry of words around a problem."""

from __future__ import annotations

from typing import Any

from opdvr.data.text import INSTRUCTIONS, problem_of, prompt_of

_, _DAPO_BEFORE, _DAPO_AFTER = INSTRUCTIONS
KEEP = "keep"
PLACE = "{problem}"
# Name: the prompt's text with the problem in its place, and what it is. `boxed` is not a text: it
# leaves out the request where the problem has one.
TEMPLATES = {
    KEEP: (None, "prompts as they are"),
    "none": (PLACE, "the problem alone, known instructions taken off"),
    "boxed": (None, "our suffix: step by step, the answer within \\boxed{}"),
    "dapo": (f"{_DAPO_BEFORE}\n\n{PLACE}\n\n{_DAPO_AFTER}", "DAPO's: 'Answer: ...' on a last line"),
}


def check_template(template: str) -> None:
    """Raise ValueError for a text that is neither a name in TEMPLATES nor has {problem} once."""
    if template not in TEMPLATES and template.count(PLACE) != 1:
        raise ValueError(
            f"--template {template!r}: give one of {', '.join(TEMPLATES)}, or a text with "
            f"{PLACE} in it once"
        )


def rewritten(prompt: str, template: str) -> str:
    """A prompt in a template's words."""
    if template == KEEP:
        return prompt
    problem = problem_of(prompt)
    if template == "boxed":
        return prompt_of(problem)
    text = TEMPLATES[template][0] if template in TEMPLATES else template
    # Not str.format: a problem and a template are full of braces.
    return text.replace(PLACE, problem)


def rewrite_messages(messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """Messages whose last one is rewritten; the others, and its other fields, stay."""
    *before, last = messages
    return [*before, {**last, "content": rewritten(last["content"], template)}]
