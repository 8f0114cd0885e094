"""Do ids, end tokens and chat templates of student and teacher agree?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opdvr.eval.models import Model
from opdvr.integration.vocabulary import read_json, read_vocabulary

# Of two prompts what stands around the first difference.
_BEFORE_CHARS, _AFTER_CHARS = 20, 60


@dataclass(frozen=True)
class Vocabularies:
    """What the two id-to-token maps have in common.

    Attributes:
        length: ids of the student's tokenizer, the highest one plus one; what may be sampled.
        difference: the first id that means something else to the teacher, in words; None if none.
        teacher_more: ids that the teacher's tokenizer has beyond `length`.
    """

    length: int
    difference: str | None
    teacher_more: int = 0


def compare_vocabularies(student: Model, teacher: Model) -> Vocabularies:
    """The two maps up to the length of the student's tokenizer; also rows of the output layers.

    Raises:
        ValueError: a folder without tokenizer.json and vocab.json, or with a damaged one.
    """
    ours, theirs = (_tokens(model) for model in (student, teacher))
    length = max(ours) + 1
    for role, model in (("student", student), ("teacher", teacher)):
        config = read_json(model.folder / "config.json")
        width = config.get("text_config", config).get("vocab_size")
        if width is not None and width < length:
            text = f"the {role} has {width} logits, the student's tokenizer {length} ids"
            return Vocabularies(length, text)
    for token_id in range(length):
        token, other = ours.get(token_id), theirs.get(token_id)
        if token is not None and token != other:
            shown = "missing" if other is None else repr(other)
            text = f"id {token_id} is {token!r} in the student and {shown} in the teacher"
            return Vocabularies(length, text)
    return Vocabularies(length, None, max(0, max(theirs) + 1 - length))


def _tokens(model: Model) -> dict[int, str]:
    tokens = read_vocabulary(model.folder)
    if not tokens:
        raise ValueError(
            f"{model.name} has no tokenizer.json or vocab.json, so that ids cannot be compared; "
            "save its tokenizer as a fast one"
        )
    return tokens


def end_ids(model: Model, tokenizer: Any) -> list[int]:  # noqa: ANN401
    """Ids that end a response, rising: the tokenizer's and the generation configuration's."""
    ends = {tokenizer.eos_token_id}
    path = model.folder / "generation_config.json"
    configured = read_json(path).get("eos_token_id") if path.is_file() else None
    ends |= set(configured) if isinstance(configured, list) else {configured}
    return sorted(end for end in ends if end is not None)


def special_tokens(model: Model, tokenizer: Any) -> dict[str, Any]:  # noqa: ANN401
    """bos, eos and pad token, and the ids that end a response."""
    named = {f"{name}_token": getattr(tokenizer, f"{name}_token") for name in ("bos", "eos", "pad")}
    return named | {"end_ids": end_ids(model, tokenizer)}


def template_difference(one: str, other: str) -> str | None:
    """Where two renderings of a prompt first differ, a piece of each; None where they do not."""
    if one == other:
        return None
    longest = min(len(one), len(other))
    at = next((i for i in range(longest) if one[i] != other[i]), longest)
    start = max(0, at - _BEFORE_CHARS)
    pieces = [text[start : at + _AFTER_CHARS] for text in (one, other)]
    return f"from character {at}: student {pieces[0]!r}, teacher {pieces[1]!r}"


def render(tokenizer: Any, messages: list[dict[str, Any]], thinking: bool) -> str:  # noqa: ANN401
    """A prompt as the model reads it."""
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, enable_thinking=thinking
    )
