"""The last complete box decides; cut-off, empty and missing boxes give no answer."""

import time

import pytest

from opdvr.verifier import extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}.", "5"),
        (r"first \boxed{3}, then \boxed{5}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {5}", "5"),
        ("\\boxed\n{5}", "5"),
        (r"$\boxed 5$", "5"),
        (r"\boxed 12.", "12"),
        (r"$\boxed\frac12$", r"\frac12"),
        (r"\boxed -3", "-3"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{a \} b}", r"a \} b"),
        (r"\boxed{x=\boxed{7}}", r"x=\boxed{7}"),
        (r"\\boxed{5}", "5"),
        ("\\boxed{1\n2}", "1\n2"),
        (r"stray } then \boxed{5} and { more", "5"),
    ],
)
def test_answer_is_found(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The answer is 5.",
        r"\boxed{}",
        r"\boxed{5",
        r"\boxed{\frac{1}{2}",
        r"\fbox{5}",
        r"the answer goes in \boxed and nowhere else",
        r"\boxedtext{5}",
    ],
)
def test_no_answer(text):
    assert extract_answer(text) == ""


def test_empty_box_is_passed_over():
    # The prompt's own words, echoed after the answer.
    assert extract_answer(r"\boxed{5} is my final answer within \boxed{}.") == "5"
    assert extract_answer(r"\boxed{5} or rather \boxed{ }") == "5"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 5", "5"),
        ("**Answer:** $5$\n", "$5$"),
        ("The answer is 5. I am sure.", "5"),
        ("so the final answer is: 3.5", "3.5"),
        ("Answer: 3\nNo.\nAnswer: 5", "5"),
        ("reasoning\n#### 72", "72"),
        (r"Answer: 3, that is \boxed{5}", "5"),
        (r"put it within \boxed{}. Answer: 5", "5"),
        (r"Answer: 5, or \boxed{5", ""),  # a cut-off box is no answer under any option
        ("the answers differ", ""),
        ("nothing", ""),
    ],
)
def test_other_forms_by_option(text, answer):
    assert extract_answer(text, "any") == answer
    if "boxed{5}" not in text:
        assert extract_answer(text) == ""


def test_unknown_form_is_named():
    with pytest.raises(ValueError, match="answer_forms='all' is unknown"):
        extract_answer("5", "all")


def test_cut_off_box_does_not_hide_a_complete_one():
    # The response committed to 5 and was cut while writing another box.
    assert extract_answer(r"\boxed{5}. Let me check: \boxed{7") == "5"
    assert extract_answer(r"\boxed{a \boxed{5}") == "5"


def test_box_far_from_the_end_counts():
    assert extract_answer(r"\boxed{5}." + " This follows." * 1000) == "5"


@pytest.mark.parametrize(
    "text",
    ["so x = 1, hence " * 30_000, "\\boxed{" * 20_000, "{" * 200_000]
    + ["\\" * 1_000_000, "\\boxed " * 100_000, "answer is " * 100_000],
)
def test_long_texts_take_linear_time(text):
    started = time.perf_counter()
    assert extract_answer(text, "any") == ""
    # 480,000 characters take about 10 ms; a quadratic scan would take minutes.
    assert time.perf_counter() - started < 2.0
