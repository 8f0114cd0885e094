"""Ground truths of every kind that data sets hold."""

import numpy as np
import pytest

from opdvr.verifier import check_golds, compute_score, validate_gold


def right(gold, answer):
    return compute_score("any", rf"\boxed{{{answer}}}", gold)["score"] == 1.0


@pytest.mark.parametrize(
    "gold",
    ["5", 5, 5.0, np.int64(5), np.float32(5), "np.int64(5)", r"\boxed{5}", r"$\boxed{5}$.", "$5$"]
    + [["5"], ("5",), np.array(["5"], dtype=object), "['5']", '["5"]', "['5', '7']", [3, 5]],
)
def test_usable(gold):
    assert validate_gold(gold) is None
    assert right(gold, "5")
    assert not right(gold, "6")


def test_list_means_any_of():
    assert right(["3", "5"], "3") and right(["3", "5"], "5")
    # Both at once is an answer of its own, not one of the two.
    assert not right(["3", "5"], "3,5")


def test_interval_in_brackets_is_no_list_of_answers():
    assert right("[1,2]", "[1,2]")
    assert not right("[1,2]", "1")


@pytest.mark.parametrize(
    "gold", ["0^+", r"\mathbb{R}^{+}", "A^*", "+", ">", r"\{\}", "[0,1)", r"text \( X \)."]
)
def test_unusual_but_sound(gold):
    assert check_golds([gold]) == [None]


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        (None, "missing"),
        ("", "empty"),
        ("  ", "empty"),
        ("$$", "empty"),
        (float("nan"), "not a number"),
        (np.float64("inf"), "not a number"),
        ("nan", "missing value as text"),
        ("None", "missing value as text"),
        ([], "empty list"),
        (["5", None], "missing"),
        ({"answer": "5"}, "a dict"),
        (r"\frac{1}{2", "unbalanced braces"),
        ("5}{", "unbalanced braces"),
        ("''", "nothing but punctuation"),
        ("\u200b", "empty"),
        (r"\boxed{}", "empty"),
        (r"\text{ }", "empty"),
        ("()", "empty"),
        ("N/A", "missing value as text"),
        ("?", "nothing but punctuation"),
        ("(1,2", "a bracket without its partner"),
        (r"\frac{1}{}", "an empty argument"),
        (r"\sqrt{}", "an empty argument"),
        ("3 +", "an operator at the end"),
        (r"\begin{pmatrix} 1 & 2", "an environment without its end"),
    ],
)
def test_unusable(gold, reason):
    assert reason in validate_gold(gold)
    assert check_golds(["5", gold, "5"])[1] == validate_gold(gold)
    with pytest.raises(ValueError, match="reward_model.ground_truth of a 'S' row"):
        compute_score("S", r"\boxed{5}", gold)


@pytest.mark.parametrize("answer", ["-", r"\text{}", "$", ".", "{}", "()"])
def test_a_sign_as_gold_is_no_empty_answer(answer):
    assert right("+", "+")
    assert not right("+", answer)
