"""Read a data set's ground truth: one answer, or several of which any counts."""

import ast
import math
import re

from opdvr.verifier.extract import extract_answer

MAX_GOLD_CHARS = 10_000
# What str() leaves behind when a missing value went through text; no benchmark has such an answer.
_MISSING = {"None", "nan", "NaN", "null", "NULL", "<NA>", "NaT", "N/A", "n/a"}
_QUOTED_LIST = re.compile(r"\[\s*(?P<quote>['\"]).*(?P=quote)\s*,?\s*\]", re.DOTALL)
_NUMPY_SCALAR = re.compile(r"np\.(?:u?int|float)\d+\((?P<value>[^()]*)\)")


# \\x^{+}, 0^+ and A^* end in a sign that is no operator.
_DANGLING = re.compile(
    r"(?<![\^_{])(?:[+\-=/<,^_]|\\(?:times|cdot|le|ge|ne|cup|cap|in|frac|sqrt))\s*$"
)
_EMPTY_ARGUMENT = re.compile(r"\\(?:[dtc]?frac|sqrt|binom)\s*(?:\{[^{}]*\}\s*)?\{\s*\}")
_BRACKETS = re.compile(r"\\.|[()\[\]]", re.DOTALL)
_OPENING, _CLOSING = ("(", "[", r"\{"), (")", "]", r"\}")
# What is left of nothing: \\boxed{}, \\text{ }, {}, (), a space that is not seen.
_DRESS = re.compile(
    r"\\(?:boxed|fbox|text\w*|math\w+)\b|[\s{}()\[\]$.\\\u200b-\u200f\u2060\ufeff\u00ad]"
)
_PUNCTUATION = re.compile(r"[\s.,;:?!'\"_$*`~]+")


def _balanced(text: str) -> bool:
    depth = 0
    for token in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0


def _flaw(text: str) -> str | None:
    """Why the text is no answer or no LaTeX, in a few words; None for a sound one."""
    if r"\{" not in text and not _DRESS.sub("", text):
        return "empty text"
    if text in _MISSING:
        return f"a missing value as text ({text!r})"
    shown = repr(text[:60])
    if not _balanced(text):
        return f"unbalanced braces in {shown}"
    if _PUNCTUATION.fullmatch(text):
        return f"nothing but punctuation in {shown}"
    # Half-open intervals close with another kind than they open with.
    brackets = _BRACKETS.findall(text)
    if sum(map(brackets.count, _OPENING)) != sum(map(brackets.count, _CLOSING)):
        return f"a bracket without its partner in {shown}"
    if text.count(r"\begin") != text.count(r"\end"):
        return f"an environment without its end in {shown}"
    if _EMPTY_ARGUMENT.search(text):
        return f"an empty argument in {shown}"
    if len(text) > 1 and _DANGLING.search(text):
        return f"an operator at the end of {shown}"
    return None


def _clean(text: str) -> str:
    text = text.strip()
    if match := _NUMPY_SCALAR.fullmatch(text):
        text = match["value"].strip()
    bare = text.strip("$ ").rstrip(".").rstrip("$ ")
    if bare.startswith(("\\boxed", "\\fbox")):
        text = extract_answer(bare.replace("\\fbox", "\\boxed", 1)) or text
    return text


def _flatten(ground_truth: object, depth: int = 2) -> list[str]:
    # numpy scalars and arrays turn into Python's own types, without an import of numpy here.
    if hasattr(ground_truth, "tolist"):
        ground_truth = ground_truth.tolist()
    if isinstance(ground_truth, list | tuple | set):
        if not ground_truth:
            raise ValueError("empty list")
        if depth == 0:
            raise ValueError("a list of lists of lists")
        return [text for item in ground_truth for text in _flatten(item, depth - 1)]
    if ground_truth is None:
        raise ValueError("missing (None)")
    if isinstance(ground_truth, float) and not math.isfinite(ground_truth):
        raise ValueError(f"not a number ({ground_truth})")
    if not isinstance(ground_truth, str | int | float):
        raise ValueError(f"a {type(ground_truth).__name__}, not text, a number or a list of them")
    text = ground_truth if isinstance(ground_truth, str) else repr(ground_truth)
    if len(text) > MAX_GOLD_CHARS:
        raise ValueError(f"{len(text)} characters long (at most {MAX_GOLD_CHARS})")
    if _QUOTED_LIST.fullmatch(text.strip()):
        try:
            return _flatten(ast.literal_eval(text.strip()), depth - 1)
        except (SyntaxError, MemoryError, RecursionError):  # all three for text that is no list
            return [text]
    return [text]


def gold_answers(ground_truth: object) -> list[str]:
    """Return the acceptable answers as text, cleaned of ``$``-wrapping, boxes and numpy's repr.

    Text and numbers give one answer, a list (also one written out as ``['3', '5']``) any-of.

    Raises:
        ValueError: with the reason, when it cannot be used as a gold answer.
    """
    answers = [_clean(text) for text in _flatten(ground_truth)]
    for answer in answers:
        if flaw := _flaw(answer):
            raise ValueError(flaw)
    return answers


def validate_gold(ground_truth: object) -> str | None:
    """Check one gold answer without any symbolic parsing (some 10 microseconds).

    Returns:
        None when the verifier can use it, else a one-line reason: missing, empty, nan, a type that
        is no text, number or list of them, or LaTeX that is cut off or malformed.
    """
    try:
        gold_answers(ground_truth)
    except ValueError as reason:
        return str(reason)
    return None
