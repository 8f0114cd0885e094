"""What an answer names: x = 5, (x, y) = (1, 2), f(x) = 2x, the point P(3, 2)."""

import re

from opdvr.verifier.forms import Bracketed, Form, Items, Relation, read_form
from opdvr.verifier.leaves import Leaf

# What stands left of "=" in x = 5, f(x) = 2x, m_{\max} = 3, \angle ABC = 90, |AB| = 5, (x, y) = …
_NAME = re.compile(
    r"(?:m\s*)?(?:\\(?:angle|triangle|deg|min|max|lim|inf|sup)(?![A-Za-z])\s*)?\{?\s*"
    r"(?:[A-Za-z]{1,3}|\\[a-z]+|\\(?:text|overline|vec|hat|bar|mathbb|mathcal)\s*\{[^{}]*\}"
    r"(?:\s*[A-Z]{1,4})?|\|[A-Z]{1,3}\||\[[A-Z]{3,6}\])\s*\}?'*"
    r"(?:\s*_\s*(?:\w|\{[^{}]*\}|\\[a-z]+))?\s*(?:\^\{?(?:\\ast|\*|')\}?)?'*"
    r"(?:\s*\(\s*[A-Za-z0-9,\s\\]*\))?"
    r"|[a-z](?:\s*\+\s*[a-z])+"  # m + n = 104: the sum is what was asked for
)
_CALL = re.compile(r"(?P<function>[A-Za-z]\w?)\s*\(\s*(?P<argument>[a-z])\s*\)")
_POINT = re.compile(r"[A-Z]'?\s*(?P<place>\(.*,.*\))", re.DOTALL)
_INDEXED = re.compile(r"(?P<letter>[A-Za-z])\s*_\s*\{?\s*\d+\s*\}?")
EQUAL, ABOUT, IN = "=", "~", "in"


def by_name(gold: Form, answer: Form) -> tuple[Form, Form]:
    """Both as tuples where one names what the other's places mean: y = 2, x = 3 for (3, 2)."""
    gold, answer = _without_label(gold, answer), _without_label(answer, gold)
    gold_named, answer_named = _named_values(gold), _named_values(answer)
    if gold_named and answer_named:
        if isinstance(gold, Items) and isinstance(answer, Items):
            return gold, answer
        if gold_named.keys() == answer_named.keys():
            return _as_tuple(gold_named), _as_tuple(answer_named)
        return gold, answer
    if gold_named and isinstance(answer, Items | Bracketed):
        return _as_tuple(gold_named), answer
    if answer_named and isinstance(gold, Items | Bracketed):
        return gold, _as_tuple(answer_named)
    return gold, answer


def _without_label(form: Form, other: Form) -> Form:
    """The point P(3, 2) as (3, 2)."""
    label = _POINT.fullmatch(form.text) if isinstance(form, Leaf) else None
    if label is None or not isinstance(other, Bracketed):
        return form
    return read_form(label["place"])


def _as_tuple(named: dict[str, Form]) -> Bracketed:
    """In the order of x, y, z; of other names, as r and theta, in the order they are written."""
    names = sorted(named) if all(re.fullmatch("[A-Za-z]", name) for name in named) else named
    return Bracketed("(", tuple(named[name] for name in names), ")")


def is_call(form: Form) -> bool:
    """f(x)."""
    return isinstance(form, Leaf) and _CALL.fullmatch(form.text) is not None


def _named_values(form: Form) -> dict[str, Form] | None:
    """Values by name of ``x = 1, y = 2`` or ``(x, y) = (1, 2)``; None for anything else, and for
    x_1 = 1, x_2 = 2: the roots of one equation, in any order.
    """
    if isinstance(form, Relation) and form.signs == (EQUAL,):
        names, values = form.operands
        if not (isinstance(names, Bracketed) and isinstance(values, Bracketed)):
            return None
        keys = [item.key if isinstance(item, Leaf) else "" for item in names.items]
        named = dict(zip(keys, values.items, strict=False))
        return named if is_name(names) and len(named) == len(values.items) else None
    if not isinstance(form, Items) or form.braces:
        return None
    keys = _names(form.items)
    if keys is None or len(set(keys)) < len(keys):
        return None
    letters = {match["letter"] for key in keys if (match := _INDEXED.fullmatch(key))}
    if len(letters) == 1 and all(_INDEXED.fullmatch(key) for key in keys):
        return None
    return {key: value_of(item) for key, item in zip(keys, form.items, strict=True)}


def spread_name(items: tuple[Form, ...]) -> tuple[Form, ...]:
    """``x = 1, 2`` names x once for both."""
    first = items[0]
    if isinstance(first, Relation) and not any(isinstance(item, Relation) for item in items[1:]):
        value = value_of(first)
        if value is not None:
            return (value, *items[1:])
    return items


def _names(items: tuple[Form, ...]) -> list[str] | None:
    """What each item assigns to, or None unless all are assignments."""
    if not all(isinstance(item, Relation) and value_of(item) is not None for item in items):
        return None
    return [item.operands[0].key if isinstance(item.operands[0], Leaf) else "" for item in items]


def value_of(relation: Relation) -> Form | None:
    """The value in ``x = 5``, ``x \\in [1, 2]``, ``f(x) = 2x`` or ``\\frac13 \\approx 0.333``."""
    if not set(relation.signs) <= {EQUAL, ABOUT, IN}:
        return None
    operands, signs = list(relation.operands), list(relation.signs)
    while len(operands) > 1 and is_name(operands[0]):
        operands, signs = operands[1:], signs[1:]
    if ABOUT in signs:  # what it is about counts, not the rounded value
        operands = operands[: signs.index(ABOUT) + 1]
    if len(operands) != 1:
        return None
    # Names in brackets say which value is which: see _named_values.
    return None if isinstance(relation.operands[0], Bracketed) else operands[0]


def is_name(form: Form) -> bool:
    """A variable, a call such as f(x), or a tuple of names."""
    if isinstance(form, Bracketed):
        return all(is_name(item) for item in form.items)
    return isinstance(form, Leaf) and _NAME.fullmatch(form.text) is not None


def same_name(gold: Form, answer: Form) -> bool:
    """Whether both are the same name."""
    return is_name(gold) and isinstance(answer, type(gold)) and gold == answer


def renamed(gold: Relation, answer: Relation) -> Relation:
    """f(n) = 2n is f(x) = 2x: the argument's name is free."""
    calls = []
    for relation in (gold, answer):
        left = relation.operands[0]
        calls.append(_CALL.fullmatch(left.text) if isinstance(left, Leaf) else None)
    if not all(calls) or calls[0]["argument"] == calls[1]["argument"]:
        return answer
    taken = re.compile(rf"(?<![A-Za-z\\]){calls[0]['argument']}(?![A-Za-z])")
    if taken.search(answer.whole.text):  # f(u) = 2x: x is no argument there
        return answer
    name = re.compile(rf"(?<![A-Za-z\\]){calls[1]['argument']}(?![A-Za-z])")
    renamed = read_form(name.sub(calls[0]["argument"], answer.whole.text))
    return renamed if isinstance(renamed, Relation) else answer
