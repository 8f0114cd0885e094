"""Equality of two answers by their shape; a judge decides what no shape can tell."""

import re
from dataclasses import replace
from typing import Protocol

from opdvr.verifier.forms import (
    Bracketed,
    Form,
    Items,
    Matrix,
    Relation,
    Union,
    as_list,
    read_form,
)
from opdvr.verifier.leaves import Leaf, decide_leaves

# What stands left of "=" in x = 5, f(x) = 2x, m_{\max} = 3, \angle ABC = 90, |AB| = 5, (x, y) = …
_NAME = re.compile(
    r"(?:\\(?:angle|triangle|deg|min|max|lim|inf|sup)(?![A-Za-z])\s*)?"
    r"(?:[A-Za-z]{1,3}|\\[a-z]+|\\(?:text|overline|vec|hat|bar|mathbb|mathcal)\s*\{[^{}]*\}"
    r"|\|[A-Z]{2}\|)'*"
    r"(?:\s*_\s*(?:\w|\{[^{}]*\}|\\[a-z]+))?\s*(?:\^\{?(?:\\ast|\*|')\}?)?'*"
    r"(?:\s*\(\s*[A-Za-z0-9,\s\\]*\))?"
)
_CALL = re.compile(r"(?P<function>[A-Za-z]\w?)\s*\(\s*(?P<argument>[a-z])\s*\)")
_EQUAL, _ABOUT, _IN = "=", "~", "in"
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_INEQUALITIES = {"<", "<=", ">", ">=", "!="}
# Named sets, as far as answers use them.
_NAMED_SET = re.compile(
    r"\\(?:mathbb|mathbf)\s*\{?\s*[RCQZN]\b|\\emptyset|\\setminus|\\backslash|all real"
)


class Undecided(Exception):
    """The text of the answers does not tell whether they are equal."""


class Judge(Protocol):
    """Decides what the shape of two answers leaves open. Each may raise `Undecided`."""

    def leaf(self, gold: Leaf, answer: Leaf) -> bool:
        """Whether two values or words are equal."""

    def relation(self, gold: Relation, answer: Relation) -> bool:
        """Whether two equations or inequalities say the same."""

    def matrix(self, gold: Leaf, answer: Leaf) -> bool:
        """Whether a matrix and an expression, as text, have one value."""

    def sets(self, gold: Form, answer: Form) -> bool:
        """Whether two forms, at least one of which is no plain interval, are one set of numbers."""


class TextJudge:
    """What can be known without symbolic mathematics."""

    def leaf(self, gold: Leaf, answer: Leaf) -> bool:
        """See `Judge`."""
        verdict = decide_leaves(gold, answer)
        if verdict is None:
            raise Undecided
        return verdict

    def relation(self, gold: Relation, answer: Relation) -> bool:
        """See `Judge`."""
        raise Undecided

    def matrix(self, gold: Leaf, answer: Leaf) -> bool:
        """See `Judge`."""
        raise Undecided

    def sets(self, gold: Form, answer: Form) -> bool:
        """See `Judge`."""
        raise Undecided


def equal_answers(gold: str, answer: str, judge: Judge) -> bool:
    """Whether two tidied answers are equal; the judge's errors pass through."""
    if Leaf(gold).key == Leaf(answer).key:
        return True
    gold_form, answer_form = read_form(gold), read_form(answer)
    if equal_forms(gold_form, answer_form, judge):
        return True
    # 100,200 may be a number with its thousands apart, or a list of two.
    lists = as_list(gold) or gold_form, as_list(answer) or answer_form
    return any(isinstance(form, Items) for form in lists) and (
        lists != (gold_form, answer_form) and equal_forms(*lists, judge)
    )


def equal_forms(gold: Form, answer: Form, judge: Judge) -> bool:
    """Whether two answers are equal: sets and lists in any order, all else in theirs."""
    if gold == answer:
        return True
    gold, answer = _single(gold), _single(answer)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return judge.leaf(gold, answer)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _equal_relations(gold, answer, judge)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _equal_matrices(gold, answer, judge)
    if isinstance(gold, Bracketed) and isinstance(answer, Bracketed):
        return _same_brackets(gold, answer) and _in_order(gold.items, answer.items, judge)
    if isinstance(gold, Items) and isinstance(answer, Items):
        return _equal_items(gold, answer, judge)
    if (
        isinstance(gold, Union)
        and isinstance(answer, Union)
        and _matched(gold.parts, answer.parts, judge)
    ):
        return True
    if any(isinstance(form, Union) or _is_named_set(form) for form in (gold, answer)):
        return judge.sets(gold, answer)
    return _list_as_tuple(gold, answer, judge)


def _single(form: Form) -> Form:
    """The answer of a set or list that holds but one."""
    if isinstance(form, Items) and len(form.items) == 1:
        return form.items[0]
    return form


def _is_named_set(form: Form) -> bool:
    return isinstance(form, Leaf) and _NAMED_SET.search(form.text) is not None


def _in_order(gold: tuple[Form, ...], answer: tuple[Form, ...], judge: Judge) -> bool:
    return len(gold) == len(answer) and all(
        equal_forms(*pair, judge) for pair in zip(gold, answer, strict=True)
    )


def _matched(gold: tuple[Form, ...], answer: tuple[Form, ...], judge: Judge) -> bool:
    """Equal in some order, each once. First come is enough: equality is transitive."""
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for wanted in gold:
        exact = next((form for form in left if form == wanted), None)
        found = exact or next((form for form in left if equal_forms(wanted, form, judge)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _same_brackets(gold: Bracketed, answer: Bracketed) -> bool:
    """With two entries the brackets tell an interval's ends; with more they only enclose."""
    if len(gold.items) != 2 or len(answer.items) != 2:
        return True
    return (gold.opening, gold.closing) == (answer.opening, answer.closing)


def _equal_items(gold: Items, answer: Items, judge: Judge) -> bool:
    gold_items, answer_items = _spread_name(gold.items), _spread_name(answer.items)
    if gold.braces and answer.braces:  # a set holds each element once
        gold_items, answer_items = _distinct(gold_items), _distinct(answer_items)
    named = [_names(items) for items in (gold_items, answer_items)]
    if (named[0] is None) != (named[1] is None):
        # x = 1, y = 2 against 1, 2: without the names only the order tells which is which.
        names = named[0] or named[1]
        if len(set(names)) > 1:
            return _in_order(gold_items, answer_items, judge)
    return _matched(gold_items, answer_items, judge)


def _distinct(items: tuple[Form, ...]) -> tuple[Form, ...]:
    return tuple(dict.fromkeys(items))


def _spread_name(items: tuple[Form, ...]) -> tuple[Form, ...]:
    """``x = 1, 2`` names x once for both."""
    first = items[0]
    if isinstance(first, Relation) and not any(isinstance(item, Relation) for item in items[1:]):
        value = _value(first)
        if value is not None:
            return (value, *items[1:])
    return items


def _names(items: tuple[Form, ...]) -> list[str] | None:
    """What each item assigns to, or None unless all are assignments."""
    if not all(isinstance(item, Relation) and _value(item) is not None for item in items):
        return None
    return [item.operands[0].key if isinstance(item.operands[0], Leaf) else "" for item in items]


def _value(relation: Relation) -> Form | None:
    """The value in ``x = 5``, ``x \\in [1, 2]``, ``f(x) = 2x`` or ``\\frac13 \\approx 0.333``."""
    if not set(relation.signs) <= {_EQUAL, _ABOUT, _IN}:
        return None
    operands = list(relation.operands)
    if _ABOUT in relation.signs:
        operands = operands[: relation.signs.index(_ABOUT) + 1]
    while len(operands) > 1 and _is_name(operands[0]):
        operands = operands[1:]
    return operands[0] if len(operands) == 1 else None


def _is_name(form: Form) -> bool:
    if isinstance(form, Bracketed):
        return all(_is_name(item) for item in form.items)
    return isinstance(form, Leaf) and _NAME.fullmatch(form.text) is not None


def _equal_relations(gold: Form, answer: Form, judge: Judge) -> bool:
    if not (isinstance(gold, Relation) and isinstance(answer, Relation)):
        relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
        return _relation_and_value(relation, other, relation is gold, judge)
    if gold.whole.key == answer.whole.key:
        return True
    if gold.signs == answer.signs == (_EQUAL,):
        answer = _renamed(gold, answer)
        if _same_name(gold.operands[0], answer.operands[0]):
            return equal_forms(gold.operands[1], answer.operands[1], judge)
    if _ABOUT in gold.signs or _ABOUT in answer.signs:
        values = _value(gold), _value(answer)
        return None not in values and equal_forms(*values, judge)
    if gold.signs == answer.signs == (_IN,):
        same = _same_name(gold.operands[0], answer.operands[0])
        return same and equal_forms(gold.operands[1], answer.operands[1], judge)
    if all(set(form.signs) <= _INEQUALITIES | {_IN} for form in (gold, answer)):
        if _in_same_direction(gold, answer, judge):
            return True
        return judge.sets(gold, answer)
    return judge.relation(gold, answer)


def _same_name(gold: Form, answer: Form) -> bool:
    return _is_name(gold) and isinstance(answer, type(gold)) and gold == answer


def _renamed(gold: Relation, answer: Relation) -> Relation:
    """f(n) = 2n is f(x) = 2x: the argument's name is free."""
    calls = []
    for relation in (gold, answer):
        left = relation.operands[0]
        calls.append(_CALL.fullmatch(left.text) if isinstance(left, Leaf) else None)
    if not all(calls) or calls[0]["argument"] == calls[1]["argument"]:
        return answer
    name = re.compile(rf"(?<![A-Za-z\\]){calls[1]['argument']}(?![A-Za-z])")
    renamed = read_form(name.sub(calls[0]["argument"], answer.whole.text))
    return renamed if isinstance(renamed, Relation) else answer


def _relation_and_value(
    relation: Relation, other: Form, relation_is_gold: bool, judge: Judge
) -> bool:
    value = _value(relation)
    if value is None:
        shapes = (Bracketed, Union)
        inequality = bool(set(relation.signs) & _INEQUALITIES)
        if inequality and (isinstance(other, shapes) or _is_named_set(other)):
            return judge.sets(relation, other)
        return _all_equal(relation, other, relation_is_gold, judge)
    if equal_forms(*((value, other) if relation_is_gold else (other, value)), judge):
        return True
    # \frac{1}{3} \approx 0.333 for a gold that is itself a decimal.
    rounded = relation.operands[-1]
    decimal = isinstance(other, Leaf) and other.literal is not None and other.literal.measured
    return (
        not relation_is_gold
        and _ABOUT in relation.signs
        and decimal
        and (equal_forms(other, rounded, judge))
    )


def _all_equal(relation: Relation, other: Form, relation_is_gold: bool, judge: Judge) -> bool:
    """2 + 3 = 5: every side that is no name has to have the other answer's value."""
    if set(relation.signs) != {_EQUAL}:
        return False
    sides = [operand for operand in relation.operands if not _is_name(operand)]
    pairs = [(side, other) if relation_is_gold else (other, side) for side in sides]
    return bool(pairs) and all(equal_forms(*pair, judge) for pair in pairs)


def _in_same_direction(gold: Relation, answer: Relation, judge: Judge) -> bool:
    """Operand by operand, as written or read from right to left."""
    flipped = replace(
        answer,
        operands=answer.operands[::-1],
        signs=tuple(_FLIPPED.get(sign, sign) for sign in answer.signs[::-1]),
    )
    return any(
        gold.signs == form.signs and _in_order(gold.operands, form.operands, judge)
        for form in (answer, flipped)
    )


def _equal_matrices(gold: Form, answer: Form, judge: Judge) -> bool:
    """Matrices entry by entry; a vector also against a tuple of its entries."""
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        shapes = [[len(row) for row in form.rows] for form in (gold, answer)]
        return shapes[0] == shapes[1] and all(
            _in_order(*rows, judge) for rows in zip(gold.rows, answer.rows, strict=True)
        )
    matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
    if isinstance(other, Leaf) and other.literal is None and not other.is_words:
        pair = (gold.whole, answer) if matrix is gold else (gold, answer.whole)
        return judge.matrix(*pair)
    if not isinstance(other, Bracketed) or (other.opening, other.closing) != ("(", ")"):
        return False
    if len(matrix.rows) != 1 and any(len(row) != 1 for row in matrix.rows):
        return False
    entries = tuple(entry for row in matrix.rows for entry in row)
    pair = (entries, other.items) if matrix is gold else (other.items, entries)
    return _in_order(*pair, judge)


def _list_as_tuple(gold: Form, answer: Form, judge: Judge) -> bool:
    """A list without brackets against a tuple, in the same order: 1, 2 and (1, 2)."""
    if not {type(gold), type(answer)} == {Items, Bracketed}:
        return False
    items, brackets = (gold, answer) if isinstance(gold, Items) else (answer, gold)
    if items.braces or (brackets.opening, brackets.closing) != ("(", ")"):
        return False
    return _in_order(gold.items, answer.items, judge)
