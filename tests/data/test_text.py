"""What belongs to a problem, and when two spellings are one problem."""

import pytest

from opdvr.data.text import (
    SUFFIX,
    asks_for_nothing,
    asks_for_other_form,
    levelled,
    problem_of,
    prompt_of,
    words_of,
)

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    '{}\n\nRemember to put your answer on its own line after "Answer:".'
)
CHINESE = (
    "求 $x$\n让我们一步一步地思考。请以“Answer: \\boxed{<final_answer>}”的格式输出最终答案。"
    "对于其他类型的问题，请只输出最终答案的数值。"
)


def test_the_suffix_is_added_once():
    prompt = prompt_of("What is 1+1?")
    assert prompt == f"What is 1+1? {SUFFIX}"
    assert prompt_of(problem_of(prompt)) == prompt


def test_odd_spaces_of_a_prompt_survive():
    prompt = f"What is 1+1?\n\n  {SUFFIX}"
    assert prompt_of(problem_of(prompt)) == prompt


@pytest.mark.parametrize(
    ("problem", "added"),
    [
        ("Find x. Put it in \\boxed{}.", False),
        ("Find x. Put it in \\boxed { }.", False),
        ("Earlier we found \\boxed{0.01}. Find x.", True),
    ],
)
def test_a_request_for_a_box_is_not_doubled_but_a_filled_box_is_none(problem, added):
    assert (prompt_of(problem) == f"{problem} {SUFFIX}") is added


def test_dapos_instructions_are_taken_off():
    assert problem_of(DAPO.format("Find $x$.")) == "Find $x$."
    assert problem_of(DAPO.format(CHINESE)) == "求 $x$"


def test_instructions_inside_a_problem_stay():
    text = 'Is "Answer: $Answer" a sentence?'
    assert problem_of(text) == text


@pytest.mark.parametrize(
    "other",
    [
        "find  \\( \\dfrac{1}{2} \\) of the set",
        "Find $\\tfrac 12$ of the set",
        "Find \\[\\frac12\\] of the set",
        "Find \uff11\uff0f".replace("\uff11\uff0f", "$\\frac{1}{2}$") + " of the set?",
    ],
)
def test_one_problem_in_other_spellings(other):
    assert levelled(other) == levelled("Find $\\frac{1}{2}$ of the set.")


@pytest.mark.parametrize(
    ("one", "other"),
    [("What is 2+3?", "What is 2-3?"), ("What is 2*3?", "What is 2*4?"), ("a < b", "a > b")],
)
def test_signs_and_digits_make_another_problem(one, other):
    assert levelled(one) != levelled(other)


def test_layout_commands_are_no_prefixes():
    assert levelled("\\leftarrow x") != levelled("arrow x")
    assert levelled("\\left( x \\right)") == levelled("(x)")


def test_words():
    assert words_of("Let $x_1=\\frac{3}{25}$, y") == ["let", "x", "1", "frac", "3", "25", "y"]
    assert words_of("求x的值") == ["求", "x", "的", "值"]


def test_forms_of_answers():
    assert asks_for_other_form("End with Answer: 5") and not asks_for_nothing("End with Answer: 5")
    assert not asks_for_other_form("Answer: \\boxed{}") and not asks_for_nothing("\\boxed{}")
    assert asks_for_nothing("1+1=?") and not asks_for_other_form("1+1=?")
