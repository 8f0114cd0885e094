"""Token rewards: sign, gate before scale, inert padding, and loud non-finite values."""

import math

import pytest
import torch

from opdvr.core import (
    MethodSpec,
    NonFiniteError,
    correct_responses,
    log_ratio,
    require_finite,
    token_rewards,
)

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])
CORRECT = torch.tensor([True, False])


def random_case(rows=6, tokens=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    teacher = -3 * torch.rand(rows, tokens, generator=generator)
    student = -3 * torch.rand(rows, tokens, generator=generator)
    lengths = torch.randint(1, tokens + 1, (rows, 1), generator=generator)
    mask = (torch.arange(tokens) < lengths).float()
    correct = torch.rand(rows, generator=generator) < 0.5
    return teacher, student, mask, correct


def test_sign_example():
    # Student 0.2, teacher 0.5: ln 0.5 - ln 0.2 = -0.6931 + 1.6094 = +0.9163, "more of this token".
    teacher, student = torch.tensor([[math.log(0.5)]]), torch.tensor([[math.log(0.2)]])
    assert log_ratio(teacher, student, torch.ones(1, 1)).item() == pytest.approx(0.9163, abs=5e-5)


def test_gate_then_scale_by_hand():
    # Log-ratios: row 0 (right) +1, -1; row 1 (wrong) +1, -2. Default gate: +1, 0; 0, -2.
    teacher = torch.tensor([[-1.0, -3.0], [-1.0, -4.0]])
    student = torch.full((2, 2), -2.0)
    rewards = token_rewards(
        MethodSpec(grpo_scaled=True),
        teacher,
        student,
        torch.ones(2, 2),
        CORRECT,
        scale=torch.tensor([0.5, 0.25]),
    )
    assert torch.equal(rewards.log_ratio, torch.tensor([[1.0, -1.0], [1.0, -2.0]]))
    assert torch.equal(rewards.gated, torch.tensor([[1.0, 0.0], [0.0, -2.0]]))
    assert torch.equal(rewards.reward, torch.tensor([[0.5, 0.0], [0.0, -0.5]]))


@pytest.mark.parametrize("gate", ["none", "default", "inverse"])
def test_equal_teacher_gives_all_zeros(gate):
    _, student, mask, correct = random_case()
    for stage in token_rewards(MethodSpec(gate=gate), student, student, mask, correct):
        assert torch.equal(stage, torch.zeros_like(student))


def test_default_and_inverse_add_up_to_plain_opd():
    case = random_case()
    by_gate = {
        gate: token_rewards(MethodSpec(gate=gate), *case).reward
        for gate in ("none", "default", "inverse")
    }
    assert torch.equal(by_gate["default"] + by_gate["inverse"], by_gate["none"])


def test_plain_opd_and_gate_alone_are_special_cases():
    teacher, student, mask, correct = random_case()
    plain = token_rewards(MethodSpec(gate="none"), teacher, student, mask, correct)
    assert torch.equal(plain.reward, (teacher - student) * mask)
    # GRPD with scale 1 everywhere is the gate alone; with u = 0 and no spread it is nothing.
    gated = token_rewards(MethodSpec(), teacher, student, mask, correct).reward
    spec = MethodSpec(grpo_scaled=True)
    ones, zeros = torch.ones(6), torch.zeros(6)
    assert torch.equal(token_rewards(spec, teacher, student, mask, correct, ones).reward, gated)
    nothing = token_rewards(spec, teacher, student, mask, correct, zeros).reward
    assert not nothing.any()


@pytest.mark.parametrize("planted", [NAN, INF, -INF])
@pytest.mark.parametrize("gate", ["none", "default", "inverse"])
def test_masked_positions_are_inert(planted, gate):
    teacher, student, mask, correct = random_case()
    clean = token_rewards(MethodSpec(gate=gate), teacher, student, mask, correct)
    dirty = [torch.where(mask.bool(), x, planted) for x in (teacher, student)]
    for one, other in zip(
        clean, token_rewards(MethodSpec(gate=gate), *dirty, mask, correct), strict=True
    ):
        assert torch.equal(one, other)
        assert not other[mask == 0].any()


@pytest.mark.parametrize("planted", [NAN, INF, -INF])
def test_masked_positions_have_no_gradient(planted):
    teacher, student, mask, _ = random_case()
    teacher = torch.where(mask.bool(), teacher, planted).requires_grad_()
    student = torch.where(mask.bool(), student, planted).requires_grad_()
    log_ratio(teacher, student, mask).square().sum().backward()
    for grad in (teacher.grad, student.grad):
        assert torch.isfinite(grad).all()
        assert not grad[mask == 0].any()
        assert grad[mask == 1].any()


def test_rewards_are_constants_in_float32():
    teacher, student, mask, correct = random_case()
    student = student.to(torch.bfloat16).requires_grad_()
    for stage in token_rewards(MethodSpec(), teacher.double(), student, mask, correct):
        assert stage.dtype == torch.float32
        assert not stage.requires_grad


@pytest.mark.parametrize(("model", "column"), [("teacher", 0), ("student", 1)])
def test_a_valid_non_finite_logprob_names_row_position_and_model(model, column):
    values = {"teacher": torch.full((2, 3), -1.0), "student": torch.full((2, 3), -1.0)}
    values[model][0, 1] = -INF
    values[model][1, 2] = NAN  # masked, so not the one to blame
    with pytest.raises(NonFiniteError, match=f"{model} log-prob.* -inf at row 0, position 1"):
        token_rewards(MethodSpec(), values["teacher"], values["student"], MASK, CORRECT)


def test_require_finite_uses_row_names_and_ignores_padding():
    values = torch.tensor([[1.0, 2.0, NAN], [NAN, INF, INF]])
    require_finite(values[:1], MASK[:1], "entropy")
    with pytest.raises(FloatingPointError, match="entropy is nan at row prompt-7, position 0"):
        require_finite(values, MASK, "entropy", ["prompt-3", "prompt-7"])


def test_correct_is_strictly_above_the_threshold():
    scores = torch.tensor([-1.0, 0.0, 0.35, 1.0])
    assert correct_responses(scores, 0.0).tolist() == [False, False, True, True]
    assert correct_responses(scores, 0.35).tolist() == [False, False, False, True]
    with pytest.raises(NonFiniteError, match="verifier score is nan at row 1"):
        correct_responses(torch.tensor([1.0, NAN]), 0.0)


def test_row_order_is_irrelevant():
    teacher, student, mask, correct = random_case()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    whole = token_rewards(MethodSpec(), teacher, student, mask, correct).reward
    permuted = token_rewards(
        MethodSpec(), teacher[order], student[order], mask[order], correct[order]
    ).reward
    assert torch.equal(permuted, whole[order])
