"""Find the answer that a response commits to: its last complete ``\\boxed{...}``."""

import re

# One token at a time: a box that opens, an escaped character (so that \{ is text), a bare brace.
# A doubled backslash before "boxed" comes from answers that were JSON-escaped once too often.
_TOKENS = re.compile(r"\\+boxed(?![A-Za-z])\s*\{|\\.|[{}]", re.DOTALL)

# \boxed 5, \boxed\frac12, \boxed x: TeX takes one token, and models mean the whole number.
_UNBRACED = re.compile(
    r"\\+boxed[ \t]*(?P<answer>[-+]?\d[\d.,/]*|\\[A-Za-z]+[^\s$]*|(?<=[ \t])[A-Za-z](?![A-Za-z]))"
)


def extract_answer(solution_str: str) -> str:
    """Return the content of the last complete box, stripped.

    "Last" is the box that closes last, so an outer box wins over the ones inside it. A box that is
    cut off is no box; an empty last box gives "". Linear in the length of the text.

    Returns:
        The answer's text, or "" when the response commits to none.
    """
    answer, answer_end = "", -1
    open_braces: list[int | None] = []  # content start of an open box, None for any other brace
    for token in _TOKENS.finditer(solution_str):
        text = token.group()
        if text == "{":
            open_braces.append(None)
        elif text == "}":
            content_start = open_braces.pop() if open_braces else None
            if content_start is not None:
                answer, answer_end = solution_str[content_start : token.start()], token.end()
        elif text.endswith("{") and len(text) > 2:
            open_braces.append(token.end())
    for bare in _UNBRACED.finditer(solution_str, max(answer_end, 0)):
        answer = bare.group("answer").rstrip(".,")
    return answer.strip()
