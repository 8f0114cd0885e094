"""Estimators by hand, and the gradient that the clipped loss makes of an advantage."""

import pytest
import torch

from opdvr.core import MethodSpec, advantages, group_advantages, needs_full_batch, needs_outcome

REWARD = torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def test_direct_is_the_masked_reward():
    result = advantages(MethodSpec(), REWARD, MASK)
    assert torch.equal(result, torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]]))


def test_plus_grpo_adds_the_weighted_outcome_to_valid_tokens():
    spec = MethodSpec(estimator="token_reward_direct_plus_grpo", grpo_outcome_weight=2.0)
    result = advantages(spec, REWARD, MASK, outcome=torch.tensor([0.5, -0.5]))
    assert torch.equal(result, torch.tensor([[2.0, 3.0, 0.0], [2.0, 0.0, 0.0]]))


def test_plus_grpo_without_weight_is_direct_and_without_reward_is_grpo():
    outcome = group_advantages(torch.tensor([1.0, 0.0]), ["q", "q"], norm_by_std=True)
    unweighted = MethodSpec(estimator="token_reward_direct_plus_grpo", grpo_outcome_weight=0.0)
    direct = advantages(MethodSpec(), REWARD, MASK)
    assert torch.equal(advantages(unweighted, REWARD, MASK, outcome=outcome), direct)
    combined = MethodSpec(estimator="token_reward_direct_plus_grpo")
    plain = MethodSpec(estimator="grpo", distill=False)
    zero = torch.zeros_like(REWARD)
    grpo = advantages(plain, None, MASK, outcome=outcome)
    assert torch.equal(grpo, outcome[:, None] * MASK)
    assert torch.equal(advantages(combined, zero, MASK, outcome=outcome), grpo)


def test_token_grpo_by_hand():
    # Valid tokens of the group: 1, 2 | 3. Mean 2, std (n-1) sqrt((1 + 0 + 1) / 2) = 1.
    # Normalised -1, 0 | 1; sums from t on: -1 + 0 = -1, 0 | 1.
    spec = MethodSpec(estimator="token_grpo")
    result = advantages(spec, REWARD, MASK, group_ids=["q", "q"])
    expected = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]) / (1 + 1e-6)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


def test_token_grpo_sums_what_follows():
    # One group, one row: 0, 0, 3. Mean 1, std sqrt((1 + 1 + 4) / 2) = sqrt 3.
    # Normalised (-1, -1, 2) / sqrt 3; from t on (0, 1, 2) / sqrt 3.
    spec = MethodSpec(estimator="token_grpo")
    result = advantages(spec, torch.tensor([[0.0, 0.0, 3.0]]), torch.ones(1, 3), group_ids=["q"])
    torch.testing.assert_close(result * 3**0.5, torch.tensor([[0.0, 1.0, 2.0]]), atol=1e-5, rtol=0)


def test_token_grpo_of_a_uniform_group_is_exactly_zero():
    spec = MethodSpec(estimator="token_grpo")
    reward = torch.full((4, 6), 0.35)
    mask = torch.ones(4, 6)
    mask[2, 3:] = 0
    assert torch.equal(advantages(spec, reward, mask, ["q"] * 4), torch.zeros(4, 6))


def test_token_grpo_groups_by_id_whatever_the_order():
    spec = MethodSpec(estimator="token_grpo")
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(8, 5, generator=generator)
    mask = (torch.rand(8, 5, generator=generator) < 0.7).long()
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    order = torch.tensor([5, 0, 7, 2, 1, 4, 3, 6])
    whole = advantages(spec, reward, mask, groups)
    permuted = advantages(spec, reward[order], mask[order], groups[order])
    torch.testing.assert_close(permuted, whole[order], rtol=1e-6, atol=1e-7)
    # A group is normalised by itself: alone it gives the same.
    alone = advantages(spec, reward[:4], mask[:4], groups[:4])
    torch.testing.assert_close(alone, whole[:4], rtol=1e-6, atol=1e-7)


ESTIMATOR_NAMES = ["token_reward_direct", "token_reward_direct_plus_grpo", "token_grpo", "grpo"]


@pytest.mark.parametrize("estimator", ESTIMATOR_NAMES)
def test_masked_positions_are_inert(estimator):
    spec = MethodSpec(estimator=estimator)
    outcome = torch.tensor([0.5, -0.5])
    clean = advantages(spec, REWARD, MASK, ["q", "q"], outcome)
    dirty = advantages(spec, REWARD.masked_fill(MASK == 0, torch.nan), MASK, ["q", "q"], outcome)
    assert torch.equal(clean, dirty)
    assert not dirty[MASK == 0].any()
    assert dirty.dtype == torch.float32


@pytest.mark.parametrize("estimator", ESTIMATOR_NAMES)
def test_no_valid_token_gives_finite_zero(estimator):
    spec = MethodSpec(estimator=estimator)
    nothing = advantages(spec, REWARD, torch.zeros(2, 3), ["q", "q"], torch.ones(2))
    assert torch.equal(nothing, torch.zeros(2, 3))


def test_only_token_grpo_needs_the_full_batch():
    full = [name for name in ESTIMATOR_NAMES if needs_full_batch(MethodSpec(estimator=name))]
    assert full == ["token_grpo"]
    outcome = [name for name in ESTIMATOR_NAMES if needs_outcome(MethodSpec(estimator=name))]
    assert outcome == ["token_reward_direct_plus_grpo", "grpo"]


class TinyPolicy:
    """A dense softmax policy in float64: logits [B,T,V] = features [B,T,D] @ theta [D,V]."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.features = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
        self.theta = torch.randn(3, 7, generator=generator, dtype=torch.float64)
        self.theta.requires_grad_()
        self.tokens = torch.randint(0, 7, (4, 5), generator=generator)
        self.mask = (torch.arange(5) < torch.tensor([[5], [2], [3], [4]])).double()
        teacher = torch.randn(4, 5, 7, generator=generator, dtype=torch.float64).log_softmax(-1)
        self.teacher_logprobs = teacher.gather(-1, self.tokens[..., None]).squeeze(-1)

    def logprobs(self):
        all_logprobs = (self.features @ self.theta).log_softmax(-1)
        return all_logprobs.gather(-1, self.tokens[..., None]).squeeze(-1)

    def gradient(self, loss):
        return torch.autograd.grad(loss, self.theta)[0]


def clipped_loss(logprobs, old_logprobs, advantage, mask, clip=0.2):
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    losses = torch.maximum(-advantage * ratio, -advantage * clipped)
    return (losses * mask).sum() / mask.sum()


@pytest.mark.parametrize("gate", ["none", "default", "inverse"])
def test_single_forward_gradient_is_minus_advantage_times_grad_logp(gate):
    from opdvr.core import token_rewards

    policy = TinyPolicy()
    logprobs = policy.logprobs()
    correct = torch.tensor([True, False, True, False])
    spec = MethodSpec(gate=gate)
    # The reward is made from the very log-probs that carry the gradient, and adds none of its own.
    reward = token_rewards(spec, policy.teacher_logprobs, logprobs, policy.mask, correct).reward
    advantage = advantages(spec, reward, policy.mask)
    assert advantage.abs().sum() > 0
    loss = clipped_loss(logprobs, logprobs.detach(), advantage, policy.mask)
    gradient = policy.gradient(loss)

    # -sum A grad log p / tokens, with grad log p = x (onehot - p) written out.
    p = (policy.features @ policy.theta).softmax(-1).detach()
    onehot = torch.nn.functional.one_hot(policy.tokens, 7).double()
    per_token = (advantage.double() * policy.mask)[..., None] * (onehot - p)
    expected = -torch.einsum("btd,btv->dv", policy.features, per_token) / policy.mask.sum()
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_a_step_along_the_gradient_moves_the_student_towards_the_teacher():
    from opdvr.core import token_rewards

    policy = TinyPolicy()
    logprobs = policy.logprobs()
    spec = MethodSpec(gate="none")
    reward = token_rewards(
        spec, policy.teacher_logprobs, logprobs, policy.mask, torch.ones(4, dtype=torch.bool)
    ).reward
    loss = clipped_loss(logprobs, logprobs.detach(), reward, policy.mask)
    with torch.no_grad():
        policy.theta -= 1e-3 * policy.gradient(loss)
        moved = policy.logprobs() - logprobs
    # To first order the weighted change sum r * dlogp is the squared gradient norm: positive.
    assert (reward * moved * policy.mask).sum() > 0
