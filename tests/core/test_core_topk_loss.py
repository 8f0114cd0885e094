"""The clipped loss of candidates: each branch by hand, and nothing from slots that are empty."""

import math

import pytest
import torch

from opdvr.core import Clip, top_k_loss
from opdvr.core.advantages import advantages
from opdvr.core.spec import MethodSpec

CLIP = Clip(low=0.2, high=0.28, dual=3.0)
NAN = float("nan")


def loss_of(ratio, reward, clip=CLIP):
    """(loss, slope d loss / d logp, whether clipped) of one candidate."""
    old = torch.full((1, 1, 1), -2.0, dtype=torch.float64)
    new = (old + math.log(ratio)).requires_grad_()
    valid = torch.ones(1, 1, 1, dtype=torch.bool)
    result = top_k_loss(new, old, torch.full_like(old, reward), valid, clip)
    slope = torch.autograd.grad(result.loss.sum(), new)[0]
    return result.loss.item(), slope.item(), bool(result.clipped)


@pytest.mark.parametrize(
    ("ratio", "reward", "loss", "slope", "clipped"),
    [
        # Within [0.8, 1.28] the loss is -A ratio, and so is its slope (d ratio / d logp = ratio).
        (1.0, 2.0, -2.0, -2.0, False),
        (1.1, 1.0, -1.1, -1.1, False),
        (0.9, -1.0, 0.9, 0.9, False),
        # Above, A > 0: max(-1.5, -1.28). Below, A > 0: max(-0.5, -0.8).
        (1.5, 1.0, -1.28, 0.0, True),
        (0.5, 1.0, -0.5, -0.5, False),
        # Below, A < 0: max(0.5, 0.8). Above, A < 0: max(1.5, 1.28).
        (0.5, -1.0, 0.8, 0.0, True),
        (1.5, -1.0, 1.5, 1.5, False),
        # Dual clip, A < 0 only: min(max(4, 1.28), 3); half of it for half the reward.
        (4.0, -1.0, 3.0, 0.0, True),
        (4.0, -0.5, 1.5, 0.0, True),
        (2.9, -1.0, 2.9, 2.9, False),
        (4.0, 1.0, -1.28, 0.0, True),
        (0.5, 0.0, 0.0, 0.0, False),
    ],
)
def test_every_branch_of_the_clip(ratio, reward, loss, slope, clipped):
    found = loss_of(ratio, reward)
    assert found[:2] == pytest.approx((loss, slope), abs=1e-12)
    assert found[2] is clipped


def test_candidates_add_up_each_with_its_own_ratio_and_clip():
    # -1.28 (clipped), 1.5, -0.9: -0.68.
    ratio = torch.tensor([[[1.5, 1.5, 0.9]]], dtype=torch.float64)
    old = torch.full_like(ratio, -3.0)
    rewards = torch.tensor([[[1.0, -1.0, 1.0]]], dtype=torch.float64)
    result = top_k_loss(old + ratio.log(), old, rewards, ratio > 0, CLIP)
    assert result.loss.shape == (1, 1)
    assert result.loss.item() == pytest.approx(-0.68, abs=1e-12)
    assert result.clipped.tolist() == [[[True, False, False]]]


def random_case(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logprobs, old = (
        torch.randn(3, 4, 5, generator=generator, dtype=dtype).log_softmax(-1) for _ in "no"
    )
    rewards = torch.randn(3, 4, 5, generator=generator, dtype=dtype)
    valid = torch.rand(3, 4, 5, generator=generator) < 0.6
    valid[1, 2] = False  # a position without any candidate
    return logprobs, old, rewards, valid


@pytest.mark.parametrize("planted", [NAN, math.inf, -math.inf])
def test_empty_slots_are_inert_whatever_they_hold(planted):
    logprobs, old, rewards, valid = random_case()
    clean = top_k_loss(logprobs, old, rewards.where(valid, 0), valid, CLIP)
    dirty = [x.masked_fill(~valid, planted) for x in (logprobs, old, rewards)]
    dirty[0].requires_grad_()
    result = top_k_loss(*dirty, valid, CLIP)
    assert torch.equal(result.loss, clean.loss) and torch.equal(result.clipped, clean.clipped)
    assert result.loss[1, 2] == 0 and not result.clipped[~valid].any()
    gradient = torch.autograd.grad(result.loss.sum(), dirty[0])[0]
    assert not gradient[~valid].any() and gradient[valid].any()
    assert torch.isfinite(gradient).all()


def test_a_ratio_of_one_gives_minus_the_reward_and_its_gradient():
    logprobs, _, rewards, valid = random_case(torch.float32)
    rewards = rewards.where(valid, 0)
    logprobs.requires_grad_()
    result = top_k_loss(logprobs, logprobs, rewards, valid, CLIP)
    assert torch.equal(result.loss, -rewards.sum(-1)) and not result.clipped.any()
    gradient = torch.autograd.grad(result.loss.sum(), logprobs)[0]
    assert torch.equal(gradient, -rewards)


def test_the_old_log_probs_and_rewards_are_constants():
    logprobs, old, rewards, valid = random_case()
    logprobs.requires_grad_(), old.requires_grad_()
    loss = top_k_loss(logprobs, old, rewards, valid, CLIP).loss.sum()
    assert torch.autograd.grad(loss, old, allow_unused=True)[0] is None


@pytest.mark.parametrize("reward", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [-500.0, 500.0])
def test_a_ratio_that_would_overflow_stays_finite(reward, log_ratio):
    old = torch.full((1, 1, 1), -600.0)
    new = (old + log_ratio).requires_grad_()
    valid = torch.ones(1, 1, 1, dtype=torch.bool)
    result = top_k_loss(new, old, torch.full_like(old, reward), valid, CLIP)
    slope = torch.autograd.grad(result.loss.sum(), new)[0]
    assert torch.isfinite(result.loss).all() and not slope.any()
    # Above: -1.28, or the 3 of the dual clip. Below: -exp(-20), nearly 0, or 0.8.
    if log_ratio > 0:
        expected = -1.28 if reward > 0 else 3.0
    else:
        expected = -math.exp(-20) if reward > 0 else 0.8
    assert result.loss.item() == pytest.approx(expected, rel=1e-6)


def test_one_candidate_is_the_loss_of_a_sampled_token():
    # top_k_loss with C = 1 against the same clip written for [B,T] tokens.
    logprobs, old, rewards, valid = (x[..., 0] for x in random_case())
    advantage = advantages(MethodSpec(), rewards, valid).double()
    ratio = (logprobs - old).exp()
    expected = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
    expected = torch.where(advantage < 0, torch.minimum(expected, -3 * advantage), expected)
    found = top_k_loss(*(x[..., None] for x in (logprobs, old, advantage, valid)), CLIP).loss
    torch.testing.assert_close(found, expected.where(valid, 0))
