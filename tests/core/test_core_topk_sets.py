"""Candidate sets by hand and against set algebra."""

import math

import pytest
import torch

from opdvr.core import (
    STRATEGIES,
    WEIGHTINGS,
    MethodSpec,
    candidate_ids,
    is_among,
    register_strategy,
    register_weighting,
)
from opdvr.core.topk import STUDENTS, candidate_weights, in_slots

# The example of docs/top-k.md: top two of the student (0, 1), of the teacher (3, 0).
STUDENT_TOP, TEACHER_TOP = torch.tensor([[[0, 1]]]), torch.tensor([[[3, 0]]])
IDS = {
    "only_stu": [0, 1],
    "only_tch": [3, 0],
    "intersection": [0, -1],
    "union": [0, 1, 3, -1],
    "union-intersection": [-1, 1, 3, -1],
}
NAMES = sorted(STRATEGIES)


@pytest.mark.parametrize("strategy", NAMES)
def test_candidates_of_the_example(strategy):
    ids = candidate_ids(strategy, STUDENT_TOP, TEACHER_TOP)
    assert ids.tolist() == [[IDS[strategy]]]


@pytest.mark.parametrize("strategy", NAMES)
def test_a_slot_holds_an_id_of_the_one_it_is_said_to_belong_to(strategy):
    # The ids themselves, put in slots: wherever there is a candidate, it is that very id.
    ids = candidate_ids(strategy, STUDENT_TOP, TEACHER_TOP)
    slots = in_slots(strategy, STUDENT_TOP, TEACHER_TOP)
    assert slots.shape == ids.shape == (1, 1, 2 * len(STRATEGIES[strategy].slots))
    assert torch.equal(ids, slots.where(ids != -1, -1))


def test_which_top_ids_a_set_reads():
    needs = {name: (s.needs_student, s.needs_teacher) for name, s in STRATEGIES.items()}
    both = dict.fromkeys(("intersection", "union", "union-intersection"), (True, True))
    assert needs == {"only_stu": (True, False), "only_tch": (False, True), **both}


@pytest.mark.parametrize(
    ("student", "teacher", "intersection", "union", "difference"),
    [
        # Disjoint; equal, in another order; -1 on either side is no common candidate.
        ([7, 3], [5, 4], [-1, -1], [7, 3, 5, 4], [7, 3, 5, 4]),
        ([7, 3], [3, 7], [7, 3], [7, 3, -1, -1], [-1, -1, -1, -1]),
        ([7, -1], [3, -1], [-1, -1], [7, -1, 3, -1], [7, -1, 3, -1]),
        ([-1, -1], [3, 0], [-1, -1], [-1, -1, 3, 0], [-1, -1, 3, 0]),
        ([0, 3], [-1, 0], [0, -1], [0, 3, -1, -1], [-1, 3, -1, -1]),
    ],
)
def test_candidates_by_hand(student, teacher, intersection, union, difference):
    tops = torch.tensor(student), torch.tensor(teacher)
    assert candidate_ids("only_stu", tops[0], None).tolist() == student
    assert candidate_ids("only_tch", None, tops[1]).tolist() == teacher
    assert candidate_ids("intersection", *tops).tolist() == intersection
    assert candidate_ids("union", *tops).tolist() == union
    assert candidate_ids("union-intersection", *tops).tolist() == difference


@pytest.mark.parametrize("widths", [(6, 6), (3, 8), (8, 1)])
def test_is_among_is_the_comparison_of_all_pairs(widths):
    generator = torch.Generator().manual_seed(0)
    ids, others = (torch.randint(-1, 12, (4, 9, k), generator=generator) for k in widths)
    pairs = (ids[..., :, None] == others[..., None, :]).any(-1) & (ids != -1)
    assert pairs.any() and not pairs.all()
    assert torch.equal(is_among(ids, others), pairs)
    # Slices and transposes, which are not contiguous.
    assert torch.equal(is_among(ids.transpose(0, 1), others.transpose(0, 1)), pairs.transpose(0, 1))


def test_random_candidates_are_distinct_and_what_set_algebra_gives():
    generator = torch.Generator().manual_seed(1)
    tops = [torch.rand(50, 12, generator=generator).topk(5).indices for _ in range(2)]
    for row in range(50):
        student, teacher = (set(top[row].tolist()) for top in tops)
        expected = {
            "only_stu": student,
            "only_tch": teacher,
            "intersection": student & teacher,
            "union": student | teacher,
            "union-intersection": student ^ teacher,
        }
        for strategy, ids in expected.items():
            found = candidate_ids(strategy, tops[0][row], tops[1][row])
            found = found[found != -1].tolist()
            assert len(found) == len(set(found)) and set(found) == ids


def test_a_new_set_and_weighting_are_one_function_each():
    try:

        @register_strategy("first", STUDENTS, student=True, teacher=False)
        def first(student_ids, teacher_ids):
            return student_ids.where(torch.arange(2) == 0, -1)

        @register_weighting("twice")
        def twice(student_logprobs, teacher_logprobs):
            return student_logprobs + math.log(2)

        assert candidate_ids("first", STUDENT_TOP, None).tolist() == [[[0, -1]]]
        spec = MethodSpec(log_prob_top_k=2, top_k_strategy="first", reward_weight_mode="twice")
        logprobs = torch.tensor([[[-1.0, -2.0]]])
        weights = candidate_weights(spec, torch.tensor([[[True, False]]]), logprobs, logprobs)
        assert weights.tolist() == [[[1.0, 0.0]]]
    finally:
        STRATEGIES.pop("first")
        WEIGHTINGS.pop("twice")
