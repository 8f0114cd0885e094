"""Verdicts from text alone, and exact values of literals."""

from fractions import Fraction

import pytest

from opdvr.verifier.compare import TextJudge, Undecided, equal_answers
from opdvr.verifier.literals import literals_equal, parse_literal
from opdvr.verifier.spelling import tidy


def verdict(gold, answer):
    """True, False, or None where the text does not tell."""
    try:
        return equal_answers(tidy(gold), tidy(answer), TextJudge())
    except Undecided:
        return None


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("142.0", "142"),
        ("025", "25"),
        ("-0", "0"),
        ("12345", "12,345"),
        ("12345", r"12\,345"),
        ("12345", r"12,\!345"),
        ("12345", "12{,}345"),
        ("1.6", "1.60"),
        ("4.5e33", r"4.5 \times 10^{33}"),
        ("1e-8", r"10^{-8}"),
        (r"\frac{1}{2}", r"\frac12"),
        (r"\frac{1}{2}", "0.5"),
        (r"\frac{1}{2}", r"\dfrac{2}{4}"),
        (r"-\frac{1}{2}", r"\frac{-1}{2}"),
        (r"\frac{3}{2}", r"1\frac{1}{2}"),
        (r"\frac{14}{3}", "14/3"),
        (r"\frac{1}{3}", "0.333333"),
        ("25\\%", "25"),
        ("25", "25%"),
        ("0.25", "25\\%"),
        ("25\\%", "0.25"),
        (r"336^\circ", "336"),
        ("90", r"90^{\circ}"),
        ("5", r"5 \text{ cm}"),
        (r"15\mbox{ cm}^2", "15"),
        (r"5 \text{ cm}", r"5\mathrm{~centimeters}"),
        ("5", "5 dollars"),
        ("5", "x = 5"),
        ("x=5", "5"),
        ("[1,2]", r"x \in [1,2]"),
        (r"\text{Navin}", "Navin"),
        ("Yes", r"\text{yes}"),
        (r"\text{(B)}", "B"),
        ("B", r"\textbf{B}"),
        (r"2\pi", "2π"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{\pi}{2})"),
        ("5", r"\text{The answer is } 5"),
        (r"9^{9^{9}}", r"9^{9^{9}}"),
        ("4343_6", "4343_{6}"),
        (r"\begin{pmatrix} -2 \\ 5 \end{pmatrix}", r"\begin{pmatrix}-2\\5\end{pmatrix}"),
        (">", ">"),
    ],
)
def test_same(gold, answer):
    assert verdict(gold, answer) is True


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "3"),
        ("12", "112"),
        ("5", "-5"),
        ("1000000", "1000001"),
        ("1", "0.99999999"),  # an integer gold admits no tolerance
        ("123456789012345678", "123456789012345679"),  # equal as float64
        ("1.24e-8", "0"),  # no absolute tolerance
        ("1.6", "1.61"),
        ("25\\%", "2500"),
        ("0.25", "25"),
        (r"5 \text{ cm}", r"5 \text{ m}"),
        ("square", "points"),
        (r"\text{even}", r"\text{odd}"),
        ("Yes", "No"),
        ("No", "5"),
        ("5", "?"),
        ("5", r"\text{fifteen}"),
        (r"\frac{1}{2}", "0.51"),
        ("5", "9" * 1500),
    ],
)
def test_different(gold, answer):
    assert verdict(gold, answer) is False


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("1024", "2^{10}"), ("2c", "2"), ("xy", "yx"), (r"\pi", "3.14")],
)
def test_text_alone_cannot_tell(gold, answer):
    assert verdict(gold, answer) is None


def test_tidy_is_idempotent():
    for text in (r"\left( 3, \dfrac{\pi}{2} \right)", r"12\,345", "{{5}}", "25\\%", "4.5e33"):
        once = tidy(text)
        assert tidy(once) == once


def test_literal_values():
    assert parse_literal("12,345.50").value == Fraction(24691, 2)  # 12345.5
    assert parse_literal(r"1\frac{1}{2}").value == Fraction(3, 2)
    assert parse_literal(r"-\frac{1}{2}").value == Fraction(-1, 2)
    assert parse_literal(r"2 \cdot 10^{-3}").value == Fraction(1, 500)
    assert parse_literal("1/0") is None
    assert parse_literal("10^{10^{10}}") is None
    assert parse_literal("1e99999") is None


def test_tolerance_is_relative_to_the_gold_and_inclusive():
    # |0.333333 - 1/3| = 1/3,000,000 = 1e-6 * 1/3 exactly; one digit fewer is ten times as far.
    third = parse_literal(r"\frac{1}{3}")
    assert literals_equal(third, parse_literal("0.333333"))
    assert not literals_equal(third, parse_literal("0.33333"))
    tiny = parse_literal("1.24e-8")
    assert not literals_equal(tiny, parse_literal("1.2401e-8"))


def test_integers_longer_than_pythons_digit_limit():
    digits = "7" * 5000
    assert literals_equal(parse_literal("0" + digits), parse_literal(digits + ".0"))
    assert not literals_equal(parse_literal(digits), parse_literal(digits[:-1] + "8"))
