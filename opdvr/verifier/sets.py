"""Answers as sets of real numbers: intervals, unions, inequalities. Worker side only."""

import re

from sympy import (
    Complement,
    EmptySet,
    Eq,
    Expr,
    FiniteSet,
    I,
    Integers,
    Intersection,
    Interval,
    Ne,
    Reals,
    S,
    Set,
    Symbol,
    oo,
    solveset,
)
from sympy import Union as SetUnion

from opdvr.verifier.forms import Bracketed, Form, Items, Relation, Union, read_form
from opdvr.verifier.leaves import Leaf
from opdvr.verifier.values import expression_of, value_of

_ORDER = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_NAMED = {"R": Reals, "Z": Integers, "N": S.Naturals, "Q": S.Rationals, "C": S.Complexes}
_NAMED_SET = re.compile(r"\\math(?:bb|bf)\s*\{?\s*([RZNQC])\s*\}?")


def as_set(form: Form) -> tuple[Set, str] | None:
    """A form as a set of numbers and the variable it names ("" if none), or None."""
    match form:
        case Leaf():
            return _leaf_as_set(form)
        case Bracketed(items=(low, high)):
            ends = expression_of(low), expression_of(high)
            if None in ends or any(end.has(I) for end in ends):
                return None
            # Not an interval: (5, 2) is a point, and no number equals infinity.
            closed = (form.opening == "[", form.closing == "]")
            if (ends[0] - ends[1]).is_nonnegative or any(
                end.is_infinite and shut for end, shut in zip(ends, closed, strict=True)
            ):
                return None
            return Interval(*ends, form.opening == "(", form.closing == ")"), ""
        case Items(joint=joint) if _are_relations(form) and joint not in ("or", "lor"):
            return _intersection(form) if joint in ("and", "land") else None
        case Items(braces=False) if not _are_relations(form):
            return None
        case Union(parts=parts) | Items(items=parts):
            sets = [as_set(part) for part in parts]
            # What braces hold are elements: a set among them is no part of the whole.
            if isinstance(form, Items) and form.braces and any(map(_is_set, parts)):
                return None
            if None in sets or len({name for _, name in sets if name}) > 1:
                return None
            return SetUnion(*(part for part, _ in sets)), max(name for _, name in sets)
        case Relation():
            return _relation_as_set(form)
    return None


def _is_set(form: Form) -> bool:
    return (
        not isinstance(form, Leaf) or isinstance(value_of(form), Set) or "\\emptyset" in form.text
    )


def _are_relations(form: Items) -> bool:
    return all(isinstance(item, Relation) for item in form.items)


def _intersection(form: Items) -> tuple[Set, str] | None:
    sets = [as_set(item) for item in form.items]
    if None in sets or len({name for _, name in sets}) > 1:
        return None
    return Intersection(*(part for part, _ in sets)), sets[0][1]


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
    value = value_of(leaf)
    if isinstance(value, Set):
        return value, ""
    return (FiniteSet(value), "") if isinstance(value, Expr) else None


def _relation_as_set(relation: Relation) -> tuple[Set, str] | None:
    """x > 2, 1 < x <= 3, x != 2, x in [1, 2], x^2 > 4 as what x may be."""
    if relation.signs == ("in",):
        inner = as_set(relation.operands[1])
        name = relation.operands[0]
        return inner and (inner[0], name.text if isinstance(name, Leaf) else "")
    sides = [expression_of(operand) for operand in relation.operands]
    if None in sides or any(side.has(I) for side in sides):
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
    return None if result == EmptySet else (result, str(variable))


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
