"""The measures of one prompt, worked out by hand on two or three tokens."""

import json
import math

import pytest
import torch
from diagnosing import close, measure, scored

from opdvr.core import MethodSpec
from opdvr.diagnose.numbers import accuracies, all_numbers, end_numbers, token_numbers
from opdvr.diagnose.prompt_measure import (
    PARTS,
    PromptMeasure,
    agreement,
    end_sums,
    part_masks,
    score_sums,
)

# Two responses, the first right, the second wrong. The student's token, and both models' top two:
#           student                 teacher             shared          log-ratio of the token
# 1, token  {7: .50, 3: .25}        {3: .50, 5: .30}    3: min .25      ln(.20/.50) = -0.9163 (id 7)
# 1, token  {3: .80, 7: .10}        {3: .90, 7: .05}    .80 + .05       ln(.90/.80) = +0.1178 (id 3)
# 2, token  {5: .60, 2: .40}        {1: .70, 0: .20}    none            ln(.10/.60) = -1.7918 (id 5)
STUDENT = [
    scored([0.5, 0.8], [{7: 0.5, 3: 0.25}, {3: 0.8, 7: 0.1}], [1.0, 0.5], ends=(0.9, 0.05)),
    scored([0.6], [{5: 0.6, 2: 0.4}], [0.2], ends=(0.3, 0.1)),
]
TEACHER = [
    scored([0.2, 0.9], [{3: 0.5, 5: 0.3}, {3: 0.9, 7: 0.05}], [1.2, 0.3], ends=(0.2, 0.7)),
    scored([0.1], [{1: 0.7, 0: 0.2}], [0.8], ends=(0.4, 0.5)),
]
CORRECT = [True, False]


def as_measure(sums, ends=None):
    blank = measure()
    return PromptMeasure(**{**blank.as_json(), "sums": sums, "ends": ends or blank.ends})


def test_agreement_is_the_smaller_probability_of_shared_tokens():
    one, other = STUDENT[0], TEACHER[0]
    found = agreement(
        one.top_ids[None], one.top_logprobs[None], other.top_ids[None], other.top_logprobs[None]
    )
    assert found.tolist() == [pytest.approx([0.25, 0.85])]


def test_agreement_is_symmetric_and_one_minus_total_variation_on_all_tokens():
    torch.manual_seed(0)
    p, q = (torch.randn(1, 5, 6).log_softmax(-1) for _ in range(2))
    mine, theirs = p.topk(6), q.topk(6)
    tops = (mine.indices, mine.values), (theirs.indices, theirs.values)
    distance = (p.exp() - q.exp()).abs().sum(-1) / 2
    torch.testing.assert_close(agreement(*tops[0], *tops[1]), 1 - distance)
    torch.testing.assert_close(agreement(*tops[1], *tops[0]), 1 - distance)
    assert agreement(*tops[0], *tops[0]).tolist() == [pytest.approx([1.0] * 5)]


def test_agreement_ignores_slots_without_a_token():
    ids = torch.tensor([[[4, -1]]])
    found = agreement(ids, torch.tensor([[[-0.5, 0.0]]]), ids, torch.tensor([[[-1.0, 0.0]]]))
    assert close(found.item(), math.exp(-1.0))


def test_parts_of_a_response():
    # 7 tokens: thirds of 2, 2, 3. One token: it is the last third.
    mask = torch.tensor([[True] * 7, [True] + [False] * 6])
    parts = part_masks(mask)
    assert tuple(parts) == PARTS
    assert parts["first third"][0].nonzero().flatten().tolist() == [0, 1]
    assert parts["middle third"][0].nonzero().flatten().tolist() == [2, 3]
    assert parts["last third"].nonzero().tolist() == [[0, 4], [0, 5], [0, 6], [1, 0]]
    long = part_masks(torch.ones(1, 40, dtype=torch.bool))
    assert long["first 16"].sum() == 16 and not long["first 16"][0, 16]
    # Each valid token is in one third.
    assert torch.equal(sum(parts[f"{name} third"].int() for name in THIRDS), mask.int())


THIRDS = ("first", "middle", "last")


def test_means_over_the_students_tokens():
    numbers = token_numbers([as_measure(score_sums(STUDENT, TEACHER, CORRECT, MethodSpec()))])
    ratios = [math.log(0.2 / 0.5), math.log(0.9 / 0.8), math.log(0.1 / 0.6)]
    assert numbers["tokens"] == 3
    assert close(numbers["log_ratio_mean"], sum(ratios) / 3)  # -0.8634
    assert close(numbers["log_ratio_abs_mean"], sum(map(abs, ratios)) / 3)  # 0.9420
    assert close(numbers["overlap_ratio"], (1 / 2 + 2 / 2 + 0) / 3)
    assert close(numbers["overlap_student_mass"], (0.25 + 0.9 + 0) / 3)
    assert close(numbers["overlap_teacher_mass"], (0.5 + 0.95 + 0) / 3)
    assert close(numbers["agreement"], (0.25 + 0.85 + 0) / 3)
    assert close(numbers["student_entropy"], (1.0 + 0.5 + 0.2) / 3)
    assert close(numbers["entropy_gap"], (1.2 + 0.3 + 0.8 - 1.7) / 3)
    # Right: of -0.92 and +0.12 the second passes. Wrong: -1.79 passes. One of three is zeroed.
    assert close(numbers["gate_pass_correct"], 1 / 2)
    assert close(numbers["gate_pass_incorrect"], 1.0)
    assert close(numbers["gate_pass"], 2 / 3)


def test_the_verdict_turns_the_gate_round():
    sums = score_sums(STUDENT, TEACHER, [False, True], MethodSpec())
    numbers = token_numbers([as_measure(sums)])
    assert close(numbers["gate_pass_incorrect"], 1 / 2)
    assert close(numbers["gate_pass_correct"], 0.0)


def test_parts_and_padding_do_not_leak():
    sums = score_sums(STUDENT, TEACHER, CORRECT, MethodSpec())
    by_part = {part: token_numbers([as_measure(sums)], part) for part in PARTS}
    # The first response's token 0 is its middle third (2 tokens: 0, 1, 1), its token 1 the last.
    assert by_part["first third"]["tokens"] == 0
    assert by_part["first third"]["agreement"] is None
    assert by_part["first third"]["gate_pass"] is None
    assert close(by_part["middle third"]["log_ratio_mean"], math.log(0.2 / 0.5))
    assert close(
        by_part["last third"]["log_ratio_mean"], (math.log(0.9 / 0.8) + math.log(0.1 / 0.6)) / 2
    )
    assert by_part["first 16"] == by_part["all"]


def test_sums_add_up_over_prompts():
    whole = score_sums(STUDENT, TEACHER, CORRECT, MethodSpec())
    apart = [
        score_sums(STUDENT[i : i + 1], TEACHER[i : i + 1], CORRECT[i : i + 1], MethodSpec())
        for i in range(2)
    ]
    together = token_numbers([as_measure(sums) for sums in apart])
    for name, value in token_numbers([as_measure(whole)]).items():
        assert close(together[name], value), name


def test_equal_models_differ_in_nothing():
    numbers = token_numbers([as_measure(score_sums(STUDENT, STUDENT, CORRECT, MethodSpec()))])
    assert numbers["log_ratio_mean"] == numbers["log_ratio_abs_mean"] == 0
    assert numbers["overlap_ratio"] == 1.0 and numbers["entropy_gap"] == 0
    # The probability of the top two: .75, .9 and 1.
    assert close(numbers["agreement"], (0.75 + 0.9 + 1.0) / 3)
    assert numbers["gate_pass"] is None  # nothing that could pass


def test_end_tokens_of_finished_responses():
    # Ends 1 and 2; the student ends with 1, the teacher with either. The second one was cut.
    sums = end_sums(STUDENT, TEACHER, [True, False], (1, 2), [1], [1, 2])
    assert sums["finished"] == 1
    assert close(sums["student_ends"], 0.9)
    assert close(sums["teacher_at_student_ends"], 0.2)
    assert close(sums["teacher_ends"], 0.2 + 0.7)
    assert close(sums["teacher_other_ends"], 0.7)
    both = end_sums(STUDENT, TEACHER, [True, True], (1, 2), [1], [1, 2])
    found = end_numbers([as_measure(measure().sums, both)])
    assert found["finished"] == 2
    assert close(found["teacher_at_student_ends"], (0.2 + 0.4) / 2)
    none = end_sums(STUDENT, TEACHER, [False, False], (1, 2), [1], [1, 2])
    assert end_numbers([as_measure(measure().sums, none)])["teacher_ends"] is None


def test_accuracies():
    measures = [
        measure(0, student=(True, True), teacher=(True, True)),
        measure(1, student=(True, False), teacher=(True, False)),
        measure(2, student=(False, False), teacher=(True, True)),
        measure(3, student=(False, False), teacher=(False, False)),
    ]
    found = accuracies(measures)
    assert found["student"]["mean"] == 3 / 8
    assert found["teacher"]["mean"] == 5 / 8
    assert found["gain"]["mean"] == 1 / 4
    # Failures of the student by prompt: 0, 1, 2, 2 of 5. The teacher has 1/2, 1 and 0 there.
    assert close(found["teacher_where_student_fails"]["mean"], (0.5 + 2 * 1 + 2 * 0) / 5)
    for entry in found.values():
        assert entry["low"] <= entry["mean"] <= entry["high"]
    solved = accuracies([measure(student=(True,), teacher=(True,))])
    assert solved["teacher_where_student_fails"] is None


def test_measures_survive_a_line_of_json():
    one = measure(3)
    line = json.loads(json.dumps(one.as_json()))
    assert PromptMeasure.from_json(line) == one
    numbers = all_numbers([one, measure(4)])
    assert json.loads(json.dumps(numbers)) == numbers
    assert numbers["student_responses"] == 4 and numbers["student_truncated"] == 0
