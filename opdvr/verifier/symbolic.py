"""Equality of two tidied answers with math-verify and sympy. Worker side only; may run for ever."""

import re
from functools import lru_cache

from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify
from sympy import (
    Basic,
    Complement,
    EmptySet,
    Eq,
    Expr,
    FiniteSet,
    I,
    Integers,
    Interval,
    MatrixBase,
    Ne,
    Rational,
    Reals,
    S,
    Set,
    Symbol,
    SymmetricDifference,
    fraction,
    oo,
    solveset,
    together,
)
from sympy import Union as SetUnion

from opdvr.verifier.compare import equal_answers
from opdvr.verifier.forms import Bracketed, Form, Items, Relation, Union, read_form
from opdvr.verifier.identity import NotComparable, same_expression
from opdvr.verifier.leaves import Leaf, decide_leaves

# The parser's list of units holds single letters, which would make 2c equal to 2: units are set
# aside before (opdvr.verifier.units). Its symbols are lower case by default: R would be r.
_SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
_MEANING = ConversionConfig(lowercase_symbols=False)
_IMAGINARY = Symbol("i")
# What the parser drops or fails on: primes, and a power of a factorial.
_PRIMES = re.compile(r"([A-Za-z])\s*('+)")
_FACTORIAL_POWER = re.compile(r"(?<![A-Za-z\\])(\w+)\s*!\s*\^")
_MATRIX_MARK = re.compile(r"[A-Z]\s*\^\s*\{?\s*(?:-\s*1|\\top|\\dagger|\\intercal|T|\*|')")
_CACHE_SIZE = 4096
_PARSER_FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_ORDER = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_NAMED = {"R": Reals, "Z": Integers, "N": S.Naturals, "Q": S.Rationals, "C": S.Complexes}
_NAMED_SET = re.compile(r"\\math(?:bb|bf)\s*\{?\s*([RZNQC])\s*\}?")


def equal(gold: str, answer: str) -> bool:
    """Whether two tidied answers are the same. May run for ever: call it under a limit."""
    return equal_answers(gold, answer, SymbolicJudge())


def _verified(gold: Basic | MatrixBase | None, answer: Basic | MatrixBase | None) -> bool:
    """math-verify's own comparison of two values."""
    if gold is None or answer is None:
        return False
    gold, answer = (value.doit() for value in (gold, answer))
    return bool(verify([gold], [answer], timeout_seconds=None))


def _matrices_multiply(text: str) -> bool:
    """Products of these letters may not be reordered, as the parser would: A^{-1} B A is not B."""
    if re.search(r"([A-Z])\s*([A-Z]).*\2\s*\1", text):
        return True
    return _MATRIX_MARK.search(text) is not None and re.search(r"([A-Z]).*\1", text) is not None


@lru_cache(maxsize=_CACHE_SIZE)
def _parse(text: str) -> Basic | MatrixBase | None:
    """The value of a LaTeX text, None where it has none for the parser."""
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


def _value(leaf: Leaf) -> Basic | MatrixBase | None:
    if leaf.literal is not None and leaf.literal.value is not None:
        value = leaf.literal.value
        if not leaf.literal.measured:
            return Rational(value.numerator, value.denominator)
    return _parse(leaf.text)


def _expression(form: Form) -> Expr | None:
    value = _value(form) if isinstance(form, Leaf) else None
    return value if isinstance(value, Expr) else None


class SymbolicJudge:
    """Decides by value; see `opdvr.verifier.compare.Judge`."""

    def leaf(self, gold: Leaf, answer: Leaf) -> bool:
        """Text first, then the values; what sympy cannot put a number to, as math-verify does."""
        verdict = decide_leaves(gold, answer)
        if verdict is not None:
            return verdict
        values = _value(gold), _value(answer)
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
        return _verified(_parse(gold.text), _parse(answer.text))

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
    sides = [_expression(operand) for operand in relation.operands]
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


def as_set(form: Form) -> tuple[Set, str] | None:
    """A form as a set of numbers and the variable it names ("" if none), or None."""
    match form:
        case Leaf():
            return _leaf_as_set(form)
        case Bracketed(items=(low, high)):
            ends = _expression(low), _expression(high)
            if None in ends:
                return None
            return Interval(*ends, form.opening == "(", form.closing == ")"), ""
        case Union(parts=parts) | Items(items=parts):
            sets = [as_set(part) for part in parts]
            if None in sets or len({name for _, name in sets if name}) > 1:
                return None
            return SetUnion(*(part for part, _ in sets)), max(name for _, name in sets)
        case Relation():
            return _relation_as_set(form)
    return None


def _leaf_as_set(leaf: Leaf) -> tuple[Set, str] | None:
    if "\\setminus" in leaf.text or "\\backslash" in leaf.text:
        whole, _, part = re.sub(r"\\backslash", r"\\setminus", leaf.text).partition("\\setminus")
        sets = as_set(read_form(whole)), as_set(read_form(part.strip()))
        return None if None in sets else (Complement(sets[0][0], sets[1][0]), "")
    if named := _NAMED_SET.fullmatch(leaf.text):
        return _NAMED[named[1]], ""
    if leaf.text.strip() == r"\emptyset":
        return EmptySet, ""
    if re.search(r"all\s+real", leaf.text):
        return Reals, ""
    value = _value(leaf)
    if isinstance(value, Set):
        return value, ""
    return (FiniteSet(value), "") if isinstance(value, Expr) else None


def _relation_as_set(relation: Relation) -> tuple[Set, str] | None:
    """x > 2, 1 < x <= 3, x != 2, x in [1, 2], x^2 > 4 as what x may be."""
    if relation.signs == ("in",):
        inner = as_set(relation.operands[1])
        name = relation.operands[0]
        return inner and (inner[0], name.text if isinstance(name, Leaf) else "")
    sides = [_expression(operand) for operand in relation.operands]
    if None in sides:
        return None
    symbols = set().union(*(side.free_symbols for side in sides))
    variables = [side for side in sides if isinstance(side, Symbol)]
    variable = variables[0] if len(variables) == 1 else min(symbols, key=str, default=None)
    if variable is None or (len(symbols) > 1 and len(variables) != 1):
        return None
    real = Symbol(str(variable), real=True)
    result: Set = Reals
    for left, sign, right in zip(sides, relation.signs, sides[1:], strict=False):
        part = _solution(left.subs(variable, real), sign, right.subs(variable, real), real)
        if part is None:
            return None
        result = result.intersect(part)
    return result, str(variable)


def _solution(left: Expr, sign: str, right: Expr, variable: Symbol) -> Set | None:
    if sign in _ORDER and right == variable:
        left, right = right, left
        sign = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}[sign]
    if left == variable and not right.has(variable):
        match sign:
            case "<" | "<=":
                return Interval(-oo, right, True, sign == "<")
            case ">" | ">=":
                return Interval(right, oo, sign == ">", True)
            case "=":
                return FiniteSet(right)
            case "!=":
                return Complement(Reals, FiniteSet(right))
    if sign in _ORDER:
        relation = getattr(left, f"__{_ORDER[sign]}__")(right)
    elif sign in ("=", "!="):
        relation = (Eq if sign == "=" else Ne)(left, right)
    else:
        return None
    return solveset(relation, variable, Reals)
