"""Which numbers lead to which verdict."""

import pytest
from diagnosing import measure

from opdvr.diagnose.numbers import all_numbers
from opdvr.diagnose.thresholds import THRESHOLDS
from opdvr.diagnose.verdict import VERDICTS, decide, incompatible_ids, overlap_counts

DEFAULTS = {name: threshold.default for name, threshold in THRESHOLDS.items()}
OTHER_END = {"teacher_at_student_ends": 0.02, "teacher_other_ends": 1.8}


def verdict(measures, use_overlap=True, **thresholds):
    return decide(measures, all_numbers(measures), DEFAULTS | thresholds, use_overlap)


@pytest.mark.parametrize(
    ("measures", "expected"),
    [
        ([measure()], "go"),
        ([measure(agreement=0.8)], "cold-start first"),
        ([measure(overlap_ratio=0.4)], "cold-start first"),
        # One prompt of four agrees and is solved by the teacher.
        ([measure(0), *(measure(i, agreement=0.5) for i in (1, 2, 3))], "other prompts"),
        # One of four agrees, but the teacher never solves it.
        (
            [measure(0, teacher=(False, False)), *(measure(i, agreement=0.5) for i in (1, 2, 3))],
            "cold-start first",
        ),
        # One of five is too few.
        ([measure(0), *(measure(i, agreement=0.5) for i in range(1, 5))], "cold-start first"),
        ([measure(student=(False,) * 2, teacher=(False,) * 2)], "other prompts"),
        ([measure(student=(True,) * 2, teacher=(True,) * 2)], "teacher adds nothing new"),
        ([measure(student=(True, True), teacher=(True, False))], "teacher adds nothing new"),
        ([measure(log_ratio=0.0, log_ratio_abs=0.001)], "teacher adds nothing new"),
        # Worse than the student, and of another style: a cold start would not help.
        ([measure(teacher=(False, False), agreement=0.2)], "teacher adds nothing new"),
        ([measure(ends=OTHER_END)], "incompatible"),
        # The teacher would not end here at all, which is no matter of the end token.
        ([measure(ends={"teacher_at_student_ends": 0.02})], "go"),
        ([measure(ends={"finished": 0.0})], "go"),
    ],
)
def test_verdicts(measures, expected):
    found = verdict(measures)
    assert found.verdict == expected and expected in VERDICTS
    assert found.reasons


def test_reasons_hold_the_numbers_that_decided():
    found = verdict([measure(agreement=0.8123)])
    assert "agreement 0.812, below 0.9" in found.reasons[0]
    assert "0 of 1 prompts" in found.reasons[1]
    found = verdict([measure()])
    assert any("+0.500 above the student's" in reason for reason in found.reasons)


def test_thresholds_decide():
    assert verdict([measure(agreement=0.8)], min_agreement=0.7).verdict == "go"
    assert verdict([measure()], min_gain=0.6).verdict == "teacher adds nothing new"
    assert verdict([measure()], min_overlap=0.9).verdict == "cold-start first"
    hard = measure(student=(False,) * 20, teacher=(True,) + (False,) * 19)  # 0.05
    assert verdict([hard]).verdict == "other prompts"
    assert verdict([hard], min_teacher_accuracy=0.0).verdict == "go"


def test_the_overlap_does_not_decide_where_it_is_chance():
    # Of 29 ids two random top 16 share more than half.
    assert not overlap_counts(16, 29) and overlap_counts(16, 128) and overlap_counts(64, 151_936)
    assert verdict([measure(overlap_ratio=0.4)], use_overlap=False).verdict == "go"


def test_a_gain_that_may_be_none_is_said():
    measures = [measure(i, student=(True, False), teacher=(i % 2 == 0,) * 2) for i in range(4)]
    measures.append(measure(4, student=(False, False), teacher=(True, True)))
    # Gains 1/2, -1/2, 1/2, -1/2, 1: 0.2 on average, and less than nothing in many draws.
    found = verdict(measures)
    assert found.verdict == "go"
    assert any("not told from none" in reason for reason in found.reasons)


def test_ids_that_differ():
    found = incompatible_ids("id 3 is 'a' in the student and 'b' in the teacher")
    assert found.verdict == "incompatible"
    assert found.reasons[0].startswith("do not distill token by token: id 3")
