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
from opdvr.verifier.leaves import Leaf, decide_leaves, is_verdict
from opdvr.verifier.naming import (
    ABOUT,
    EQUAL,
    IN,
    by_name,
    is_call,
    is_name,
    renamed,
    same_name,
    spread_name,
    value_of,
)
from opdvr.verifier.spelling import without_remark

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
    gold_leaf = Leaf(gold)
    if is_verdict(gold_leaf):
        return decide_leaves(gold_leaf, Leaf(answer)) is True
    if gold_leaf.key and gold_leaf.key == Leaf(answer).key:
        return True
    bare = without_remark(gold), without_remark(answer)
    if gold == bare[0] or answer == bare[1]:  # two remarks are compared as they are
        gold, answer = bare
    gold_form, answer_form = _single(read_form(gold)), _single(read_form(answer))
    if equal_forms(gold_form, _without_domain(gold_form, answer_form), judge):
        return True
    # 100,200 may be a number with its thousands apart, or a list of two.
    lists = as_list(gold) or gold_form, as_list(answer) or answer_form
    return any(isinstance(form, Items) for form in lists) and (
        lists != (gold_form, answer_form) and equal_forms(*lists, judge)
    )


def _single(form: Form) -> Form:
    """The answer of a set that holds but one value: {0} for 0, not {{0}} and not {emptyset}."""
    if isinstance(form, Items) and len(form.items) == 1 and not _is_named_set(form.items[0]):
        return form if isinstance(form.items[0], Items) else form.items[0]
    return form


def _without_domain(gold: Form, answer: Form) -> Form:
    """An answer without what it adds on where it holds: ``f(x) = x, x \\in \\mathbb{R}``."""
    if not isinstance(answer, Items) or answer.braces or answer.joint.endswith("or"):
        return answer
    function = isinstance(gold, Relation) and gold.signs == (EQUAL,) and is_call(gold.operands[0])
    expression = isinstance(gold, Leaf) and gold.literal is None and not _is_named_set(gold)
    if not (function or expression) or _is_domain(answer.items[0]):
        return answer
    return answer.items[0] if all(map(_is_domain, answer.items[1:])) else answer


def _is_domain(form: Form) -> bool:
    if not isinstance(form, Relation) or not set(form.signs) <= {IN, "!="}:
        return False
    return not isinstance(form.operands[-1], Items)


def equal_forms(gold: Form, answer: Form, judge: Judge) -> bool:
    """Whether two answers are equal: sets and lists in any order, all else in theirs."""
    if gold == answer and not _joined_otherwise(gold, answer):
        return True
    gold, answer = by_name(gold, answer)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return judge.leaf(gold, answer)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _equal_relations(gold, answer, judge)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _equal_matrices(gold, answer, judge)
    if isinstance(gold, Bracketed) and isinstance(answer, Bracketed):
        return _same_brackets(gold, answer) and _in_order(gold.items, answer.items, judge)
    if isinstance(gold, Leaf) and isinstance(answer, Items) and answer.joint == "or":
        # 1/2 or 0.5: one answer, given twice.
        return all(equal_forms(gold, item, judge) for item in answer.items)
    if isinstance(gold, Items) and isinstance(answer, Items):
        return not _joined_otherwise(gold, answer) and _equal_items(gold, answer, judge)
    if (
        isinstance(gold, Union)
        and isinstance(answer, Union)
        and _matched(gold.parts, answer.parts, judge)
    ):
        return True
    if any(isinstance(form, Union) or _is_named_set(form) for form in (gold, answer)):
        return judge.sets(gold, answer)
    if any(_are_inequalities(form) for form in (gold, answer)):
        return judge.sets(gold, answer)
    return _list_as_tuple(gold, answer, judge)


def _are_inequalities(form: Form) -> bool:
    return isinstance(form, Items) and all(
        isinstance(item, Relation) and set(item.signs) <= _INEQUALITIES for item in form.items
    )


def _joined_otherwise(gold: Form, answer: Form) -> bool:
    """x < 1 or x > 5 is not x < 1 and x > 5; elsewhere only the signs of logic differ."""
    joints = [form.joint for form in (gold, answer) if isinstance(form, Items)]
    meanings = {joint.removeprefix("l") for joint in joints}
    if meanings == {"and", "or"} and {"land", "lor"} & set(joints):
        return True
    if not (_are_inequalities(gold) and _are_inequalities(answer)):
        return False
    return meanings == {"and", "or"}


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
    """With two entries the brackets tell an interval's ends; with more they enclose, but match."""
    if len(gold.items) != 2 or len(answer.items) != 2:
        return all((form.opening == "(") == (form.closing == ")") for form in (gold, answer))
    return (gold.opening, gold.closing) == (answer.opening, answer.closing)


def _equal_items(gold: Items, answer: Items, judge: Judge) -> bool:
    gold_items, answer_items = spread_name(gold.items), spread_name(answer.items)
    if gold.braces and answer.braces:  # a set holds each element once
        gold_items, answer_items = _distinct(gold_items), _distinct(answer_items)
    return _matched(gold_items, answer_items, judge)


def _distinct(items: tuple[Form, ...]) -> tuple[Form, ...]:
    return tuple(dict.fromkeys(items))


def _equal_relations(gold: Form, answer: Form, judge: Judge) -> bool:
    if not (isinstance(gold, Relation) and isinstance(answer, Relation)):
        relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
        return _relation_and_value(relation, other, relation is gold, judge)
    if gold.whole.key == answer.whole.key:
        return True
    if gold.signs == answer.signs == (EQUAL,):
        answer = renamed(gold, answer)
        if same_name(gold.operands[0], answer.operands[0]):
            return equal_forms(gold.operands[1], answer.operands[1], judge)
    if ABOUT in gold.signs or ABOUT in answer.signs:
        if gold.signs == answer.signs:
            return _in_order(gold.operands, answer.operands, judge)
        values = value_of(gold), value_of(answer)
        return None not in values and equal_forms(*values, judge)
    if gold.signs == answer.signs == (IN,):
        same = same_name(gold.operands[0], answer.operands[0])
        return same and equal_forms(gold.operands[1], answer.operands[1], judge)
    if all(set(form.signs) <= _INEQUALITIES | {IN} for form in (gold, answer)):
        if _in_same_direction(gold, answer, judge):
            return True
        return judge.sets(gold, answer)
    return judge.relation(gold, answer)


def _relation_and_value(
    relation: Relation, other: Form, relation_is_gold: bool, judge: Judge
) -> bool:
    value = value_of(relation)
    if value is None:
        shapes = (Bracketed, Union)
        inequality = bool(set(relation.signs) & _INEQUALITIES)
        if inequality and (
            isinstance(other, shapes) or _is_named_set(other) or _are_inequalities(other)
        ):
            return judge.sets(*((relation, other) if relation_is_gold else (other, relation)))
        return _all_equal(relation, other, relation_is_gold, judge)
    if equal_forms(*((value, other) if relation_is_gold else (other, value)), judge):
        return True
    # \frac{1}{3} \approx 0.333 for a gold that is itself a decimal.
    rounded = relation.operands[-1]
    decimal = isinstance(other, Leaf) and other.literal is not None and other.literal.measured
    return (
        not relation_is_gold
        and ABOUT in relation.signs
        and decimal
        and (equal_forms(other, rounded, judge))
    )


def _all_equal(relation: Relation, other: Form, relation_is_gold: bool, judge: Judge) -> bool:
    """2 + 3 = 5: every side that is no name has to have the other answer's value."""
    if set(relation.signs) != {EQUAL}:
        return False
    sides = [operand for operand in relation.operands if not is_name(operand)]
    pairs = [(side, other) if relation_is_gold else (other, side) for side in sides]
    if not pairs or is_name(relation.operands[-1]):
        return False
    return all(equal_forms(*pair, judge) for pair in pairs)


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
