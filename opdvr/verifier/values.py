"""The sympy value of a tidied LaTeX text. Worker side only; may run for ever."""

import re
from functools import lru_cache

from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from sympy import Basic, Expr, I, MatrixBase, Rational, Symbol

from opdvr.verifier.forms import Form
from opdvr.verifier.leaves import Leaf

# The parser's list of units holds single letters, which would make 2c equal to 2: units are set
# aside before (opdvr.verifier.units). Its symbols are lower case by default: R would be r.
_SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
_MEANING = ConversionConfig(lowercase_symbols=False)
_IMAGINARY = Symbol("i")
# f(0) is a value, not f times 0; C^T is another matrix, not a power.
_CALLS = re.compile(
    r"(?<![A-Za-z\\])([A-Za-z])\s*((?:_\w|_\{\w+\})?)\s*\(\s*(-?\d+(?:\.\d+)?(?:\s*,\s*-?\d+)*)\s*\)"
)
_TRANSPOSED = re.compile(
    r"([A-Z])\s*\^\s*\{?\s*(?:T|\\top|\\dagger|\\intercal|\*|\\ast|H)(?![A-Za-z])\s*\}?"
)
_POWER_T = re.compile(r"\^\s*\{?\s*T\s*\}?(?![A-Za-z_])")
# Of symbols, sympy takes it to be 1.
_UNREAD = re.compile(r"\\(?:gcd|lcm)(?![A-Za-z])[^A-Za-z]*[A-Za-z]")
# What the parser drops or fails on: primes, and a power of a factorial.
_PRIMES = re.compile(r"([A-Za-z])\s*('+)")
_FACTORIAL_POWER = re.compile(r"(?<![A-Za-z\\])(\w+)\s*!\s*\^")
_CACHE_SIZE = 4096
_PARSER_FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def _as_symbol(call: re.Match) -> str:
    name = re.sub(r"\W", "at", f"{call[1]}{call[2]}at{call[3]}")
    return f"f_{{{name}}}"


@lru_cache(maxsize=_CACHE_SIZE)
def parse(text: str) -> Basic | MatrixBase | None:
    """The value of a LaTeX text, None where it has none for the parser."""
    if _UNREAD.search(text):
        return None
    text = _CALLS.sub(_as_symbol, text)
    text = _TRANSPOSED.sub(r"\1_{transposed}", text)
    text = _POWER_T.sub("^{T_{power}}", text)
    text = _PRIMES.sub(lambda m: f"{m[1]}_{{{'p' * len(m[2])}rime}}", text)
    text = _FACTORIAL_POWER.sub(r"{(\1!)}^", text)
    try:
        value = latex2sympy(
            normalize_latex(text, _SPELLING), normalization_config=None, conversion_config=_MEANING
        )
    except Exception as failure:  # its own class is what the parser raises for a syntax error
        if type(failure) is not Exception and not isinstance(failure, _PARSER_FAILURES):
            raise
        return None
    if isinstance(value, Basic) and _IMAGINARY in value.free_symbols:
        value = value.subs(_IMAGINARY, I)
    return value if isinstance(value, Basic | MatrixBase) else None


def value_of(leaf: Leaf) -> Basic | MatrixBase | None:
    """Exactly what is written where it is a number without decimals, else what the parser reads."""
    if leaf.literal is not None and leaf.literal.value is not None:
        value = leaf.literal.value
        if not leaf.literal.measured:
            return Rational(value.numerator, value.denominator)
    return parse(leaf.text)


def expression_of(form: Form) -> Expr | None:
    """The value of a form that is one expression, else None."""
    value = value_of(form) if isinstance(form, Leaf) and not form.is_opaque else None
    return value if isinstance(value, Expr) else None
