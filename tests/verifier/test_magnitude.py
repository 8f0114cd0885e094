"""Sizes of numbers that nobody should write out."""

import math

import pytest
from sympy import Add, Integer, Pow, Rational, Symbol, factorial, sin

from opdvr.verifier.magnitude import differ_in_size, log10_of


def power(base, exponent):
    return Pow(base, exponent, evaluate=False)


TOWER = power(9, power(9, power(9, 9)))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (Integer(1000), 3.0),
        (Rational(1, 100), -2.0),
        (Integer(-10), 1.0),
        (power(10, 50), 50.0),
        (power(10, -50), -50.0),
        (power(Rational(1, 10), 3), -3.0),
        (Integer(7) ** 5000, 5000 * math.log10(7)),
        (Integer(0), -math.inf),
        (TOWER, math.inf),
        (power(1, TOWER), 0.0),
        (Add(5, TOWER, evaluate=False), math.inf),
        (Add(TOWER, power(7, TOWER), evaluate=False), None),  # which is the larger?
        (sin(1), None),
        (Symbol("x"), None),
    ],
)
def test_logarithm(form, expected):
    found = log10_of(form)
    assert found == expected or found == pytest.approx(expected, rel=0.01)


def test_factorials_are_within_a_factor():
    # 1000! has 2,568 digits; 1000 log10(1000) = 3,000 bounds it from above.
    assert 2567 < log10_of(factorial(1000, evaluate=False)) < 3001
    assert log10_of(factorial(TOWER, evaluate=False)) == math.inf


def test_only_what_is_certain_differs():
    assert differ_in_size(Integer(5), TOWER) and differ_in_size(TOWER, Integer(5))
    assert differ_in_size(Integer(5), power(TOWER, -1))
    assert not differ_in_size(TOWER, power(9, TOWER))
    assert not differ_in_size(Integer(5), Integer(6))
    assert not differ_in_size(Integer(0), Integer(5))
    assert not differ_in_size(Integer(5), sin(TOWER, evaluate=False))
