"""Whether two sympy expressions are the same function of their variables. Worker side only."""

import itertools
from collections.abc import Iterator

from sympy import (
    Abs,
    Derivative,
    Expr,
    Float,
    Integer,
    Integral,
    Limit,
    N,
    Number,
    Product,
    Rational,
    Sum,
    Symbol,
)
from sympy.core.function import AppliedUndef

# Two exact forms whose values agree to this many digits are taken as equal: sqrt(3+2 sqrt 2) and
# 1+sqrt 2 have no cheaper proof. evalf raises its working precision until the digits are sound.
_DIGITS = 40
_WORKING_DIGITS = 60
_MAX_DIGITS = 5000
# The same relative tolerance as between written-out numbers.
_FLOAT_REL_TOL = 1e-6
# What is integrated, summed or taken to a limit numerically has fewer digits.
_NUMERIC_REL_TOL = 1e-12
_ROUNDING = Float(10, _WORKING_DIGITS) ** -(_DIGITS + 5)
# Points without structure: no two coordinates related, none near an integer.
_POSITIVE = [
    Rational(*pair)
    for pair in ((1357, 1000), (731, 1000), (2239, 1000), (419, 1000), (1693, 1000), (3089, 1000),
                 (2671, 1000), (907, 1000))
]  # fmt: skip
_SIGNS = (1, 1, -1)
_ROUNDS = 5
_NEEDED = 3


Complex = tuple[Number, Number]


class NotComparable(Exception):
    """The expressions have no numbers at enough points."""


def same_expression(gold: Expr, answer: Expr) -> bool:
    """Whether two expressions are equal: numbers exactly (within a relative 1e-6 where one of them
    holds a decimal), functions at points on the positive axis and, wherever both are real, off it.

    Raises:
        NotComparable: a value cannot be computed at enough points.
    """
    if gold == answer:
        return True
    gold, answer = _with_symbols(gold, answer)
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if not symbols:
        return _same_number(gold, answer)
    if len(symbols) > len(_POSITIVE):
        raise NotComparable(f"{len(symbols)} variables")
    compared = 0
    for point, positive in _points(symbols):
        values = _value(gold, point), _value(answer, point)
        if None in values:
            continue
        if not positive and any(value[1] != 0 for value in values):
            continue
        if not _close(*values, _tolerance(gold, answer)):
            return False
        compared += positive
    if compared < _NEEDED:
        raise NotComparable("no values")
    return True


def _with_symbols(gold: Expr, answer: Expr) -> tuple[Expr, Expr]:
    """Unknown functions and derivatives as variables of their own."""
    unknown = gold.atoms(AppliedUndef, Derivative) | answer.atoms(AppliedUndef, Derivative)
    # The outermost first, so that a derivative goes as a whole.
    for index, part in enumerate(sorted(unknown, key=lambda part: (-len(str(part)), str(part)))):
        stand_in = Symbol(f"unknown{index}")
        gold, answer = gold.xreplace({part: stand_in}), answer.xreplace({part: stand_in})
    return gold, answer


def _points(symbols: list[Symbol]) -> Iterator[tuple[dict[Symbol, Expr], bool]]:
    """Substitutions, and whether all their values are positive."""
    for turn in range(_ROUNDS):
        mixed = turn >= _NEEDED
        signs = [_SIGNS[(index + turn) % 3] if mixed else 1 for index in range(len(symbols))]
        values = itertools.islice(itertools.cycle(_POSITIVE), turn, turn + len(symbols))
        yield (
            {s: sign * value for s, sign, value in zip(symbols, signs, values, strict=True)},
            min(signs) > 0,
        )
    # Where only whole numbers make sense, and on the negative axis as a whole.
    yield {s: Integer(index + 3) for index, s in enumerate(symbols)}, True
    yield {s: Integer(2 * index + 4) for index, s in enumerate(symbols)}, True
    yield {s: -value for s, value in zip(symbols, _POSITIVE, strict=False)}, False


def _value(form: Expr, point: dict[Symbol, Expr]) -> Complex | None:
    """Real and imaginary part, or None where there is no finite number."""
    parts = N(form.xreplace(point), _WORKING_DIGITS).as_real_imag()
    if all(isinstance(part, Number) and part.is_finite for part in parts):
        return parts
    return None


def _tolerance(gold: Expr, answer: Expr) -> Expr:
    if gold.has(Float) or answer.has(Float):
        return Float(_FLOAT_REL_TOL)
    if any(form.has(Integral, Sum, Product, Limit) for form in (gold, answer)):
        return Float(_NUMERIC_REL_TOL)
    return Float(10, _WORKING_DIGITS) ** -_DIGITS


def _close(gold: Complex, answer: Complex, tolerance: Expr) -> bool:
    scale = gold[0] ** 2 + gold[1] ** 2
    difference = (gold[0] - answer[0]) ** 2 + (gold[1] - answer[1]) ** 2
    if difference <= tolerance**2 * scale:
        return True
    # Against zero no relative tolerance helps; cancellation leaves the rounding of its terms.
    other = answer[0] ** 2 + answer[1] ** 2
    return bool(difference < _ROUNDING**2) and (scale == 0 or other == 0)


def _same_number(gold: Expr, answer: Expr) -> bool:
    gold, answer = gold.doit(), answer.doit()
    if gold == answer:
        return True
    if gold.is_Rational and answer.is_Rational:
        return False
    exact = (gold - answer).doit()
    if exact.is_Rational and not exact.has(Float):
        return exact == 0
    values = _value(gold, {}), _value(answer, {})
    if None in values:
        raise NotComparable("no value")
    if not _close(*values, _tolerance(gold, answer)):
        return False
    if gold.has(Float) or answer.has(Float) or max(map(abs, values[0])) < 10**30:
        return True
    # Beyond 30 digits in front of the point a difference can hide behind them.
    return bool(N(Abs(exact), 15, maxn=_MAX_DIGITS) < 10**-15)
