"""Read a data set's ground truth: one answer, or several of which any counts."""

import ast
import math
import re

from opdvr.verifier.extract import extract_answer

# What str() leaves behind when a missing value went through text; no benchmark has such an answer.
_MISSING = {"None", "nan", "NaN", "null", "NULL", "<NA>", "NaT"}
_QUOTED_LIST = re.compile(r"\[\s*(?P<quote>['\"]).*(?P=quote)\s*,?\s*\]", re.DOTALL)
_NUMPY_SCALAR = re.compile(r"np\.(?:u?int|float)\d+\((?P<value>[^()]*)\)")


def _balanced(text: str) -> bool:
    depth = 0
    for token in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0


def _clean(text: str) -> str:
    text = text.strip()
    if match := _NUMPY_SCALAR.fullmatch(text):
        text = match["value"].strip()
    bare = text.strip("$ ").rstrip(".").rstrip("$ ")
    if bare.startswith(("\\boxed", "\\fbox")):
        text = extract_answer(bare.replace("\\fbox", "\\boxed", 1)) or text
    return text


def _flatten(ground_truth: object) -> list[str]:
    # numpy scalars and arrays turn into Python's own types, without an import of numpy here.
    if hasattr(ground_truth, "tolist"):
        ground_truth = ground_truth.tolist()
    if isinstance(ground_truth, list | tuple | set):
        if not ground_truth:
            raise ValueError("empty list")
        return [text for item in ground_truth for text in _flatten(item)]
    if ground_truth is None:
        raise ValueError("missing (None)")
    if isinstance(ground_truth, float) and not math.isfinite(ground_truth):
        raise ValueError(f"not a number ({ground_truth})")
    if not isinstance(ground_truth, str | int | float):
        raise ValueError(f"a {type(ground_truth).__name__}, not text, a number or a list of them")
    text = str(ground_truth)
    if _QUOTED_LIST.fullmatch(text.strip()):
        try:
            return _flatten(ast.literal_eval(text.strip()))
        except SyntaxError:
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
        if not answer.strip("$. "):
            raise ValueError("empty text")
        if answer in _MISSING:
            raise ValueError(f"a missing value as text ({answer!r})")
        if not _balanced(answer):
            raise ValueError(f"unbalanced braces in {answer[:60]!r}")
    return answers


def validate_gold(ground_truth: object) -> str | None:
    """Check one gold answer without any symbolic parsing (under 10 microseconds).

    Returns:
        None when the verifier can use it, else a one-line reason: missing, empty, nan, a type that
        is no text, number or list of them, unbalanced braces.
    """
    try:
        gold_answers(ground_truth)
    except ValueError as reason:
        return str(reason)
    return None
