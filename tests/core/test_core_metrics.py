"""Metrics by hand, sums that add up over any split, and nothing where there is no denominator."""

import math

import pytest
import torch

from opdvr.core import (
    MethodSpec,
    TokenRewards,
    add_sums,
    advantages,
    metrics_from_sums,
    response_metrics,
    token_rewards,
    token_sums,
)

NAN = float("nan")


def hand_case():
    """Row 0 right, row 1 wrong; the last column is padding and holds NaN."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    log_ratio = torch.tensor([[1.0, -3.0, 0.0, NAN], [2.0, -2.0, NAN, NAN]])
    gated = torch.tensor([[1.0, 0.0, 0.0, NAN], [0.0, -2.0, NAN, NAN]])
    reward = torch.tensor([[0.0, 0.0, 0.0, NAN], [0.0, -1.0, NAN, NAN]])  # scales 0 and 0.5
    return TokenRewards(log_ratio, gated, reward), mask, torch.tensor([True, False])


def test_gate_metrics_by_hand():
    rewards, mask, correct = hand_case()
    student = torch.zeros(2, 4)
    metrics = metrics_from_sums(token_sums(rewards, mask, correct, student))
    assert metrics == pytest.approx(
        {
            "cg/reward_zeroed_frac": 2 / 4,  # -3 and +2, of the four that are not 0
            "opd/log_ratio_mean": -2 / 5,  # 1 - 3 + 0 + 2 - 2
            "opd/log_ratio_abs_mean": 8 / 5,
            "opd/log_ratio_abs_mean_first": 8 / 5,  # no response is longer than the first tokens
            "opd/gate_pass_frac_correct": 1 / 2,
            "opd/gate_pass_frac_incorrect": 1 / 2,
            "opd/zeroed_mass_frac": 5 / 8,
            "opd/effective_token_frac": 1 / 5,
            "opd/reward_mean": -1 / 5,
        }
    )


def test_entropies_advantages_and_truncation_by_hand():
    rewards, mask, correct = hand_case()
    values = torch.tensor([[1.0, 2.0, -3.0, NAN], [4.0, 6.0, NAN, NAN]])
    sums = token_sums(
        rewards,
        mask,
        correct,
        torch.zeros(2, 4),
        entropy=values,
        teacher_entropy=values / 2,
        advantages=values,
        truncated=torch.tensor([False, True]),
    )
    metrics = metrics_from_sums(sums)
    assert metrics["actor/entropy"] == pytest.approx(2.0)  # (1 + 2 - 3 + 4 + 6) / 5
    assert metrics["teacher/entropy"] == pytest.approx(1.0)
    assert metrics["critic/advantages/mean"] == pytest.approx(2.0)
    assert metrics["critic/advantages/max"] == 6.0
    assert metrics["critic/advantages/min"] == -3.0
    assert metrics["opd/truncated_token_frac"] == pytest.approx(2 / 5)


def test_rollout_difference_by_hand():
    # Probabilities 0.5, 0.25 by the trainer and 0.25, 0.5 by the generator.
    student = torch.tensor([[0.5, 0.25]]).log()
    rollout = torch.tensor([[0.25, 0.5]]).log()
    zeros = torch.zeros(1, 2)
    sums = token_sums(
        TokenRewards(zeros, zeros, zeros), torch.ones(1, 2), torch.tensor([True]), student, rollout
    )
    metrics = metrics_from_sums(sums)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(0.25)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(0.25)
    assert metrics["training/rollout_probs_diff_std"] == 0.0
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(-1.0)
    assert metrics["opd/rollout_logprob_diff_mean"] == pytest.approx(math.log(2))
    assert metrics["opd/rollout_logprob_diff_max"] == pytest.approx(math.log(2))


def random_batch(rows=12, tokens=7, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return -2 * torch.rand(rows, tokens, generator=generator)

    mask = (torch.rand(rows, tokens, generator=generator) < 0.6).long()
    mask[3] = 0  # a row that is masked out whole
    student = draw()
    return {
        "teacher_logprobs": draw(),
        "student_logprobs": student,
        "rollout_logprobs": student + 0.01 * draw(),
        "entropy": -draw(),
        "teacher_entropy": -draw(),
        "mask": mask,
        "correct": torch.rand(rows, generator=generator) < 0.5,
        "scale": torch.rand(rows, generator=generator).round(decimals=1),
        "truncated": torch.rand(rows, generator=generator) < 0.3,
    }


def sums_of(batch):
    spec = MethodSpec(grpo_scaled=True)
    keys = ("teacher_logprobs", "student_logprobs", "mask", "correct", "scale")
    rewards = token_rewards(spec, *[batch[key] for key in keys])
    rest = ("rollout_logprobs", "entropy", "teacher_entropy", "truncated")
    return token_sums(
        rewards,
        batch["mask"],
        batch["correct"],
        batch["student_logprobs"],
        advantages=advantages(spec, rewards.reward, batch["mask"]),
        **{key: batch[key] for key in rest},
    )


def rows_of(batch, rows):
    return {key: value[rows] for key, value in batch.items()}


@pytest.mark.parametrize("sizes", [[6, 6], [1] * 12, [3, 1, 8], [12], [5, 0, 7]])
def test_sums_over_any_split_equal_the_whole(sizes):
    batch = random_batch()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    parts = [sums_of(rows_of(batch, rows)) for rows in order.split(sizes)]
    whole, combined = sums_of(batch), add_sums(parts)
    assert all(isinstance(value, float) for part in parts for value in part.values())
    assert all(part.keys() == whole.keys() for part in parts)
    assert combined == pytest.approx(whole, rel=1e-12)
    counts = [key for key in whole if key.endswith("_tokens") or key.endswith(("_max", "_min"))]
    assert len(counts) >= 11
    assert all(combined[key] == whole[key] for key in counts)
    assert metrics_from_sums(combined) == pytest.approx(metrics_from_sums(whole), rel=1e-9)


def test_rollout_metrics_equal_the_direct_formulas():
    batch = random_batch()
    metrics = metrics_from_sums(sums_of(batch))
    valid = batch["mask"].bool()
    p = batch["student_logprobs"].double().exp()[valid]
    q = batch["rollout_logprobs"].double().exp()[valid]
    expected = {
        "training/rollout_probs_diff_mean": (p - q).abs().mean(),
        "training/rollout_probs_diff_max": (p - q).abs().max(),
        "training/rollout_probs_diff_std": (p - q).abs().std(),
        "training/rollout_actor_probs_pearson_corr": torch.corrcoef(torch.stack([p, q]))[0, 1],
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value.item(), rel=1e-9)


def test_padding_is_inert():
    batch = random_batch()
    dirty = {
        key: value.masked_fill(batch["mask"] == 0, NAN) if value.is_floating_point() else value
        for key, value in batch.items()
        if value.dim() == 2
    }
    assert sums_of(batch | dirty) == sums_of(batch)


def test_no_valid_token_gives_zero_sums_and_no_metrics():
    batch = random_batch()
    batch["mask"] = torch.zeros_like(batch["mask"])
    sums = sums_of(batch)
    assert all(value == 0 for key, value in sums.items() if not key.startswith("advantages_m"))
    assert metrics_from_sums(sums) == {}
    # and it changes nothing when added to others
    other = sums_of(random_batch(seed=1))
    assert add_sums([sums, other]) == other
    assert metrics_from_sums(add_sums([])) == {}


def test_an_equal_teacher_leaves_out_the_gate_shares():
    batch = random_batch()
    batch["teacher_logprobs"] = batch["student_logprobs"]
    metrics = metrics_from_sums(sums_of(batch))
    assert metrics["opd/log_ratio_abs_mean"] == 0.0
    assert metrics["opd/effective_token_frac"] == 0.0
    assert not {"cg/reward_zeroed_frac", "opd/zeroed_mass_frac"} & metrics.keys()
    assert not any("gate_pass" in name for name in metrics)


def test_one_token_has_no_spread_and_constant_probabilities_no_correlation():
    # 999, so that sums of squares do carry rounding errors that could pass for spread.
    ones, zeros = torch.ones(1, 999), torch.zeros(1, 999)
    rewards = TokenRewards(zeros, zeros, zeros)
    constant = torch.full((1, 999), -0.7)
    metrics = metrics_from_sums(
        token_sums(rewards, ones, torch.tensor([True]), constant, constant - 0.1)
    )
    assert metrics["training/rollout_probs_diff_std"] == 0.0
    assert "training/rollout_actor_probs_pearson_corr" not in metrics
    one = (torch.arange(999) == 5)[None]
    metrics = metrics_from_sums(token_sums(rewards, one, torch.tensor([True]), constant, constant))
    assert "training/rollout_probs_diff_std" not in metrics
    assert metrics["training/rollout_probs_diff_mean"] == 0.0


def test_without_a_teacher_there_are_no_gate_metrics():
    batch = random_batch()
    sums = token_sums(
        None,
        batch["mask"],
        batch["correct"],
        batch["student_logprobs"],
        entropy=batch["entropy"],
    )
    assert metrics_from_sums(sums).keys() == {"actor/entropy"}


def test_response_metrics_by_hand():
    # Groups: a all right, b mixed, c a single response, d all wrong once its masked row is gone.
    metrics = response_metrics(
        torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]),
        torch.tensor([True, True, True, False, True, False, False, True]),
        ["a", "a", "b", "b", "c", "d", "d", "d"],
        scale=torch.tensor([0.0, 0.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]),
        truncated=torch.tensor([False] * 6 + [True] * 2),
        lengths=torch.tensor([5, 5, 5, 5, 5, 5, 5, 0]),
    )
    assert metrics == pytest.approx(
        {
            "cg/correct_frac": 5 / 8,
            "gs/scale_mean": 0.25,
            "gs/scale_min": 0.0,
            "gs/zeroed_resp_frac": 2 / 8,
            "opd/truncated_frac": 2 / 8,
            "opd/all_equal_group_frac": 2 / 3,  # a and d, of a, b and d
        }
    )


def test_response_metrics_leave_out_what_is_not_given():
    single = response_metrics(torch.tensor([1.0]), torch.tensor([True]), ["q"])
    assert single == {"cg/correct_frac": 1.0}
    empty = response_metrics(torch.zeros(0), torch.zeros(0, dtype=torch.bool), [])
    assert empty == {}
