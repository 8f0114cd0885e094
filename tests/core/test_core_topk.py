"""Weights, rewards and the tail bucket of candidates, against values worked out by hand."""

import math

import pytest
import torch

from opdvr.core import (
    STRATEGIES,
    WEIGHTINGS,
    MethodSpec,
    NonFiniteError,
    candidate_ids,
    top_k_rewards,
    valid_with_tail,
    with_tail,
)
from opdvr.core.topk import candidate_weights

NAN = float("nan")
# The example of docs/top-k.md: tokens 0 to 4, top two of the student (0, 1), of the teacher (3, 0).
STUDENT = torch.tensor([0.40, 0.30, 0.15, 0.10, 0.05], dtype=torch.float64)
TEACHER = torch.tensor([0.30, 0.10, 0.20, 0.35, 0.05], dtype=torch.float64)
STUDENT_TOP, TEACHER_TOP = torch.tensor([[[0, 1]]]), torch.tensor([[[3, 0]]])
NAMES = sorted(STRATEGIES)
CORRECT = torch.tensor([True])


def spec_of(strategy="only_stu", weighting="student_p", gate="none", **options):
    return MethodSpec(
        gate=gate,
        log_prob_top_k=2,
        top_k_strategy=strategy,
        reward_weight_mode=weighting,
        **options,
    )


def example(strategy, tail=False):
    """(teacher's log-probs, student's, valid) of the example's candidates, each [1,1,C]."""
    ids = candidate_ids(strategy, STUDENT_TOP, TEACHER_TOP)
    valid = ids != -1
    # NaN in empty slots: nothing may come of them.
    teacher, student = (
        p.log()[ids.clamp(min=0)].masked_fill(~valid, NAN) for p in (TEACHER, STUDENT)
    )
    if tail:
        teacher, student = with_tail(teacher, valid), with_tail(student, valid)
        valid = valid_with_tail(valid, student)
    return teacher, student, valid


@pytest.mark.parametrize(
    ("strategy", "weighting", "expected"),
    [
        # Shares of 0.4, 0.3; of 0.3, 0.1; of one alone; of 0.4, 0.3, 0.1; of 0.3, 0.1, 0.35.
        ("only_stu", "student_p", [4 / 7, 3 / 7]),
        ("only_stu", "teacher_p", [3 / 4, 1 / 4]),
        ("only_stu", "none", [1 / 2, 1 / 2]),
        ("only_tch", "student_p", [1 / 5, 4 / 5]),
        ("only_tch", "teacher_p", [7 / 13, 6 / 13]),
        ("intersection", "student_p", [1, 0]),
        ("intersection", "none", [1, 0]),
        ("union", "student_p", [4 / 8, 3 / 8, 1 / 8, 0]),
        ("union", "teacher_p", [6 / 15, 2 / 15, 7 / 15, 0]),
        ("union", "none", [1 / 3, 1 / 3, 1 / 3, 0]),
        ("union-intersection", "student_p", [0, 0.30, 0.10, 0]),
        ("union-intersection", "teacher_p", [0, 0.10, 0.35, 0]),
        ("union-intersection", "none", [0, 1, 1, 0]),
    ],
)
def test_weights_of_the_example(strategy, weighting, expected):
    teacher, student, valid = example(strategy)
    weights = candidate_weights(spec_of(strategy, weighting), valid, teacher, student)
    torch.testing.assert_close(weights, torch.tensor([[expected]], dtype=torch.float64))


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("weighting", sorted(WEIGHTINGS))
@pytest.mark.parametrize("strategy", NAMES)
def test_weights_sum_to_one_or_to_the_mass(strategy, weighting, tail):
    teacher, student, valid = example(strategy, tail)
    student.requires_grad_()
    weights = candidate_weights(spec_of(strategy, weighting), valid, teacher, student)
    assert not weights.requires_grad and not weights[~valid].any()
    # Raw, with the tail: all probability there is, or the 1 each of `none`.
    mass = {"student_p": 0.40, "teacher_p": 0.45, "none": 2.0}[weighting]
    if tail:
        mass = 3.0 if weighting == "none" else 1.0
    total = 1.0 if STRATEGIES[strategy].normalised else mass
    assert weights.sum().item() == pytest.approx(total, abs=1e-12)


# ln(t / s): ln(3/4) = -0.287682, ln(1/3) = -1.098612, ln(3.5) = 1.252763.
@pytest.mark.parametrize(
    ("strategy", "weighting", "expected"),
    [
        # 4/7 * -0.287682, 3/7 * -1.098612; 1/5 * 1.252763, 4/5 * -0.287682; and so on.
        ("only_stu", "student_p", [-0.164390, -0.470834]),
        ("only_tch", "student_p", [0.250553, -0.230146]),
        ("intersection", "student_p", [-0.287682, 0]),
        ("union", "student_p", [-0.143841, -0.411980, 0.156595, 0]),
        ("union", "teacher_p", [-0.115073, -0.146482, 0.584623, 0]),
        ("union", "none", [-0.095894, -0.366204, 0.417588, 0]),
        ("union-intersection", "student_p", [0, -0.329584, 0.125276, 0]),
        ("union-intersection", "none", [0, -1.098612, 1.252763, 0]),
    ],
)
def test_rewards_of_the_example(strategy, weighting, expected):
    teacher, student, valid = example(strategy)
    rewards = top_k_rewards(spec_of(strategy, weighting), valid, teacher, student, CORRECT)
    expected = torch.tensor([[expected]], dtype=torch.float64)
    for stage in rewards:
        torch.testing.assert_close(stage, expected, atol=1e-6, rtol=0)


def test_gate_and_scale_come_on_top_of_the_weight():
    teacher, student, valid = (x.expand(2, 1, -1) for x in example("only_tch"))
    verdicts = torch.tensor([True, False])
    spec = spec_of("only_tch", gate="default", grpo_scaled=True)
    scale = torch.tensor([0.5, 0.25])
    rewards = top_k_rewards(spec, valid, teacher, student, verdicts, scale)
    # Weighted rewards 0.250553, -0.230146: correct keeps the first, incorrect the second.
    weighted, gated = [[0.250553, -0.230146]], [[[0.250553, 0]], [[0, -0.230146]]]
    scaled = [[[0.125276, 0]], [[0, -0.057537]]]
    for stage, expected in zip(rewards, ([weighted, weighted], gated, scaled), strict=True):
        torch.testing.assert_close(
            stage, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0
        )
    with pytest.raises(AssertionError, match="grpo_scaled needs a scale"):
        top_k_rewards(spec, valid, teacher, student, verdicts)


def test_gates_with_units_see_nats_and_not_weighted_nats():
    # only_stu, correct: -0.287682 and -1.098612. A margin of -0.5 lets the first disagree; of the
    # weighted -0.164390 and -0.470834 it would let both.
    teacher, student, valid = example("only_stu")
    spec = spec_of(gate="margin", gate_margin=-0.5)
    rewards = top_k_rewards(spec, valid, teacher, student, CORRECT)
    expected = torch.tensor([[[-0.164390, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(rewards.gated, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("gate", ["mixed", "rescue"])
def test_gates_that_need_groups_get_them(gate):
    # A group without a correct response: both let everything through.
    teacher, student, valid = example("only_tch")
    wrong, spec = torch.tensor([False]), spec_of("only_tch", gate=gate)
    unsolved = top_k_rewards(
        spec, valid, teacher, student, wrong, group_correct_frac=torch.zeros(1)
    )
    assert torch.equal(unsolved.gated, unsolved.log_ratio)
    half = top_k_rewards(
        spec, valid, teacher, student, wrong, group_correct_frac=torch.full((1,), 0.5)
    )
    assert torch.equal(half.gated, half.log_ratio.clamp(max=0))


def test_tail_of_the_example():
    # Outside (0, 1): student 0.15 + 0.10 + 0.05 = 0.30, teacher 0.20 + 0.35 + 0.05 = 0.60.
    teacher, student, valid = example("only_stu", tail=True)
    assert student[..., -1].exp().item() == pytest.approx(0.30)
    assert teacher[..., -1].exp().item() == pytest.approx(0.60)
    assert valid.all()
    # Weights are the probabilities now: 0.4 * -0.287682, 0.3 * -1.098612, 0.3 * ln 2.
    rewards = top_k_rewards(spec_of(tail_bucket=True), valid, teacher, student, CORRECT)
    expected = torch.tensor([[[-0.115073, -0.329584, 0.207944]]], dtype=torch.float64)
    torch.testing.assert_close(rewards.reward, expected, atol=1e-6, rtol=0)
    # Their sum is -KL of (0.4, 0.3, 0.3) from (0.3, 0.1, 0.6): -0.236713.
    assert rewards.reward.sum().item() == pytest.approx(-0.236713, abs=1e-6)


def test_masses_with_the_tail_sum_to_one_at_every_position():
    generator = torch.Generator().manual_seed(2)
    logprobs = torch.randn(5, 4, 9, generator=generator).log_softmax(-1)[..., :6]
    valid = torch.rand(5, 4, 6, generator=generator) < 0.6
    tailed = with_tail(logprobs.masked_fill(~valid, NAN), valid)
    everywhere = torch.cat((valid, torch.ones(5, 4, 1, dtype=torch.bool)), -1)
    total = torch.where(everywhere, tailed.exp(), 0).sum(-1)
    torch.testing.assert_close(total, torch.ones(5, 4))
    assert torch.equal(valid_with_tail(valid, tailed)[..., -1], valid.any(-1))


@pytest.mark.parametrize("rest", [0.0, 1e-9, 1e-6, 1e-3])
def test_nearly_no_tail_is_none_and_stays_finite(rest):
    logprobs = torch.tensor([[[0.6, 0.4 - rest]]], dtype=torch.float64).log().requires_grad_()
    valid = torch.ones(1, 1, 2, dtype=torch.bool)
    tailed = with_tail(logprobs, valid)
    assert tailed[..., -1].item() == pytest.approx(max(math.log(rest or 1e-9), math.log(1e-6)))
    assert valid_with_tail(valid, tailed)[0, 0].tolist() == [True, True, rest == 1e-3]
    gradient = torch.autograd.grad(tailed[..., -1].sum(), logprobs)[0]
    assert torch.isfinite(gradient).all()
    if rest < 1e-6:
        assert not gradient.any()


@pytest.mark.parametrize("planted", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("weighting", sorted(WEIGHTINGS))
@pytest.mark.parametrize("strategy", NAMES)
def test_positions_without_a_candidate_give_exactly_zero(strategy, weighting, tail, planted):
    slots = 2 * len(STRATEGIES[strategy].slots)
    valid = torch.zeros(2, 3, slots, dtype=torch.bool)
    valid[0, 0] = True  # one position that has all, beside masked ones
    teacher, student = (
        torch.rand(2, 3, 9).log_softmax(-1)[..., :slots].masked_fill(~valid, planted)
        for _ in range(2)
    )
    if tail:
        teacher, student = with_tail(teacher, valid), with_tail(student, valid)
        valid = valid_with_tail(valid, student)
    spec = spec_of(strategy, weighting, tail_bucket=tail)
    verdicts = torch.tensor([True, False])
    for stage in top_k_rewards(spec, valid, teacher, student, verdicts):
        assert stage[0, 0].any() and torch.isfinite(stage).all()
        assert not stage[~valid].any() and not stage[1].any()


@pytest.mark.parametrize(("model", "column"), [("teacher", 0), ("student", 1)])
def test_a_valid_candidate_that_is_not_finite_is_named(model, column):
    values = [torch.full((2, 3, 2), -1.0), torch.full((2, 3, 2), -1.0)]
    values[column][1, 2, 0] = -math.inf
    valid = torch.ones(2, 3, 2, dtype=torch.bool)
    message = f"{model} log-probability of a candidate is -inf at row 1, position 2"
    with pytest.raises(NonFiniteError, match=message):
        top_k_rewards(spec_of(), valid, *values, torch.tensor([True, False]))


def test_default_and_inverse_add_up_to_none_candidate_by_candidate():
    generator = torch.Generator().manual_seed(3)
    teacher, student = (torch.randn(6, 9, 8, generator=generator).log_softmax(-1) for _ in "ts")
    valid = torch.rand(6, 9, 8, generator=generator) < 0.7
    correct = torch.tensor([True, False, True, True, False, False])
    by_gate = {
        gate: top_k_rewards(spec_of(gate=gate), valid, teacher, student, correct).reward
        for gate in ("none", "default", "inverse")
    }
    assert torch.equal(by_gate["default"] + by_gate["inverse"], by_gate["none"])
    assert by_gate["default"].any() and by_gate["inverse"].any()
