"""One value or word of an answer, and what its text alone tells about equality with another."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from opdvr.verifier.literals import Literal, literals_equal, parse_literal
from opdvr.verifier.units import split_letters, split_unit, units_differ

_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:%|percent)\s*\}|\bpercent\b)\s*$")
_KEY_REWRITES = [
    (re.compile(r"\\text\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"([_^])\s*\{\s*(\w)\s*\}"), r"\1\2"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<=\d)\s+(?=\d)"), "␣"),  # 1 2 is not 12
    # The space that ends a command's name is needed before a letter only.
    (re.compile(r"(?<=[A-Za-z])\s+(?=[A-Za-z])"), " "),
    (re.compile(r"(?<![A-Za-z])\s+|\s+(?![A-Za-z])"), ""),
]
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_PHRASE = re.compile(r"[A-Za-z][A-Za-z '’.,!?-]*")
# Longer runs of letters are a word; shorter ones may be a product (xy = yx).
_MIN_WORD = 4
_SHORT_WORDS = {"no", "yes", "odd", "one", "two", "six", "ten", "dne", "red"}
_FUNCTION_NAMES = {"sinh", "cosh", "tanh", "coth", "sqrt", "arcsin", "arccos", "arctan", "frac"}
# (B), B), B., \text{(B)} 12: a choice, with or without its own text after it.
_CHOICE = re.compile(
    r"(?:\\text\s*\{\s*)?(?:[Oo]ption|[Cc]hoice)?\s*"
    r"(?:\(\s*(?P<round>[A-Ja-j])\s*\)|(?P<bare>[A-J])\s*(?:[).:]|(?=\}?\s*$)))"
    r"(?:\s*\}\s*[.:]?|[.:]|(?=\s|$|\\text|\d))(?P<rest>.*)",
    re.DOTALL,
)
# Another choice, or a word that takes this one back.
_NOT_THIS = re.compile(
    r"\([A-Ja-j]\)|\b[A-J][).:]|\b(?:or|and|not|wrong|incorrect|false|never)\b|^\s*[A-Ja-j]\s*$"
    r"|^\s*[\^_/+(&]"
)
_VERDICTS = ("yes", "no", "true", "false")
# What a parser would read past: its texts are equal or the answers are not.
_OPAQUE = re.compile(
    r"\\(?:nabla|l?dots|cdots|forall|exists|angle|triangle|sim|cong|perp|parallel|otimes|oplus"
    r"|times(?=\s*[A-Z])|to|mapsto|begin\s*\{cases)(?![A-Za-z])"
    r"|\\\{.*(?:\\mid|:|\|)|(?:^|[^\w^}])\d+ \d|\.\.\.|[\d})\]]'+\s*$"
    r"|(?<!_)(?<!_\{)\\text\s*\{"
)
_ARTICLE = re.compile(r"^(?:an?|the|it is) (?=\w{3})", re.IGNORECASE)
_BASED = re.compile(r"(?P<digits>[\dA-Za-z]+)\s*_\s*\{?\s*(?P<base>\d{1,2})\s*\}?")
_RATIO = re.compile(r"\d{1,18}(?:\s*:\s*\d{1,18})+")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


@dataclass(frozen=True)
class Leaf:
    """A value or word as tidied LaTeX.

    Attributes:
        text: without percent mark, currency sign and trailing unit.
        unit: the unit that trailed it, "" if none.
        percent: it carried a percent mark.
    """

    text: str
    unit: str = ""
    percent: bool = False

    @cached_property
    def literal(self) -> Literal | None:
        """Its value, if it is a written-out number."""
        return parse_literal(self.text)

    @cached_property
    def key(self) -> str:
        """Text for comparing as a string: equal keys are equal answers."""
        key = re.sub(r"\\mid(?![A-Za-z])|\|", ":", self.text)
        for pattern, replacement in _KEY_REWRITES:
            key = pattern.sub(replacement, key)
        key = key.strip()
        return key.removeprefix("+") or key

    @cached_property
    def is_words(self) -> bool:
        """It is a word or phrase: no product of variables, nothing to calculate."""
        bare = _TEXT.sub(r" \1 ", self.text).strip().strip("()").strip()
        if not _PHRASE.fullmatch(bare):
            return False
        words = re.findall(r"[A-Za-z]+", bare)
        if re.fullmatch(r"[A-Z]{3,}", bare):  # HTH, BDCADABB: an order, no product
            return True
        if re.search(r"(?<!\w)-|-(?!\w)", bare) and all(len(word) < _MIN_WORD for word in words):
            return False
        longest = max(words, key=len)
        return (
            ("\\text" in self.text and len(longest) > 1)
            or (len(longest) >= _MIN_WORD and longest not in _FUNCTION_NAMES)
            or bare.casefold() in _SHORT_WORDS
        )

    @cached_property
    def is_opaque(self) -> bool:
        """Symbolic mathematics has no meaning for it, or would drop a part of it."""
        return _OPAQUE.search(self.text) is not None

    @cached_property
    def choice(self) -> tuple[str, str, bool] | None:
        """(letter in upper case, the text after it, whether brackets or a stop marked it)."""
        match = _CHOICE.fullmatch(self.text)
        if match is None or _NOT_THIS.search(match["rest"]):
            return None
        letter = match["round"] or match["bare"]
        rest = _TEXT.sub(r"\1", match["rest"]).strip(" .:")
        return letter.upper(), rest, self.text != letter


@lru_cache(maxsize=8192)
def read_leaf(text: str) -> Leaf:
    """Set percent mark and unit aside."""
    text = text.strip()
    percent = _PERCENT.search(text)
    if percent:
        text = text[: percent.start()].strip()
    quantity, unit = split_unit(text)
    return Leaf(quantity, unit, percent is not None)


def decide_leaves(gold: Leaf, answer: Leaf) -> bool | None:
    """Compare without symbolic mathematics.

    Returns:
        True or False where the text settles it (same text, words, two numbers, two known units,
        letters of a choice), None where only the symbolic path can tell.
    """
    if units_differ(gold.unit, answer.unit) or _marks_differ(gold, answer):
        return False
    if (
        gold.key
        and gold.key == answer.key
        and (gold.percent == answer.percent or gold.literal is None)
    ):
        return True
    words = gold.is_words or answer.is_words
    if words and _same_words(gold, answer):
        return True
    if not re.search(r"[^\W_]", answer.text):
        return False
    choice = _same_choice(gold, answer)
    if choice is not None:
        return choice
    if gold.literal is not None and answer.literal is not None:
        return _same_number(gold, answer)
    if gold.literal is not None and (split := split_letters(answer.text)):
        return decide_leaves(gold, Leaf(split[0], split[1], answer.percent))
    for decide in (_same_base, _same_ratio):
        verdict = decide(gold.text, answer.text)
        if verdict is not None:
            return verdict
    # Words have no value that another spelling could share, and here their texts differ.
    return False if words or gold.is_opaque or answer.is_opaque else None


def is_verdict(leaf: Leaf) -> bool:
    """Yes, no, true or false."""
    return leaf.key.casefold() in _VERDICTS


def _same_words(gold: Leaf, answer: Leaf) -> bool:
    """The same but for case and article; Yes also with a sentence behind it that agrees."""
    one, other = (_ARTICLE.sub("", leaf.key).casefold() for leaf in (gold, answer))
    if one in _VERDICTS:
        other, *rest = re.split(r"[,.;:]", other, maxsplit=1)
        against = {*_VERDICTS, "not", "or"} - {one} - ({"not", "no"} if one == "no" else set())
        if rest and against & set(re.findall(r"[a-z]+", rest[0])):
            return False
    return one == other.strip()


def _marks_differ(gold: Leaf, answer: Leaf) -> bool:
    """90 per cent is not 90 degrees, and pi/3 degrees is not pi/3."""
    for one, other in ((gold, answer), (answer, gold)):
        if one.percent and other.unit and not other.percent:
            return True
        if one.unit == "degrees" and not other.unit and "\\pi" in one.text:
            return True
    return False


def _same_number(gold: Leaf, answer: Leaf) -> bool:
    # 0.5 is not 0.5%: only a gold of at least 1 can be meant in per cent without saying so.
    small = gold.literal.value is not None and abs(gold.literal.value) < 1
    bare = not (answer.percent and not gold.percent and small)
    if bare and literals_equal(gold.literal, answer.literal):
        return True
    # 25% is 25 where the question asks for a percentage, and 0.25 everywhere.
    if gold.percent == answer.percent:
        return False
    scale = Fraction(1, 100) if answer.percent else Fraction(100)
    return literals_equal(gold.literal, answer.literal, scale)


def _same_choice(gold: Leaf, answer: Leaf) -> bool | None:
    """A gold that is a choice: the letter decides, whatever text either side adds to it."""
    if gold.choice is None:
        return None
    letter, rest, gold_marked = gold.choice
    if answer.choice is not None:
        answer_letter, answer_rest, answer_marked = answer.choice
        if gold_marked or answer_marked or answer_rest:
            return letter == answer_letter
        return None  # two bare letters that differ: names, not choices
    if gold_marked and re.fullmatch(r"[A-Ja-j]", answer.text):
        return letter == answer.text.upper()
    return None if rest else False if gold_marked else None


def _same_base(gold: str, answer: str) -> bool | None:
    """17_8 is 17_{8}; a base that only one side names decides nothing; two bases must be one."""
    one, other = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
    if one and other:
        same = one["digits"].upper() == other["digits"].upper() and one["base"] == other["base"]
        return same if re.fullmatch(r"\d+", one["digits"]) else (True if same else None)
    based, plain = (one, answer) if one else (other, gold)
    if based and re.fullmatch(r"\d+", based["digits"]) and re.fullmatch(r"\d+", plain):
        return based["digits"] == plain
    return None


def _same_ratio(gold: str, answer: str) -> bool | None:
    """3:2 is 6:4 and 3/2; 12:00 is a time of day, equal as text or not at all."""
    if ":" not in gold and ":" not in answer:
        return None
    if any(_CLOCK.fullmatch(text) for text in (gold, answer)):
        return False
    terms = []
    for text in (gold, answer):
        literal = parse_literal(text)
        if _RATIO.fullmatch(text):
            terms.append([Fraction(part) for part in text.split(":")])
        elif literal is not None and literal.value is not None:
            terms.append([literal.value, Fraction(1)])
        else:
            return False
    one, other = terms
    return (
        len(one) == len(other)
        and all(a * other[0] == b * one[0] for a, b in zip(one, other, strict=True))
        and any(one) == any(other)
    )
