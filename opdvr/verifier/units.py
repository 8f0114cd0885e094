"""Units of measure that trail an answer: recognised, set aside, compared when both are known."""

import re
from functools import lru_cache

# Spellings -> one name. Single letters count inside \text{} only, or behind a number whose gold is
# a plain number: elsewhere a bare trailing letter is a variable (2m is twice m).
_SPELLINGS = {
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "lb": "lb lbs",
    "oz": "oz ounce ounces",
    "gal": "gal gallon gallons",
    "s": "s sec second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "cent": "cent cents",
    "dollar": "dollar dollars USD",
    "euro": "euro euros EUR",
    "pound": "pound pounds GBP",
    "yen": "yen",
    "unit": "unit units",
    "degree": "degree degrees deg",
    "radian": "radian radians rad",
    "arcmin": "arcmin arcminute arcminutes",
    "ton": "ton tons tonne tonnes",
    "au": "AU au",
    "parsec": "pc parsec parsecs",
    "lightyear": "ly",
    "solarmass": "Msun",
    "angstrom": "angstrom angstroms AA Å",
    "person": "person people",
}
_SI = {
    "m": "meter metre",
    "g": "gram",
    "J": "joule",
    "W": "watt",
    "N": "newton",
    "V": "volt",
    "A": "ampere amp",
    "Pa": "pascal",
    "Hz": "hertz",
    "eV": "electronvolt",
    "L": "liter litre",
    "mol": "mole",
    "K": "kelvin",
    "ohm": "ohm Omega Ω",
    "T": "tesla",
    "C": "coulomb",
    "F": "farad",
    "cal": "calorie",
    "erg": "erg",
    "bar": "bar",
}
_PREFIXES = {"k": "kilo", "M": "mega", "G": "giga", "m": "milli", "c": "centi", "mu": "micro",
             "n": "nano", "p": "pico", "d": "deci"}  # fmt: skip


def _known_units() -> dict[str, str]:
    names = {word: name for name, words in _SPELLINGS.items() for word in words.split()}
    for symbol, words in _SI.items():
        spelled = [word + ending for word in words.split() for ending in ("", "s")]
        names |= dict.fromkeys([symbol, *spelled], symbol)
        for prefix, long_prefix in _PREFIXES.items():
            long = [long_prefix + word for word in spelled]
            names |= dict.fromkeys([prefix + symbol, *long], prefix + symbol)
    names |= {"l": "L", "ml": "mL", "µm": "mum", "um": "mum", "s": "s", "ms": "ms", "ns": "ns"}
    names |= {"mph": "mi/h", "kmh": "km/h", "kph": "km/h", "kmph": "km/h", "min": "min", "h": "h"}
    return names


UNIT_NAMES = _known_units()
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED = {"squared": 2, "cubed": 3}

_POWER = r"(?:\s{0,9}\^\s{0,9}\{?\s{0,9}-?\d\s{0,9}\}?)?"
# The unit's own text may hold letters, spaces, powers and slashes: \text{ cm}^2, \text{ m/s}.
_TEXT_UNIT = re.compile(
    r"\s{0,9}(?:[/·]|\\cdot)?\s{0,9}(?:\\mu\s{0,9})?\\text\s{0,9}\{[A-Za-zÅΩµ .^/~\d()\\-]{1,40}\}"
    + _POWER + r"\s{0,9}$"
)  # fmt: skip
_BARE_WORDS = sorted((word for word in UNIT_NAMES if len(word) > 1), key=len, reverse=True)
_BARE_UNIT = re.compile(
    rf"(?<=[\d}}])\s{{0,9}}(?:(?:square|cubic|sq)\s{{1,9}})?(?:{'|'.join(_BARE_WORDS)}){_POWER}$"
)
# What is counted, without \text: 5 apples, 6 ways. And signs that stand for a unit.
_COUNTED = re.compile(
    r"(?<=\d)\s{1,9}[A-Za-z]{3,}(?: [A-Za-z]{2,}){0,3}\s{0,9}$"
    r"|(?<=\d)\s{0,9}(?:\\(?:Omega|AA)(?![A-Za-z])|\\mu\s{0,9}[A-Za-z]{1,2}|M_\s?\{?\s?\\odot\s?\}?)\s{0,9}$"
)
# 9.8 m/s^2 without any \text.
_LETTERS = re.compile(
    r"(?<=\d)\s{1,9}(?P<unit>[A-Za-z]{1,4}(?:\s?[/*]?\s?[A-Za-z]{1,3}\^?\{?-?\d?\}?){0,3})$"
)
_FRACTION = re.compile(
    r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}\s*(\^\s*\{?\d\}?)?\s*\}\s*$"
)
# These change what is said; they are no units.
_NOT_UNITS = re.compile(
    r"\b(?:and|or|not|if|for|is|are|when|to|tens?|hundreds?|thousands?|millions?|billions?|trillions?"
    r"|dozens?|scores?|gross|lakhs?|crores?|percent|more|less|above|below|negative|fold"
    r"|choose|times|divided|plus|minus|over|root|factorial|mod|sin|cos|tan|ln|log|exp|twos|pi|sqrt"
    r"|doubled|tripled|halved|twice|thrice|quadrillion|quintillion|myriad|googol|[a-z]+fold"
    r"|kilo|mega|giga|tera|milli|micro|ppm|ppb|bps|mille|inverse|reciprocal"
    r"|remainder|except|excluding"
    r"|hal(?:f|ves)|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?"
    r"|hundredths?|thousandths?|[ap]\.?m\.?|base|st|nd|rd|th)(?![A-Za-z])",
    re.IGNORECASE,
)  # fmt: skip
# Alone they scale, raise or name; as part of a unit they may be a prefix.
_NO_UNIT_ALONE = {"k", "n", "x", "y", "z", "squared", "cubed", "pair", "pairs"}
_NO_UNIT_ALONE |= {"couple", "couples", "group", "groups"}
_HAS_QUANTITY = re.compile(r"\d|\\pi")


def split_unit(text: str) -> tuple[str, str]:
    """Split a trailing unit off a quantity.

    Returns:
        The quantity and the unit's text with its power ("" if none). Text without a digit or pi in
        front of the unit is no quantity and comes back whole, but for a mark of degrees.
    """
    rest, units = _FRACTION.sub(r"\\text{\1/\2\3}", text), []
    while True:
        match = _TEXT_UNIT.search(rest) or _BARE_UNIT.search(rest) or _COUNTED.search(rest)
        if match is None or _NOT_UNITS.search(match.group()):
            break
        head = rest[: match.start()].rstrip()
        unit = re.sub(r"\\text|[{}~]", " ", match.group()).strip()
        if unit in _NO_UNIT_ALONE:
            break
        if not head or not (_HAS_QUANTITY.search(head) or unit == "degrees"):
            break
        units.append(unit)
        rest = head
    return (rest, " ".join(reversed(units))) if units else (text, "")


def split_letters(text: str) -> tuple[str, str] | None:
    """``9.8 m/s^2`` as quantity and unit, where every letter is part of a known unit."""
    match = _LETTERS.search(text)
    if match is None or canonical(match["unit"]) is None:
        return None
    return text[: match.start()].rstrip(), match["unit"]


@lru_cache(maxsize=1024)
def canonical(unit: str) -> tuple[tuple[str, int], ...] | None:
    """A unit as sorted pairs of name and power; None when a part of it is unknown."""
    powers: dict[str, int] = {}
    sign, factor, last = 1, 1, ""
    for token in re.findall(
        r"[A-Za-zÅΩµ]+|\^\s*-?\d|/|\d+|\S", re.sub(r"\bmu\s+", "mu", unit.replace("\\", ""))
    ):
        if token in ("/", "per"):
            sign = -1
        elif token in _POWER_WORDS:
            factor = _POWER_WORDS[token]
        elif token in _RAISED and last:
            powers[last] *= _RAISED[token]
        elif token[0] == "^" and len(token) > 1 and last:
            powers[last] *= int(token[1:].strip())
        elif token in UNIT_NAMES:
            for place, name in enumerate(UNIT_NAMES[token].split("/")):
                last = name
                powers[name] = powers.get(name, 0) + (-1) ** place * sign * factor
            factor = 1
        elif token not in ("*", "·", "(", ")", ".", "cdot"):
            return None
    return tuple(sorted(powers.items()))


def units_differ(one: str, other: str) -> bool:
    """True only when both are made of known units and are not the same."""
    if not one or not other:
        return False
    first, second = canonical(one), canonical(other)
    return first is not None and second is not None and first != second
