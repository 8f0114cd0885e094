"""Exact values of written-out numbers: integers, decimals, fractions, powers of ten."""

import re
from dataclasses import dataclass
from fractions import Fraction

# Longer numbers are compared as text: Fraction would convert the digits, which is quadratic.
MAX_DIGITS = 400
# 10^400 has 401 digits; larger powers of ten are left to the symbolic path and its time limit.
MAX_EXPONENT = 400
# Relative tolerance between decimals. 0.333333 is accepted for 1/3, 6.28 is not for 2 pi.
REL_TOL = Fraction(1, 1_000_000)

# Thousands apart by a comma, a space, an apostrophe or an underscore.
_DIGITS = r"(?:\d{1,3}(?:(?:,\d{3})+|(?:[ '_]\d{3})+)(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"
_SEPARATORS = str.maketrans("", "", ", '_")
_PLAIN = re.compile(rf"(?P<sign>[-+]?)\s*(?P<digits>{_DIGITS})")
_SCIENTIFIC = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<digits>{_DIGITS})\s*(?:\\times|\\cdot|\*|x)\s*)?"
    r"10\s*\^\s*(?:\{\s*(?P<braced>[-+]?\d{1,4})\s*\}|(?P<bare>[-+]?\d{1,4}))"
)
_E_NOTATION = re.compile(rf"(?P<sign>[-+]?)\s*(?P<digits>{_DIGITS})[eE](?P<bare>[-+]?\d{{1,4}})")
_FRACTION = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<whole>\d+)?\s*"
    r"\\frac\s*(?:\{\s*(?P<top>[-+]?\d[\d,]*)\s*\}|(?P<top_digit>\d))"
    r"\s*(?:\{\s*(?P<bottom>[-+]?\d[\d,]*)\s*\}|(?P<bottom_digit>\d))"
)
_REPEATING = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<whole>\d*)\.(?P<fixed>\d*)"
    r"(?:\\(?:overline|bar|dot)\s*\{?\s*(?P<period>\d+)\s*\}?|\((?P<round>\d+)\))"
)
_NUMBER_WORDS = {
    word: value
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen twenty".split()
    )
}
_MULTIPLES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9,
              "trillion": 10**12, "dozen": 12}  # fmt: skip
_MULTIPLIED = re.compile(
    rf"(?P<number>.+?)\s*(?:\\text\s*\{{\s*)?(?P<multiple>{'|'.join(_MULTIPLES)})\s*\}}?", re.DOTALL
)
_WORD = re.compile(r"(?:\\text\s*\{\s*)?(?P<word>[A-Za-z]{3,9})\s*\}?")
_SLASH = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)\s+)?(?P<top>{_DIGITS})\s*/\s*(?P<bottom>{_DIGITS})"
)


@dataclass(frozen=True)
class Literal:
    """A number as written.

    Attributes:
        value: its exact value; None for a plain number beyond MAX_DIGITS, which only `plain` holds.
        plain: canonical digits of a plainly written number ("-142" for "-142.00"), else None.
        measured: written as a decimal or in scientific notation with a value that is no plain
            integer, so that REL_TOL applies to it.
    """

    value: Fraction | None
    plain: str | None
    measured: bool


def _canonical(sign: str, digits: str) -> str:
    whole, _, part = digits.translate(_SEPARATORS).partition(".")
    whole, part = whole.lstrip("0") or "0", part.rstrip("0")
    text = f"{whole}.{part}" if part else whole
    return f"-{text}" if sign == "-" and text != "0" else text


def _plain_literal(sign: str, digits: str) -> Literal:
    text = _canonical(sign, digits)
    value = Fraction(text) if len(text) <= MAX_DIGITS else None
    return Literal(value, text, measured="." in text)


def _ratio(sign: str, top: Fraction, bottom: Fraction, whole: int = 0) -> Literal | None:
    if bottom == 0:
        return None
    value = whole + top / bottom
    return Literal(-value if sign == "-" else value, None, measured=False)


def _integer(digits: str) -> int:
    return int(digits.translate(_SEPARATORS))


def _repeating(match: re.Match) -> Literal:
    """0.1\\overline{6} is (16 - 1) / 90: an exact value, not a measured one."""
    fixed, period = match["fixed"], match["period"] or match["round"]
    whole = Fraction(int((match["whole"] or "0") + fixed), 10 ** len(fixed))
    value = whole + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
    return Literal(-value if match["sign"] == "-" else value, None, measured=False)


def parse_literal(text: str) -> Literal | None:
    """Read a number: ``142.0``, ``12,345``, ``4.5e33``, ``4.5\\times 10^{33}``, ``-\\frac{1}{2}``,
    ``14/3``, ``1\\frac{1}{2}`` and ``1 1/2`` (mixed numbers), ``0.1\\overline{6}``.

    Returns:
        The literal, or None when the text is anything else.
    """
    text = text.strip()
    if match := _PLAIN.fullmatch(text):
        return _plain_literal(match["sign"], match["digits"])
    if len(text) > MAX_DIGITS:
        return None
    if match := _E_NOTATION.fullmatch(text) or _SCIENTIFIC.fullmatch(text):
        groups = match.groupdict()
        exponent = int(groups.get("braced") or groups["bare"])
        if abs(exponent) > MAX_EXPONENT:
            return None
        mantissa = Fraction(_canonical(groups["sign"], groups["digits"] or "1"))
        return Literal(mantissa * Fraction(10) ** exponent, None, groups["digits"] is not None)
    if match := _FRACTION.fullmatch(text):
        top = Fraction(_integer(match["top"] or match["top_digit"]))
        bottom = Fraction(_integer(match["bottom"] or match["bottom_digit"]))
        return _ratio(match["sign"], top, bottom, int(match["whole"] or 0))
    if match := _REPEATING.fullmatch(text):
        return _repeating(match)
    if match := _SLASH.fullmatch(text):
        top, bottom = (Fraction(_canonical("", match[name])) for name in ("top", "bottom"))
        return _ratio(match["sign"], top, bottom, int(match["whole"] or 0))
    return _in_words(text)


def _in_words(text: str) -> Literal | None:
    """``two`` and ``1.5 \\text{ million}``."""
    if (match := _WORD.fullmatch(text)) and match["word"].lower() in _NUMBER_WORDS:
        return _plain_literal("", str(_NUMBER_WORDS[match["word"].lower()]))
    if match := _MULTIPLIED.fullmatch(text):
        number = parse_literal(match["number"])
        if number is not None and number.value is not None:
            value = number.value * _MULTIPLES[match["multiple"]]
            return Literal(value, None, number.measured and value.denominator > 1)
    return None


def literals_equal(gold: Literal, answer: Literal, scale: Fraction = Fraction(1)) -> bool:
    """Whether ``gold == answer * scale``: exactly for integers and fractions, within REL_TOL of the
    gold when either side is a measured decimal and the gold is no plain integer.

    There is no absolute tolerance: 0 is not 1.24e-8.
    """
    if gold.value is None or answer.value is None:
        return scale == 1 and gold.plain is not None and gold.plain == answer.plain
    value = answer.value * scale
    gold_is_integer = gold.plain is not None and not gold.measured
    # Also 1e6 and 1000001: two whole numbers are equal or not.
    both_whole = gold.value.denominator == value.denominator == 1
    if not (gold_is_integer or both_whole) and (gold.measured or answer.measured):
        return abs(gold.value - value) <= REL_TOL * abs(gold.value)
    return gold.value == value
