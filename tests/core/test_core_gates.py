"""Gates: the table of the method, and what must hold for every token."""

import pytest
import torch

from opdvr.core import GATES, MethodSpec, apply_gate, register_gate

REWARD = torch.tensor([[0.9, -0.4, 0.0], [0.9, -0.4, 0.0]])
CORRECT = torch.tensor([True, False])


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ("none", [[0.9, -0.4, 0.0], [0.9, -0.4, 0.0]]),
        ("default", [[0.9, 0.0, 0.0], [0.0, -0.4, 0.0]]),
        ("inverse", [[0.0, -0.4, 0.0], [0.9, 0.0, 0.0]]),
    ],
)
def test_each_gate_passes_its_side(gate, expected):
    assert torch.equal(apply_gate(REWARD, CORRECT, gate), torch.tensor(expected))


@pytest.mark.parametrize("shape", [(6, 9), (6, 9, 4)])
def test_default_and_inverse_add_up_to_none(shape):
    reward = torch.randn(shape)
    correct = torch.tensor([True, False, True, True, False, False])
    both = apply_gate(reward, correct, "default") + apply_gate(reward, correct, "inverse")
    assert torch.equal(both, apply_gate(reward, correct, "none"))
    assert torch.equal(both, reward)


def test_candidates_are_gated_like_tokens():
    reward = torch.randn(4, 5, 3)
    correct = torch.tensor([True, False, True, False])
    gated = apply_gate(reward, correct, "default")
    for k in range(3):
        assert torch.equal(gated[..., k], apply_gate(reward[..., k], correct, "default"))


def test_flipping_every_verdict_turns_default_into_inverse():
    reward = torch.randn(5, 7)
    correct = torch.tensor([True, False, True, False, False])
    assert torch.equal(
        apply_gate(reward, ~correct, "default"), apply_gate(reward, correct, "inverse")
    )


def test_unknown_gate_names_the_option_and_the_known():
    with pytest.raises(ValueError, match="correctness_gated_mode='both'.*none, default, inverse"):
        apply_gate(REWARD, CORRECT, "both")


def test_a_new_gate_is_one_function_and_one_line():
    try:

        @register_gate("halved")
        def halved(reward, correct):
            return reward / 2

        assert torch.equal(apply_gate(REWARD, CORRECT, "halved"), REWARD / 2)
        assert MethodSpec(gate="halved").gate == "halved"
    finally:
        GATES.pop("halved")
    with pytest.raises(ValueError, match="halved"):
        MethodSpec(gate="halved")
