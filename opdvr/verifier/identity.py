"""Whether two sympy expressions are the same function of their variables. Worker side only."""

import itertools
from collections.abc import Iterator

from sympy import (
    Abs,
    Derivative,
    Expr,
    Float,
    I,
    Integer,
    Integral,
    Limit,
    Max,
    Min,
    Mod,
    N,
    Number,
    Piecewise,
    Pow,
    Product,
    Rational,
    Sum,
    Symbol,
    ceiling,
    floor,
    zeta,
)
from sympy.core.function import AppliedUndef

from opdvr.verifier.magnitude import differ_in_size

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
# Values beyond this are compared by their difference: a variable beside 10^50 would not be seen.
_LARGE, _SMALL = 10**15, Float(10) ** -15
# Letters that stand for whole numbers where something is rounded to one.
_WHOLE = set("klmnKLMN")
_STEPS = 45
_LARGE_WHOLE = (97, 100, 199, 1000, 12345)
# Points without structure: no two coordinates related, none near an integer.
_POSITIVE = [
    Rational(*pair)
    for pair in ((1357, 1000), (731, 1000), (2239, 1000), (419, 1000), (1693, 1000), (3089, 1000),
                 (2671, 1000), (907, 1000))
]  # fmt: skip
_FAR = [Rational(100037, 100), Rational(-5731, 100), 3 + Rational(1, 10**9), Rational(-1, 10**9)]
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
    if gold == answer:
        return True
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if gold.free_symbols != answer.free_symbols and (gold.has(Float) or answer.has(Float)):
        return False  # what a variable adds could hide in the tolerance of a decimal
    if any(
        len(limits) == 1
        for form in (gold, answer)
        for part in form.atoms(Integral)
        for limits in part.limits
    ):
        raise NotComparable("an integral without limits")
    if not symbols:
        return not differ_in_size(gold, answer) and _same_number(gold, answer)
    if len(symbols) > len(_POSITIVE):
        raise NotComparable(f"{len(symbols)} variables")
    compared = 0
    tolerance = _tolerance(gold, answer)
    for point, positive in _points(symbols, gold, answer):
        values = _value(gold, point), _value(answer, point)
        if None in values:
            continue
        if not positive and any(value[1] != 0 for value in values):
            continue
        if not _close(*values, tolerance):
            return False
        if max(map(abs, values[0])) > _LARGE and not _vanishes(gold - answer, point):
            return False
        compared += positive
    if compared < _NEEDED:
        raise NotComparable("no values")
    return True


def _with_symbols(gold: Expr, answer: Expr) -> tuple[Expr, Expr]:
    """Unknown functions and derivatives as variables of their own; known ones as they are."""
    forms = [_evaluated(form) for form in (gold, answer)]
    unknown = set().union(*(form.atoms(AppliedUndef, Derivative) for form in forms))
    # The outermost first, so that a derivative goes as a whole.
    for index, part in enumerate(sorted(unknown, key=lambda part: (-len(str(part)), str(part)))):
        stand_in = Symbol(f"unknown{index}")
        forms = [form.xreplace({part: stand_in}) for form in forms]
    return forms[0], forms[1]


def _evaluated(form: Expr) -> Expr:
    """d/dx x^2 as 2x, zeta(2) and sums with a symbolic end as what they are."""
    for part in form.atoms(Derivative):
        if part.expr.has(*part.variables) and not part.expr.atoms(AppliedUndef):
            form = form.xreplace({part: part.doit()})
    for part in form.atoms(AppliedUndef):
        if part.func.__name__ == r"\zeta" and len(part.args) == 1:
            form = form.xreplace({part: zeta(part.args[0])})
    if form.has(Limit) or any(part.free_symbols for part in form.atoms(Sum, Product)):
        form = form.doit()
    return form


def _points(
    symbols: list[Symbol], gold: Expr, answer: Expr
) -> Iterator[tuple[dict[Symbol, Expr], bool]]:
    """Substitutions, and whether all their values are positive."""
    stepped = any(form.has(floor, ceiling) for form in (gold, answer))
    whole_only = stepped and all(str(symbol) in _WHOLE for symbol in symbols)
    if any(form.has(I) for form in (gold, answer)):  # |z - i| and |z + i| agree on the real axis
        yield {s: value * (1 + I) + I for s, value in zip(symbols, _POSITIVE, strict=False)}, True
    if not whole_only:
        for turn in range(_ROUNDS):
            mixed = turn >= _NEEDED
            signs = [_SIGNS[(index + turn) % 3] if mixed else 1 for index in range(len(symbols))]
            values = itertools.islice(itertools.cycle(_POSITIVE), turn, turn + len(symbols))
            yield (
                {s: sign * value for s, sign, value in zip(symbols, signs, values, strict=True)},
                min(signs) > 0,
            )
        yield {s: -value for s, value in zip(symbols, _POSITIVE, strict=False)}, False
    # Where only whole numbers make sense, and on the negative axis as a whole.
    whole = [3, 4]
    if not whole_only and any(_has_corners(form) for form in (gold, answer)):
        # Far out, and so close that no step or corner lies between.
        for index, far in enumerate(_FAR):
            yield {s: far + place for place, s in enumerate(symbols)}, index % 2 == 0
    if stepped:
        whole = [*range(1, _STEPS), *_LARGE_WHOLE]
    for start in whole:
        yield {s: Integer(start + index * (start + 1)) for index, s in enumerate(symbols)}, True


def _has_corners(form: Expr) -> bool:
    roots = (power.exp.is_Rational and not power.exp.is_Integer for power in form.atoms(Pow))
    return form.has(floor, ceiling, Abs, Max, Min, Mod, Piecewise) or any(roots)


def _vanishes(difference: Expr, point: dict[Symbol, Expr]) -> bool:
    """Of large values: whether they differ by less than their own rounding."""
    if difference.has(Float):
        return True
    return bool(N(Abs(difference.xreplace(point)), 15, maxn=_MAX_DIGITS) < _SMALL)


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
    if gold.is_Integer and answer.is_Float:  # a whole number is compared exactly
        return bool(answer == gold)
    exact = (gold - answer).doit()
    if exact.is_Rational and not exact.has(Float):
        return exact == 0
    values = _value(gold, {}), _value(answer, {})
    if None in values:
        raise NotComparable("no value")
    if not _close(*values, _tolerance(gold, answer)):
        return False
    return max(map(abs, values[0])) <= _LARGE or _vanishes(gold - answer, {})
