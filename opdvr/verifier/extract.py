"""Find the answer that a response commits to: its last complete ``\\boxed{...}`` with content."""

import re

# One token at a time: a box that opens, an escaped character (so that \{ is text), a bare brace.
# A doubled backslash before "boxed" comes from answers that were JSON-escaped once too often.
# Two at most: a run of a million backslashes must not be read from each of its places.
_TOKENS = re.compile(r"\\{1,2}boxed(?![A-Za-z])\s*\{|\\.|[{}]", re.DOTALL)

_SOMETHING = re.compile(r"\s*\S")
# A box, whole or cut off, with something in it.
_A_BOX = re.compile(r"\\boxed\s*(?:\{\s*[^\s}]|[^\s{A-Za-z])")
# \boxed 5, \boxed\frac12, \boxed x: TeX takes one token, and models mean the whole number.
_UNBRACED = re.compile(
    r"\\{1,2}boxed[ \t]*(?P<answer>[-+]?\d[\d.,/]*|(?!\\boxed)\\[A-Za-z]+[^\s$]*"
    r"|(?<=[ \t])[A-Za-z](?![A-Za-z]))"
)


# Where an answer follows: "Answer: 5", "The final answer is 5.", "#### 5" (GSM8K).
_STATED = re.compile(
    r"(?:\b(?:final\s{1,3})?answer\b[*_\s]{0,5}(?:(?:is|are)\b|:|=)[*_\s]{0,5}:?|^\s{0,9}####)"
    r"[*_ \t]{0,9}",
    re.IGNORECASE | re.MULTILINE,
)
_LONGEST_STATED = 2100
_SENTENCE_END = re.compile(r"\.(?:\s|$)|\*\*")

BOXED, ANY = "boxed", "any"
ANSWER_FORMS = (BOXED, ANY)


def extract_answer(solution_str: str, answer_forms: str = BOXED) -> str:
    """Return the content of the last complete box that is not empty, stripped.

    "Last" is the box that closes last, so an outer box wins over the ones inside it. A box that is
    cut off is no box; an empty one (a prompt's ``\\boxed{}``, echoed) is passed over. Linear in the
    length of the text.

    Args:
        solution_str: the response's text.
        answer_forms: "boxed", or "any": in a response without any box the last "Answer: ...",
            "The answer is ..." or "#### ..." counts, to the end of its sentence or line.

    Returns:
        The answer's text, or "" when the response commits to none.

    Raises:
        ValueError: for other `answer_forms`.
    """
    if answer_forms not in ANSWER_FORMS:
        raise ValueError(f"answer_forms={answer_forms!r} is unknown: use one of {ANSWER_FORMS}")
    answer = _boxed(solution_str)
    if answer or answer_forms == BOXED or _A_BOX.search(solution_str):
        return answer
    stated = None
    for stated in _STATED.finditer(solution_str):  # noqa: B007
        pass
    if stated is None:
        return ""
    line = solution_str[stated.end() : stated.end() + _LONGEST_STATED].split("\n", 1)[0]
    return _SENTENCE_END.split(line, maxsplit=1)[0].strip()


def _boxed(solution_str: str) -> str:
    # Braces before the first box close nothing of it.
    first = solution_str.find(r"\boxed")
    if first < 0:
        return ""
    start, end, answer_end = 0, 0, -1
    open_braces: list[int | None] = []  # content start of an open box, None for any other brace
    for token in _TOKENS.finditer(solution_str, max(first - 1, 0)):
        text = token.group()
        if text == "{":
            open_braces.append(None)
        elif text == "}":
            content_start = open_braces.pop() if open_braces else None
            if content_start is not None:
                # Blank for an empty box; slicing each of many nested ones would be quadratic.
                if _SOMETHING.match(solution_str, content_start, token.start()):
                    start, end, answer_end = content_start, token.start(), token.end()
        elif text.endswith("{") and len(text) > 2:
            open_braces.append(token.end())
    answer = solution_str[start:end].strip()
    for bare in _UNBRACED.finditer(solution_str, max(answer_end, first - 1, 0)):
        answer = bare.group("answer").rstrip(".,")
    return answer
