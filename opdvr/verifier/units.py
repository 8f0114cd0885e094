"""Units of measure that trail an answer: recognised, set aside, compared when both name one."""

import re

# Spellings -> one name. Two *known* units that differ make an answer wrong; a unit that is missing
# on one side, or not in this table, decides nothing. Single letters count inside \text{} only,
# because a bare trailing letter is a variable (2m is twice m).
_SPELLINGS = {
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "s": "s sec second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "cent": "cent cents",
    "dollar": "dollar dollars",
    "L": "L liter liters litre litres",
    "mL": "mL ml milliliter milliliters",
    "mph": "mph",
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "gal": "gal gallon gallons",
    "N": "N newton newtons",
    "J": "J joule joules",
    "W": "W watt watts",
    "Hz": "Hz hertz",
    "V": "V volt volts",
    "A": "A amp amps ampere amperes",
    "K": "K kelvin kelvins",
    "Pa": "Pa pascal pascals",
    "mol": "mol mole moles",
    "ohm": "ohm ohms",
    "unit": "unit units",
    "degree": "degree degrees",
}
UNIT_NAMES = {word: name for name, words in _SPELLINGS.items() for word in words.split()}

_POWER = r"(?:\s*\^\s*\{?\s*-?\d\s*\}?)?"
# The unit's own text may hold letters, spaces, powers and slashes: \text{ cm}^2, \text{ m/s}.
_TEXT_UNIT = re.compile(
    r"\s*[/·]?\s*\\text\s*\{(?P<unit>[A-Za-z .^/~\d-]{1,40})\}" + _POWER + r"\s*$"
)
_BARE_WORDS = sorted((word for word in UNIT_NAMES if len(word) > 1), key=len, reverse=True)
_BARE_UNIT = re.compile(
    rf"(?<=[\d}}])\s*(?:(?:square|cubic|sq)\s+)?(?P<unit>{'|'.join(_BARE_WORDS)}){_POWER}\s*$"
)
# What is counted, without \text: 5 apples, 6 ways.
_COUNTED = re.compile(
    r"(?<=\d)\s+(?P<unit>[A-Za-z]{3,}(?: [A-Za-z]{2,}){0,3})\s*$|(?<=\d)\s*\\(?P<ohm>Omega)$"
)
# \text{ or more} and the like change the meaning; they are no units.
_NOT_UNITS = re.compile(
    r"\b(?:and|or|not|if|for|is|are|when|hundred|thousand|million|billion|trillion|dozen|score"
    r"|percent|more|less|choose|times|plus|minus|over|root|squared|cubed|factorial|mod|sin|cos|tan"
    r"|ln|log|exp)\b"
)
_HAS_QUANTITY = re.compile(r"\d|\\pi")


def split_unit(text: str) -> tuple[str, str]:
    """Split a trailing unit off a quantity.

    Returns:
        The quantity and the unit's text with its power ("" if none). Text without a digit or pi in
        front of the unit is no quantity and comes back whole.
    """
    rest, units = text, []
    while True:
        match = _TEXT_UNIT.search(rest) or _BARE_UNIT.search(rest) or _COUNTED.search(rest)
        if match is None or _NOT_UNITS.search(match["unit"] or ""):
            break
        head = rest[: match.start()].rstrip()
        if not _HAS_QUANTITY.search(head):
            break
        units.append(re.sub(r"\\text|[{}\s.~]", "", match.group()))
        rest = head
    return rest, "·".join(reversed(units))


def units_differ(one: str, other: str) -> bool:
    """True only when both are single units of the table and name different things."""
    first, second = UNIT_NAMES.get(one), UNIT_NAMES.get(other)
    return first is not None and second is not None and first != second
