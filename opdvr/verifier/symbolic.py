"""Equality of two tidied answers with math-verify and sympy. Worker side only; may run for ever."""

import re

from math_verify import verify
from sympy import (
    Basic,
    EmptySet,
    Expr,
    Limit,
    MatrixBase,
    Rational,
    Set,
    SymmetricDifference,
    fraction,
    together,
)

from opdvr.verifier.compare import equal_answers
from opdvr.verifier.forms import Form, Relation
from opdvr.verifier.identity import NotComparable, same_expression
from opdvr.verifier.leaves import Leaf, decide_leaves
from opdvr.verifier.sets import as_set
from opdvr.verifier.values import expression_of, parse, value_of

_MATRIX_MARK = re.compile(r"(?:[A-Z]|[A-Z]\s*\))\s*\^\s*\{?\s*(?:-\s*1|\\top|\\dagger|T|\*)")


def equal(gold: str, answer: str) -> bool:
    """Whether two tidied answers are the same. May run for ever: call it under a limit."""
    return equal_answers(gold, answer, SymbolicJudge())


def _verified(gold: Basic | MatrixBase | None, answer: Basic | MatrixBase | None) -> bool:
    """math-verify's own comparison of two values."""
    if gold is None or answer is None:
        return False
    gold, answer = (value.doit() for value in (gold, answer))
    return bool(verify([gold], [answer], timeout_seconds=None))


def _leaves_unknowns(value: Expr) -> bool:
    limits = value.atoms(Limit)
    return any(limit.args[0].free_symbols - {limit.args[1]} for limit in limits)


def _matrices_multiply(text: str) -> bool:
    """Products of these letters may not be reordered, as the parser would: A^{-1} B A is not B."""
    if re.search(r"([A-Z])\s*([A-Z]).*\2\s*\1", text):
        return True
    return _MATRIX_MARK.search(text) is not None and len(set(re.findall("[A-Z]", text))) > 1


class SymbolicJudge:
    """Decides by value; see `opdvr.verifier.compare.Judge`."""

    def leaf(self, gold: Leaf, answer: Leaf) -> bool:
        """Text first, then the values; what sympy cannot put a number to, as math-verify does."""
        verdict = decide_leaves(gold, answer)
        if verdict is not None:
            return verdict
        values = value_of(gold), value_of(answer)
        if any(isinstance(v, Expr) and v.has(Limit) and _leaves_unknowns(v) for v in values):
            return False  # a limit of what the parser does not know
        if any(_matrices_multiply(leaf.text) for leaf in (gold, answer)):
            return False
        if all(isinstance(value, Expr) for value in values):
            try:
                return same_expression(*values)
            except NotComparable:
                pass  # infinities, functions without values: math-verify compares their structure
        if all(isinstance(value, Set) for value in values):
            return self.sets(gold, answer)
        return _verified(*values)

    def relation(self, gold: Relation, answer: Relation) -> bool:
        """Equations that differ by a constant factor, or in the order of their sides."""
        if gold.signs != answer.signs or len(gold.signs) != 1 or gold.signs[0] != "=":
            return False
        left, right = _difference(gold), _difference(answer)
        if left is None or right is None:
            sides = answer.operands, answer.operands[::-1]
            return any(all(map(self._same_side, gold.operands, side)) for side in sides)
        return _proportional(left, right)

    def matrix(self, gold: Leaf, answer: Leaf) -> bool:
        """A factor times a matrix against a matrix."""
        return _verified(parse(gold.text), parse(answer.text))

    def _same_side(self, gold: Form, answer: Form) -> bool:
        if isinstance(gold, Leaf) and isinstance(answer, Leaf):
            return self.leaf(gold, answer)
        return gold == answer

    def sets(self, gold: Form, answer: Form) -> bool:
        """Sets of real numbers by sympy; other inequalities by the sign of their difference."""
        sets = as_set(gold), as_set(answer)
        if None not in sets:
            (left, left_name), (right, right_name) = sets
            if left_name and right_name and left_name != right_name:
                return False
            return left == right or SymmetricDifference(left, right).doit() == EmptySet
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return _same_inequality(gold, answer)
        return False


def _difference(relation: Relation) -> Expr | None:
    sides = [expression_of(operand) for operand in relation.operands]
    if len(sides) != 2 or None in sides:
        return None
    return fraction(together(sides[0] - sides[1]))[0]


def _proportional(gold: Expr, answer: Expr, positive: bool = False) -> bool:
    """Whether one expression is a constant (positive) multiple of the other."""
    if gold == 0 or answer == 0:
        return gold == answer
    ratio = together(gold / answer)
    if ratio.free_symbols:
        # The value at one point has to be the value everywhere.
        point = {
            symbol: Rational(137 + 31 * index, 100)
            for index, symbol in enumerate(sorted(ratio.free_symbols, key=str))
        }
        constant = ratio.xreplace(point)
        if constant.is_finite is not True or constant == 0:
            return False
        if not same_expression(gold, constant * answer):
            return False
        ratio = constant
    return bool(ratio.is_positive) if positive else ratio != 0


def _same_inequality(gold: Relation, answer: Relation) -> bool:
    """a - b < 0 and 2a - 2b < 0 are one, whatever their variables."""
    sides = []
    for relation in (gold, answer):
        difference = _difference(relation)
        if difference is None or len(relation.signs) != 1:
            return False
        sign = relation.signs[0]
        if sign in (">", ">="):
            difference, sign = -difference, {">": "<", ">=": "<="}[sign]
        sides.append((sign, difference))
    (gold_sign, left), (answer_sign, right) = sides
    return gold_sign == answer_sign and _proportional(left, right, positive=gold_sign != "!=")
