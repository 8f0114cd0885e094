"""Group advantages and the GRPD scale, against values worked out by hand."""

import numpy as np
import pytest
import torch

from opdvr.core import NonFiniteError, group_advantages, group_correct_frac, grpd_scale

# Two groups of four, interleaved. a: 1 0 0 0 (mean 0.25); b: 1 1 0 0 (mean 0.5).
SCORES = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
GROUPS = ["a", "b", "a", "b", "a", "b", "a", "b"]
CENTRED = torch.tensor([0.75, 0.5, -0.25, 0.5, -0.25, -0.5, -0.25, -0.5])


def test_without_std_is_score_minus_group_mean():
    result = group_advantages(SCORES, GROUPS, norm_by_std=False)
    assert result.dtype == torch.float32
    assert torch.equal(result, CENTRED)


def test_with_std_divides_by_the_unbiased_deviation():
    # a: squares 0.5625 + 3 * 0.0625 = 0.75; / 3 = 0.25; std 0.5.
    # b: squares 4 * 0.25 = 1; / 3; std 0.577350.
    std = torch.tensor([0.5, 1 / 3**0.5] * 4)
    result = group_advantages(SCORES, GROUPS, norm_by_std=True)
    torch.testing.assert_close(result, CENTRED / (std + 1e-6), rtol=1e-6, atol=0)


@pytest.mark.parametrize("norm_by_std", [False, True])
def test_ids_may_be_strings_numbers_arrays_or_tensors(norm_by_std):
    numbers = [7 if group == "a" else -3 for group in GROUPS]
    expected = group_advantages(SCORES, GROUPS, norm_by_std)
    kinds = [numbers, torch.tensor(numbers), np.array(numbers), np.array(GROUPS, dtype=object)]
    for ids in kinds:
        assert torch.equal(group_advantages(SCORES, ids, norm_by_std), expected)


@pytest.mark.parametrize("norm_by_std", [False, True])
def test_row_order_is_irrelevant(norm_by_std):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(32, generator=generator)
    groups = torch.arange(32) // 4
    order = torch.randperm(32, generator=generator)
    expected = group_advantages(scores, groups, norm_by_std)
    permuted = group_advantages(scores[order], groups[order], norm_by_std)
    torch.testing.assert_close(permuted, expected[order], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("norm_by_std", [False, True])
@pytest.mark.parametrize("score", [0.35, 0.1, 1.0, 0.0, -7.3])
def test_a_uniform_group_is_exactly_zero(score, norm_by_std):
    scores = torch.full((8,), score)
    result = group_advantages(scores, ["q"] * 8, norm_by_std)
    assert torch.equal(result, torch.zeros(8))
    assert torch.equal(grpd_scale(result, 0.0), torch.zeros(8))
    assert torch.equal(grpd_scale(result, 0.25), torch.full((8,), 0.25))


@pytest.mark.parametrize("norm_by_std", [False, True])
def test_uniformity_is_compared_and_not_computed(norm_by_std):
    # In float64 0.1 + 0.1 + 0.1 is not 0.3, so score - mean leaves 1e-17, over a std of as much.
    scores = torch.full((3,), 0.1, dtype=torch.float64)
    assert scores[0] != sum(scores.tolist()) / 3
    assert torch.equal(group_advantages(scores, ["q"] * 3, norm_by_std), torch.zeros(3))


def test_scale_is_magnitude_plus_baseline():
    scale = grpd_scale(torch.tensor([0.75, -0.25, 0.0]), 0.1)
    torch.testing.assert_close(scale, torch.tensor([0.85, 0.35, 0.1]))


@pytest.mark.parametrize("masked_score", [1.0, float("nan")])
def test_a_masked_row_gets_zero_and_moves_nothing(masked_score):
    scores = torch.tensor([1.0, 0.0, masked_score, 0.0])
    valid = torch.tensor([True, True, False, True])
    # Mean of 1, 0, 0 is 1/3.
    result = group_advantages(scores, ["q"] * 4, False, valid)
    torch.testing.assert_close(result, torch.tensor([2 / 3, -1 / 3, 0.0, -1 / 3]))


def test_a_group_with_one_valid_row_or_none_gives_zero():
    scores = torch.tensor([1.0, 0.0, 1.0, 0.0])
    valid = torch.tensor([True, False, False, False])
    for norm_by_std in (False, True):
        result = group_advantages(scores, ["p", "p", "q", "q"], norm_by_std, valid)
        assert torch.equal(result, torch.zeros(4))


def test_a_group_of_one_row_names_the_knob():
    with pytest.raises(ValueError, match="group q2 has one response.*N_RESPONSES"):
        group_advantages(torch.tensor([1.0, 0.0, 1.0]), ["q1", "q1", "q2"], False)


def test_a_score_that_is_not_a_number_names_its_row():
    with pytest.raises(NonFiniteError, match="verifier score is nan at row 1"):
        group_advantages(torch.tensor([1.0, float("nan")]), ["q", "q"], False)


def test_an_empty_batch_is_empty():
    assert group_advantages(torch.zeros(0), [], True).shape == (0,)


def test_correct_frac_counts_its_own_group():
    # The groups above, interleaved: a has 1 of 4, b has 2 of 4.
    frac = group_correct_frac(SCORES > 0, GROUPS)
    assert frac.dtype == torch.float32
    assert torch.equal(frac, torch.tensor([0.25, 0.5] * 4))
    numbers = torch.tensor([7 if group == "a" else -3 for group in GROUPS])
    assert torch.equal(group_correct_frac(SCORES > 0, numbers), frac)


def test_correct_frac_is_exact_at_both_ends():
    # Gates compare with 0 and 1, so the share may not be 0.9999999.
    correct = torch.tensor([True] * 7 + [False] * 7)
    frac = group_correct_frac(correct, ["right"] * 7 + ["wrong"] * 7)
    assert frac.tolist() == [1.0] * 7 + [0.0] * 7


def test_correct_frac_leaves_masked_rows_out_and_still_answers_them():
    # p: right, (right), wrong -> 1 of 2. q: (right) alone -> nothing counted, 0.
    correct = torch.tensor([True, True, True, False])
    valid = torch.tensor([True, False, False, True])
    frac = group_correct_frac(correct, ["p", "p", "q", "p"], valid)
    assert frac.tolist() == [0.5, 0.5, 0.0, 0.5]


def test_correct_frac_does_not_depend_on_the_order_of_rows():
    generator = torch.Generator().manual_seed(0)
    correct = torch.rand(32, generator=generator) < 0.5
    groups = torch.arange(32) // 4
    valid = torch.rand(32, generator=generator) < 0.8
    order = torch.randperm(32, generator=generator)
    expected = group_correct_frac(correct, groups, valid)
    permuted = group_correct_frac(correct[order], groups[order], valid[order])
    assert torch.equal(permuted, expected[order])
    assert expected.unique().numel() > 2
