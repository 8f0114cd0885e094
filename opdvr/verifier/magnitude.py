"""How large a number is, without calculating it. Worker side only."""

import math

from sympy import Add, Expr, Mul, Pow, Rational, binomial, factorial

# Decimal digits beyond which a number is not written out, and no gold is as large.
_DIGITS = 1e6


def log10_of(form: Expr) -> float | None:
    """Decimal logarithm of a number's absolute value, roughly; inf and -inf where it is beyond
    all bounds or 0; None for what it cannot tell (sums that may cancel, functions).
    """
    if isinstance(form, Rational):
        return _log10(abs(form.p)) - _log10(form.q) if form.p else -math.inf
    if isinstance(form, Pow):
        return _of_power(log10_of(form.base), form.exp)
    if isinstance(form, Mul):
        parts = [log10_of(part) for part in form.args]
        return None if None in parts or {math.inf, -math.inf} <= set(parts) else sum(parts)
    if isinstance(form, Add):
        parts = sorted(
            (log10_of(part) for part in form.args), key=lambda p: -math.inf if p is None else p
        )
        # The largest decides where none comes near it.
        return parts[-1] if None not in parts and parts[-1] > parts[-2] + 2 else None
    if isinstance(form, factorial):
        inner = log10_of(form.args[0])
        return None if inner is None else 10**inner * inner if inner < 300 else math.inf
    if isinstance(form, binomial):
        top, bottom = (log10_of(part) for part in form.args)
        known = None not in (top, bottom) and bottom < top < 300
        return 10**bottom * (top - bottom) if known else None
    return None


def _log10(whole: int) -> float:
    # A float of it may overflow; its length does not.
    return math.log10(whole) if whole.bit_length() < 1000 else whole.bit_length() * math.log10(2)


def _of_power(base: float | None, exponent: Expr) -> float | None:
    size = log10_of(exponent)
    if base is None or size is None:
        return None
    if base == 0 or size == -math.inf:
        return 0.0
    sign = -1.0 if exponent.is_negative else 1.0
    return sign * base * (10**size if size < 300 else math.inf)


def differ_in_size(gold: Expr, answer: Expr) -> bool:
    """Whether the one is a number that could be written out and the other is far beyond."""
    sizes = log10_of(gold), log10_of(answer)
    if None in sizes or any(math.isnan(size) for size in sizes):
        return False
    # A zero is written out; what is as good as zero and none is not.
    written = [
        0.0 if form.is_Rational and form == 0 else abs(size)
        for form, size in zip((gold, answer), sizes, strict=True)
    ]
    small, large = sorted(written)
    return small < _DIGITS < large
