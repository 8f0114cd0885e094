"""Equality of two LaTeX answers by math-verify, numbers compared exactly. Worker side only."""

import itertools

from math_verify import LatexExtractionConfig, LatexNormalizationConfig, parse, verify
from sympy import Abs, Basic, Expr, Float, N, Pow, Symbol, log, simplify

# Numbers that agree to this many digits are taken as equal; forms such as sqrt(3+2 sqrt 2) and
# 1+sqrt 2 have no cheaper proof. evalf raises its working precision until the digits are sound.
_DIGITS = 40
_WORKING_DIGITS = 60
# The same relative tolerance as between literals.
_FLOAT_REL_TOL = 1e-6
# Where a form is real on the positive axis only, negative points must not contradict it.
_NEGATIVE_POINTS = (-2.25, -0.6)
_MAX_SYMBOLS = 3

# math-verify's list of units holds single letters, which would make 2c equal to 2: units are set
# aside before (opdvr.verifier.units).
_CONFIG = [
    LatexExtractionConfig(
        boxed_match_priority=0,
        normalization_config=LatexNormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last"
        ),
    )
]


def parse_answer(text: str) -> list[Basic | str]:
    """Parse LaTeX; the last entry is the text itself, alone when it cannot be parsed."""
    return parse(rf"\boxed{{{text}}}", _CONFIG, parsing_timeout=None)


def equal(gold: str, answer: str) -> bool:
    """Whether two tidied answers are the same. May run for ever: call it under a limit."""
    gold_forms, answer_forms = parse_answer(gold), parse_answer(answer)
    if not gold_forms or not answer_forms:
        return False
    gold_form, answer_form = gold_forms[0], answer_forms[0]
    if _is_number(gold_form) and _is_number(answer_form):
        return _numbers_equal(gold_form, answer_form)
    if verify(gold_forms, answer_forms, timeout_seconds=None):
        return True
    return _equal_where_real(gold_form, answer_form)


def _is_number(form: Basic | str) -> bool:
    return isinstance(form, Expr) and bool(form.is_number) and form.is_finite is not False


def _numbers_equal(gold: Expr, answer: Expr) -> bool:
    if gold == answer:
        return True
    gold_value, answer_value = N(gold, _WORKING_DIGITS), N(answer, _WORKING_DIGITS)
    if not (gold_value.is_number and answer_value.is_number):
        return False
    measured = gold.has(Float) or answer.has(Float)
    tolerance = Float(_FLOAT_REL_TOL) if measured else Float(10, _WORKING_DIGITS) ** -_DIGITS
    difference = N(Abs(gold_value - answer_value), _WORKING_DIGITS)
    return bool(difference <= tolerance * N(Abs(gold_value), _WORKING_DIGITS))


def _equal_where_real(gold: Basic | str, answer: Basic | str) -> bool:
    """Equality of forms with roots or logarithms for positive variables, as ``sqrt(1/n)`` and
    ``1/sqrt(n)``, unless both are real and differ at some negative point, as ``sqrt(x^2)`` and x.
    """
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return False
    symbols = sorted(gold.free_symbols, key=str)
    if not symbols or len(symbols) > _MAX_SYMBOLS or gold.free_symbols != answer.free_symbols:
        return False
    if not (_has_root_or_log(gold) or _has_root_or_log(answer)):
        return False
    positive = {symbol: Symbol(str(symbol), positive=True) for symbol in symbols}
    if simplify(gold.xreplace(positive) - answer.xreplace(positive)) != 0:
        return False
    for point in itertools.product(_NEGATIVE_POINTS, repeat=len(symbols)):
        values = dict(zip(symbols, map(Float, point), strict=True))
        one, other = (N(form.subs(values)) for form in (gold, answer))
        if one.is_real and other.is_real and abs(one - other) > _FLOAT_REL_TOL * abs(one):
            return False
    return True


def _has_root_or_log(form: Expr) -> bool:
    powers = form.atoms(Pow)
    return form.has(log) or any(not power.exp.is_integer for power in powers)
