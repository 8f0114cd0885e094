"""Overlap of two top K, and the sums of candidates and divergences."""

import math

import pytest
import torch

from opdvr.core import (
    Overlap,
    TokenRewards,
    add_sums,
    divergence_sums,
    metrics_from_sums,
    overlap_sums,
    token_sums,
    top_k_overlap,
)


def test_overlap_by_hand():
    # student 7: 0.5, 3: 0.25; teacher 3: 0.5, 5: 0.3. Shared: 3. ln(0.5 / 0.25) = ln 2.
    overlap = top_k_overlap(
        torch.tensor([[[7, 3]]]),
        torch.tensor([[[0.5, 0.25]]]).log(),
        torch.tensor([[[3, 5]]]),
        torch.tensor([[[0.5, 0.3]]]).log(),
    )
    assert overlap.ratio.item() == 0.5
    assert overlap.student_mass.item() == pytest.approx(0.25)
    assert overlap.teacher_mass.item() == pytest.approx(0.5)
    assert overlap.advantage.item() == pytest.approx(math.log(2), abs=1e-6)


def test_the_advantage_is_weighted_by_the_student():
    # shared 1 and 2, in another order: student 0.6, 0.2; teacher 0.3, 0.4.
    # (0.6 ln(0.3/0.6) + 0.2 ln(0.4/0.2)) / 0.8 = (-0.6 + 0.2) ln 2 / 0.8 = -0.5 ln 2
    overlap = top_k_overlap(
        torch.tensor([[[1, 2, 9]]]),
        torch.tensor([[[0.6, 0.2, 0.1]]]).log(),
        torch.tensor([[[2, 1, -1]]]),
        torch.tensor([[[0.4, 0.3, 1.0]]]).log(),
    )
    assert overlap.ratio.item() == pytest.approx(2 / 3)
    assert overlap.advantage.item() == pytest.approx(-0.5 * math.log(2), abs=1e-6)


def test_nothing_shared_is_zero_and_not_nan():
    ids, logprobs = torch.tensor([[[1, 2]]]), torch.tensor([[[0.5, 0.5]]]).log()
    overlap = top_k_overlap(ids, logprobs, ids + 2, logprobs)
    assert [value.item() for value in overlap] == [0, 0, 0, 0]


def test_ids_that_do_not_exist_are_not_missed():
    ids, logprobs = torch.tensor([[[1, 0, -1, -1]]]), torch.tensor([[[0.6, 0.4, 1.0, 1.0]]]).log()
    assert top_k_overlap(ids, logprobs, ids, logprobs).ratio.item() == 1


def test_overlap_against_sets():
    generator = torch.Generator().manual_seed(0)
    student = torch.rand(3, 5, 12, generator=generator).log_softmax(-1)
    teacher = torch.rand(3, 5, 12, generator=generator).log_softmax(-1)
    (own, own_ids), (other, other_ids) = student.topk(4), teacher.topk(4)
    overlap = top_k_overlap(own_ids, own, other_ids, other)
    for b in range(3):
        for t in range(5):
            shared = set(own_ids[b, t].tolist()) & set(other_ids[b, t].tolist())
            p = sum(student[b, t, i].exp().item() for i in shared)
            mass = sum(teacher[b, t, i].exp().item() for i in shared)
            r = sum(student[b, t, i].exp() * (teacher - student)[b, t, i] for i in shared)
            assert overlap.ratio[b, t].item() == len(shared) / 4
            assert overlap.student_mass[b, t].item() == pytest.approx(p, abs=1e-6)
            assert overlap.teacher_mass[b, t].item() == pytest.approx(mass, abs=1e-6)
            expected = float(r) / p if shared else 0
            assert overlap.advantage[b, t].item() == pytest.approx(expected, abs=1e-5)


def test_overlap_is_averaged_over_valid_tokens_of_all_parts():
    def part(ratio, mask):
        values = torch.tensor([ratio])
        return overlap_sums(Overlap(values, values / 2, values / 4, -values), torch.tensor([mask]))

    # valid ratios 1.0, 0.5 and 0.0: mean 0.5; what is masked is NaN
    metrics = metrics_from_sums(
        add_sums(
            [part([1.0, 0.5, math.nan], [1, 1, 0]), part([0.0, math.nan, math.nan], [1, 0, 0])]
        )
    )
    assert metrics["val-topk/overlap_ratio"] == pytest.approx(0.5)
    assert metrics["val-topk/overlap_student_mass"] == pytest.approx(0.25)
    assert metrics["val-topk/overlap_teacher_mass"] == pytest.approx(0.125)
    assert metrics["val-topk/overlap_advantage"] == pytest.approx(-0.5)
    assert overlap_sums(None, torch.ones(1, 1)) == {}


def test_candidates_count_one_by_one_and_tokens_once():
    # Two tokens, two candidates each, one row, correct; the second token is masked.
    ungated = torch.tensor([[[0.4, -0.6], [9.0, 9.0]]])
    gated = torch.tensor([[[0.4, 0.0], [9.0, 9.0]]])
    sums = token_sums(
        TokenRewards(ungated, gated, 2 * gated),
        torch.tensor([[1, 0]]),
        torch.tensor([True]),
        torch.zeros(1, 2),
        log_ratio=torch.tensor([[0.3, 7.0]]),
    )
    metrics = metrics_from_sums(sums)
    assert metrics["cg/reward_zeroed_frac"] == 0.5  # one of two candidates
    assert metrics["opd/zeroed_mass_frac"] == pytest.approx(0.6)  # 0.6 of 0.4 + 0.6
    assert metrics["opd/reward_mean"] == pytest.approx(0.8)  # summed over candidates, one token
    assert metrics["opd/effective_token_frac"] == 1
    assert metrics["opd/log_ratio_mean"] == pytest.approx(0.3)  # of the sampled token
    assert metrics["opd/gate_pass_frac_correct"] == 0.5


def test_divergence_sums_by_hand():
    mask = torch.tensor([[1, 1, 0]])
    sums = divergence_sums(
        torch.tensor([[0.2, 0.4, math.nan]]),
        torch.tensor([[1.0, 1.0, math.nan]]),
        torch.tensor([[0.5, 1.0, math.nan]]),
        mask,
    )
    metrics = metrics_from_sums(sums | {"valid_tokens": 2.0})
    assert metrics["opd/divergence"] == pytest.approx(0.3)
    assert metrics["opd/divergence_passed_frac"] == pytest.approx(0.75)  # 1.5 of 2
