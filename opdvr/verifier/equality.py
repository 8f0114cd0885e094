"""Decide whether two answers are the same from their text alone, where that is certain."""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from opdvr.verifier.literals import literals_equal, parse_literal
from opdvr.verifier.units import split_unit, units_differ

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "π": r"\pi ", "∞": r"\infty ", "×": r"\times ", "÷": r"\div ",
        "·": r"\cdot ", "°": r"^\circ ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "√": r"\sqrt ",
        "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}",
        "，": ",", "（": "(", "）": ")", "\u00a0": " ", "\u202f": " ", "\u2009": " ",
    }
)  # fmt: skip

# In order: each line may rely on the ones before it.
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"(?<!\\)\\[$!]|\$|\\(?:display|text|script)style(?![A-Za-z])", ""),
        (r"(?<!\\)\\[()]|^\\\[|(?<!\\)\\\]$", ""),
        (r"\\+boxed(?![A-Za-z])", ""),
        (r"\\(?:left|right)\s*\.", ""),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        # Thousands: 12\,345, 12{,}345, 12~345.
        (r"(?<=\d)(?:\\[,;: ]|~|\{\s*,\s*\})(?=\d{3}(?!\d))", ""),
        (r"\{\s*,\s*\}", ","),
        (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![A-Za-z])", " "),
        (r"\\(?:text(?:bf|it|rm|normal|up)|[mh]box|mathrm|operatorname)\s*\{", r"\\text{"),
        (r"\\(?:mathbf|mathit|mathsf|boldsymbol|bm)\s*\{([^{}]*)\}", r"\1"),
        # Upright e, i and d, a number, and a letter that is the whole answer, need no \text.
        (r"\\text\s*\{\s*([eid]|[-+]?[\d.,]+)\s*\}", r"\1"),
        (r"^\s*\\text\s*\{\s*([A-Za-z])\s*\}\s*$", r"\1"),
        # 336^\circ, 25\%: the marks are units here, see percent in Answer.
        (r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree(?![A-Za-z])", ""),
        (r"^\\text\s*\{[^{}]*\b(?:is|are|equals|=|:)\s*:?\s*\}\s*(?=\S)", ""),
        (r"(?<![A-Za-z])np\.(pi|sqrt|exp|log|a?r?c?(?:sin|cos|tan))(?![A-Za-z])", r"\\\1"),
        # numbers as programs print them, for the symbolic parser (it reads e as Euler's number)
        (r"(?<![\w}])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d+)(?!\w)", r"\1\\times 10^{\2}"),
        (r"\s+", " "),
    ]
]  # fmt: skip
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:%|percent)\s*\}|\bpercent\b)")
_ASSIGNMENT = re.compile(
    r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?(?:\(\w\))?\s*(?:=|\\in(?![A-Za-z]))\s*(?P<value>[^=<>]+)"
)
_RELATION = re.compile(r"[=<>]|\\(?:in|leq?|geq?|neq?)(?![A-Za-z])")
_KEY_REWRITES = [
    (re.compile(r"\\text\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"([_^])\{(\w)\}"), r"\1\2"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"\s+"), ""),
]
_WORDS = re.compile(r"\(?(?:\\text\s*\{)?\s*\(?[A-Za-z][A-Za-z '.,-]*\)?\s*\}?\)?")
# Four letters or more, or any in \text{}, are a word; fewer may be a product (xy = yx).
_MIN_WORD = 4
_SHORT_WORDS = {"no", "yes"}


@dataclass(frozen=True)
class Answer:
    """One answer, tidied.

    Attributes:
        text: LaTeX for a symbolic parser, without marks that only dress it.
        unit: the unit that trailed it, "" if none.
        percent: it carried a percent mark, which `text` no longer has.
    """

    text: str
    unit: str
    percent: bool

    @property
    def key(self) -> str:
        """Text for comparing as a string: equal keys are equal answers."""
        key = self.text
        for pattern, replacement in _KEY_REWRITES:
            key = pattern.sub(replacement, key)
        letters = re.sub(r"[^A-Za-z]", "", key)
        if len(letters) > 1 and "\\" not in key and not re.search(r"[\d=+*/^_<>|-]", key):
            key = key.casefold()
        return key[1:-1] if re.fullmatch(r"\([A-Za-z]\)", key) else key

    @property
    def is_words(self) -> bool:
        """It is a word or phrase: no product of variables, nothing to calculate."""
        if not _WORDS.fullmatch(self.text):
            return False
        letters = re.sub(r"[^A-Za-z]", "", self.text)
        return (
            "\\text" in self.text or len(letters) >= _MIN_WORD or letters.casefold() in _SHORT_WORDS
        )


def _without_outer_braces(text: str) -> str:
    while text.startswith("{") and text.endswith("}"):
        depth = 0
        for token in re.finditer(r"\\.|[{}]", text):
            depth += {"{": 1, "}": -1}.get(token.group(), 0)
            if depth == 0:
                break
        if token.end() < len(text):
            break
        text = text[1:-1].strip()
    return text


def tidy(text: str) -> Answer:
    """Bring an answer's many spellings to one. Idempotent on `Answer.text`."""
    text = text.translate(_UNICODE)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".;, ").strip()
    percent = _PERCENT.search(text) is not None
    if percent:
        text = _PERCENT.sub("", text).strip()
    text = _without_outer_braces(text)
    quantity, unit = split_unit(text)
    return Answer(quantity, unit, percent)


def drop_assignment(gold: Answer, answer: Answer) -> tuple[Answer, Answer]:
    """The two answers, with ``x =`` or ``x \\in`` taken off when only one of them has it."""
    bare = []
    for this, other in ((gold, answer), (answer, gold)):
        match = _ASSIGNMENT.fullmatch(this.text)
        if match is not None and not _RELATION.search(other.text):
            this = replace(this, text=match["value"].strip())
        bare.append(this)
    return bare[0], bare[1]


def decide(gold: Answer, answer: Answer) -> bool | None:
    """Compare without symbolic mathematics.

    Returns:
        True or False where the text settles it (same text, a word, two literals, two known units),
        None where only the symbolic path can tell.
    """
    if units_differ(gold.unit, answer.unit):
        return False
    gold, answer = drop_assignment(gold, answer)
    same_text = gold.key == answer.key
    if same_text and gold.percent == answer.percent:
        return True
    if not re.search(r"\w", answer.text):
        return False
    gold_literal, answer_literal = parse_literal(gold.text), parse_literal(answer.text)
    if gold_literal is not None and answer_literal is not None:
        if literals_equal(gold_literal, answer_literal):
            return True
        # 25% is 25 where the question asks for a percentage, and 0.25 everywhere.
        if gold.percent == answer.percent:
            return False
        scale = Fraction(1, 100) if answer.percent else Fraction(100)
        return literals_equal(gold_literal, answer_literal, scale)
    if same_text:
        return True
    # Words have no value that another spelling could share, and here their texts differ.
    return False if gold.is_words or answer.is_words else None
