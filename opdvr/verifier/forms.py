"""The shape of an answer: a value, a list, a set, a tuple or interval, a union, a matrix, a
relation. Read from tidied LaTeX by its brackets alone; what the values are is left to others.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

from opdvr.verifier.leaves import Leaf, read_leaf


@dataclass(frozen=True)
class Items:
    """Several answers without order: ``1, -2`` or, with braces, ``\\{1, -2\\}``.

    `joint` is "and" or "or" where a word joins them, which matters between inequalities, and
    "land" or "lor" for the signs of logic.
    """

    items: tuple["Form", ...]
    braces: bool = False
    joint: str = field(default="", compare=False)


@dataclass(frozen=True)
class Bracketed:
    """A tuple, point or interval: order and brackets count."""

    opening: str
    items: tuple["Form", ...]
    closing: str


@dataclass(frozen=True)
class Union:
    """Parts joined by ``\\cup``, without order."""

    parts: tuple["Form", ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of entries; vectors are matrices of one row or column. `whole` is the text as a leaf."""

    rows: tuple[tuple["Form", ...], ...]
    whole: Leaf


@dataclass(frozen=True)
class Relation:
    """``a < b \\le c``: operands and the signs between them, with the text as a leaf."""

    operands: tuple["Form", ...]
    signs: tuple[str, ...]
    whole: Leaf


Form = Leaf | Items | Bracketed | Union | Matrix | Relation

# Deeper nesting than answers have; beyond it the text is one leaf.
_MAX_DEPTH = 12
_TOKENS = re.compile(
    r"\\begin\s*\{[a-zA-Z*]+\}|\\end\s*\{[a-zA-Z*]+\}|\\[A-Za-z]+|\\.|[{}()\[\],;&]|<|>|=|[^\\{}()\[\],;&<>=]+",
    re.DOTALL,
)
_OPEN = {"{", "(", "[", r"\{"}
_CLOSE = {"}", ")", "]", r"\}"}
_SIGNS = {
    "=": "=", "<": "<", ">": ">", r"\lt": "<", r"\gt": ">", r"\le": "<=", r"\ge": ">=",
    r"\ne": "!=", r"\in": "in", r"\approx": "~", r"\sim": "sim", r"\simeq": "simeq",
    r"\equiv": "==", r"\cong": "cong",
    r"\to": "to", r"\mapsto": "to", r"\Rightarrow": "to", r"\implies": "to",
}  # fmt: skip
_JOINT = re.compile(
    r"\s*,?\s*(?:\\text\s*\{\s*,?\s*(?P<text>and|or)\s*,?\s*\}"
    r"|(?<![A-Za-z\\])(?P<bare>and|or)(?![A-Za-z])|\\(?P<sign>lor|vee|land|wedge)(?![A-Za-z]))\s*"
)
_MATRIX = re.compile(
    r"\\begin\s*\{(?P<kind>[pbB]?(?:small)?matrix|array)\}(?:\s*\{[clr|@ ]*\})?(?P<body>.*)"
    r"\\end\s*\{(?P=kind)\}(?P<transposed>\s*\^\s*\{?\s*(?:T|\\top|\\intercal|\\text\s*\{T\})\s*\}?)?",
    re.DOTALL,
)
_ROWS = re.compile(
    r"\\begin\s*\{(?P<kind>cases|aligned|gathered)\}(?P<body>.*)\\end\s*\{(?P=kind)\}", re.DOTALL
)
# 1 & n even: what follows the mark is no sign, so that the row is a case and no equation.
_CONDITIONS = re.compile(r"\\text|&\s*(?![=<>\\&\s])|\\(?:if|in)(?![A-Za-z])")
_ROW_END = re.compile(r"\\\\(?:\[[^\]]*\])?|\\cr(?![A-Za-z])")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_CONDITION = re.compile(r"\\(?:mid|colon|vert)(?![A-Za-z])|[|:]")


@lru_cache(maxsize=8192)
def read_form(text: str) -> Form:
    """The shape of a tidied answer; a text without one is a `Leaf`."""
    return _read(text.strip(), _MAX_DEPTH)


def as_list(text: str) -> Form | None:
    """``100,200`` as two numbers, where `read_form` took it for one with a thousands comma."""
    if not re.fullmatch(r"\d{1,3}(?:,\d{3})+", text):
        return None
    return Items(tuple(read_leaf(part) for part in text.split(",")))


def _read(text: str, depth: int) -> Form:
    if depth == 0 or read_leaf(text).literal is not None:
        return read_leaf(text)
    environment = _read_environment(text, depth)
    if environment is not None:
        return environment
    start = text.find("}") + 1 if text.startswith("\\text") else 0  # a list may begin with words
    joint = _JOINT.search(text, start)
    text = text[:start] + _JOINT.sub(" , ", text[start:])
    for separator in (";", ","):
        parts = [part.strip() for part in _split(text, {separator})]
        parts = [part for part in parts if part]
        if len(parts) > 1:
            return Items(_expand(parts, depth), joint=_joint_word(joint))
    text = parts[0] if parts else text
    if _PLUS_MINUS.search(text) and text[0] in "([" and not _several_signs(text):
        return Items(_expand([text], depth))
    for read in (_read_union, _read_relation, _read_brackets):
        form = read(text, depth)
        if form is not None:
            return form
    if _PLUS_MINUS.search(text) and not text.startswith((r"\{", "(", "[")):
        return Items(_expand([text], depth))
    return read_leaf(text)


def _joint_word(joint: re.Match | None) -> str:
    if joint is None:
        return ""
    return {"vee": "lor", "wedge": "land"}.get(joint["sign"]) or joint[joint.lastgroup]


def _expand(parts: list[str], depth: int) -> tuple[Form, ...]:
    """Forms of the parts, ``a \\pm b`` as two of them."""
    forms: list[Form] = []
    for part in parts:
        in_brackets = re.match(r"[\[(]|\\\{", part) is not None
        if _PLUS_MINUS.search(part) and not (in_brackets and _several_signs(part)):
            name, equals, value = part.rpartition("=")
            for plus, minus in (("+", "-"), ("-", "+")):
                side = re.sub(r"\\pm(?![A-Za-z])", plus, value)
                side = re.sub(r"\\mp(?![A-Za-z])", minus, side)
                forms.append(_read((name + equals + side).strip(), depth - 1))
        else:
            forms.append(_read(part, depth - 1))
    return tuple(forms)


def _several_signs(part: str) -> bool:
    """(\\pm 1, \\pm 2) may be two points or four; a set says itself what belongs to it."""
    return len(_PLUS_MINUS.findall(part)) > 1 or part.startswith(r"\{")


def _read_environment(text: str, depth: int) -> Form | None:
    inner = text
    while inner[:1] in ("(", "[") and inner[-1:] in (")", "]") and "\\begin" in inner[:12]:
        inner = inner[1:-1].strip()
    if (match := _MATRIX.fullmatch(inner)) and "\\begin" not in match["body"]:
        rows = [row for row in _ROW_END.split(match["body"]) if row.strip(" &")]
        entries = [tuple(_read(e.strip(), depth - 1) for e in _split(row, {"&"})) for row in rows]
        if match["transposed"] and len({len(row) for row in entries}) == 1:
            entries = list(zip(*entries, strict=True))
        return Matrix(tuple(entries), Leaf(text))
    if (match := _ROWS.fullmatch(inner)) and not _CONDITIONS.search(match["body"]):
        rows = [row.replace("&", "").strip(" ,.;") for row in _ROW_END.split(match["body"])]
        forms = _expand([row for row in rows if row], depth)
        return Items(forms) if len(forms) > 1 else forms[0] if forms else None
    return None


def _read_union(text: str, depth: int) -> Form | None:
    parts = _split(text, {r"\cup"})
    if len(parts) < 2:
        return None
    return Union(tuple(_read(part.strip(), depth - 1) for part in parts))


def _read_relation(text: str, depth: int) -> Form | None:
    operands, signs = _split_signs(text)
    if not signs or not all(operand.strip() for operand in operands):
        return None
    forms = tuple(_read(operand.strip(), depth - 1) for operand in operands)
    return Relation(forms, tuple(signs), Leaf(text))


def _read_brackets(text: str, depth: int) -> Form | None:
    """A set, tuple or interval, or what stands between needless parentheses."""
    for opening, closings in ((r"\{", (r"\}",)), ("(", (")", "]")), ("[", (")", "]"))):
        closing = next((c for c in closings if text.endswith(c)), None)
        if not text.startswith(opening) or closing is None or not _one_pair(text):
            continue
        inner = text[len(opening) : -len(closing)].strip()
        parts = [part.strip() for part in _split(inner, {",", ";"})]
        if not all(parts):
            return None
        if opening == r"\{":
            if _CONDITION.search(inner):
                return _read_condition(inner, depth)
            return Items(_expand(parts, depth), braces=True)
        if len(parts) > 1:
            items = tuple(_read(part, depth - 1) for part in parts)
            if opening == "[" and all(part.startswith("[") and _one_pair(part) for part in parts):
                return Matrix(tuple(_row(item) for item in items), Leaf(text))
            return Bracketed(opening, items, closing)
        if (opening, closing) == ("(", ")") and not _CONDITION.search(inner):
            return _read(inner, depth - 1)
    return None


def _row(form: Form) -> tuple[Form, ...]:
    return form.items if isinstance(form, Bracketed) else (form,)


def _read_condition(inner: str, depth: int) -> Form | None:
    """``x : x > 1`` and ``x \\in \\mathbb{R} \\mid x > 1`` by their condition, else None."""
    head, _, condition = _CONDITION.sub("\0", inner, count=1).partition("\0")
    if not re.fullmatch(r"\s*[a-zA-Z]\s*(?:\\in\s*\\math(?:bb|bf)\s*\{?\s*R\s*\}?\s*)?", head):
        return None
    form = _read(condition.strip(), depth - 1)
    return form if isinstance(form, Relation) else None


def _one_pair(text: str) -> bool:
    """Whether the first bracket closes at the end of the text."""
    depth = 0
    for token in _TOKENS.finditer(text):
        depth += (token.group() in _OPEN) - (token.group() in _CLOSE)
        if depth <= 0:
            return token.end() == len(text)
    return False


def _split(text: str, separators: set[str]) -> list[str]:
    """Split at separators outside every bracket and environment."""
    return _cut(text, separators)[0]


def _split_signs(text: str) -> tuple[list[str], list[str]]:
    """Split at the signs of a relation; the operands, and the signs between them."""
    operands, signs = _cut(text, _SIGNS.keys())
    return operands, [_SIGNS[sign] for sign in signs]


def _cut(text: str, separators: Collection[str]) -> tuple[list[str], list[str]]:
    parts, found, start, depth = [], [], 0, 0
    for token in _TOKENS.finditer(text):
        sign = token.group()
        depth += sign in _OPEN or sign.startswith(r"\begin")
        depth -= sign in _CLOSE or sign.startswith(r"\end")
        if depth == 0 and sign in separators:
            parts.append(text[start : token.start()])
            found.append(sign)
            start = token.end()
    return [*parts, text[start:]], found
