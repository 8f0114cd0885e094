"""Gates: the tables of the method, and what must hold for every token."""

import pytest
import torch

from opdvr.core import GATES, GateSettings, MethodSpec, apply_gate, register_gate

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


def test_flipping_every_verdict_turns_default_into_inverse():
    reward = torch.randn(5, 7)
    correct = torch.tensor([True, False, True, False, False])
    assert torch.equal(
        apply_gate(reward, ~correct, "default"), apply_gate(reward, correct, "inverse")
    )


# One response of each verdict; the last reward is a masked position's.
PAIR = torch.tensor([[0.9, -0.4, 0.05, 0.0], [0.9, -0.4, 0.05, 0.0]])
# Neither 0 nor 1: a group with both verdicts.
MIXED_GROUP = torch.tensor([0.5, 0.5])


def test_soft_by_hand():
    # sigmoid(0.9) = 1 / (1 + 0.40657) = 0.71095; sigmoid(0.4) = 0.59869; sigmoid(0.05) = 0.51250.
    # Correct: 1.8 * 0.71095 = 1.27971, -0.8 * (1 - 0.59869) = -0.32105, 0.1 * 0.51250 = 0.05125.
    # Incorrect: 1.8 * 0.28905 = 0.52029, -0.8 * 0.59869 = -0.47895, 0.1 * 0.48750 = 0.04875.
    expected = torch.tensor([[1.27971, -0.32105, 0.05125, 0.0], [0.52029, -0.47895, 0.04875, 0.0]])
    torch.testing.assert_close(apply_gate(PAIR, CORRECT, "soft"), expected, atol=1e-5, rtol=0)
    # Temperature is in nats: a log-ratio of 3 at temperature 3 passes at 2 sigmoid(1) = 1.46212.
    settings = GateSettings(temperature=3.0)
    passed = apply_gate(torch.tensor([[3.0]]), torch.tensor([True]), "soft", settings=settings)
    assert passed.item() == pytest.approx(3 * 1.46212, abs=1e-4)


def test_soft_lets_a_pair_of_opposite_rewards_through_whole():
    reward = torch.randn(2, 50, dtype=torch.float64)
    plus, minus = (apply_gate(x, CORRECT, "soft").abs() for x in (reward, -reward))
    torch.testing.assert_close(plus + minus, 2 * reward.abs())
    # Which side the surplus is on: what agrees with the verdict.
    agrees = (reward > 0) == CORRECT[:, None]
    assert torch.equal(plus > minus, agrees)
    # So both verdicts together give twice the reward, as default and inverse give it once.
    both = apply_gate(reward, CORRECT, "soft") + apply_gate(reward, ~CORRECT, "soft")
    torch.testing.assert_close(both, 2 * reward)


def test_soft_goes_from_twice_default_to_no_gate():
    hard = GateSettings(temperature=1e-6)
    twice = 2 * apply_gate(PAIR, CORRECT, "default")
    torch.testing.assert_close(apply_gate(PAIR, CORRECT, "soft", settings=hard), twice)
    none = GateSettings(temperature=1e6)
    torch.testing.assert_close(apply_gate(PAIR, CORRECT, "soft", settings=none), PAIR)


@pytest.mark.parametrize(
    ("margin", "expected"),
    [
        # Agreement y r: +0.9, -0.4, +0.05 when correct; -0.9, +0.4, -0.05 when incorrect.
        (0.1, [[0.9, 0.0, 0.0, 0.0], [0.0, -0.4, 0.0, 0.0]]),
        (0.5, [[0.9, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]),
        (0.0, [[0.9, 0.0, 0.05, 0.0], [0.0, -0.4, 0.0, 0.0]]),
        (-0.1, [[0.9, 0.0, 0.05, 0.0], [0.0, -0.4, 0.05, 0.0]]),
        (-0.5, [[0.9, -0.4, 0.05, 0.0], [0.0, -0.4, 0.05, 0.0]]),
        (-1.0, [[0.9, -0.4, 0.05, 0.0], [0.9, -0.4, 0.05, 0.0]]),
    ],
)
def test_margin_by_hand(margin, expected):
    passed = apply_gate(PAIR, CORRECT, "margin", settings=GateSettings(margin=margin))
    assert torch.equal(passed, torch.tensor(expected))


def test_margin_and_leaky_of_nothing_are_default():
    reward = torch.randn(2, 60)
    default = apply_gate(reward, CORRECT, "default")
    for gate, settings in (
        ("margin", GateSettings(margin=0.0)),
        ("leaky", GateSettings(floor=0.0)),
    ):
        assert torch.equal(apply_gate(reward, CORRECT, gate, settings=settings), default)


@pytest.mark.parametrize("floor", [0.1, 0.25, 1.0])
def test_leaky_is_default_and_a_share_of_inverse(floor):
    # Floor 0.25: correct 0.9, -0.1, 0.05; incorrect 0.225, -0.4, 0.0125.
    passed = apply_gate(PAIR, CORRECT, "leaky", settings=GateSettings(floor=floor))
    expected = [[0.9, -0.4 * floor, 0.05, 0.0], [0.9 * floor, -0.4, 0.05 * floor, 0.0]]
    torch.testing.assert_close(passed, torch.tensor(expected))
    if floor == 1:
        assert torch.equal(passed, PAIR)


@pytest.mark.parametrize(
    ("gate", "fracs", "gated_rows"),
    [
        # A group of one correct and one not; all wrong; all right.
        ("mixed", [0.5, 0.5], [0, 1]),
        ("mixed", [1.0, 0.0], []),
        ("mixed", [0.125, 0.0], [0]),
        ("rescue", [0.5, 0.5], [0, 1]),
        ("rescue", [1.0, 0.0], [0]),
        ("rescue", [1.0, 0.125], [0, 1]),
    ],
)
def test_mixed_and_rescue_look_at_the_group(gate, fracs, gated_rows):
    passed = apply_gate(PAIR, CORRECT, gate, group_correct_frac=torch.tensor(fracs))
    default = apply_gate(PAIR, CORRECT, "default")
    for row in range(2):
        assert torch.equal(passed[row], default[row] if row in gated_rows else PAIR[row])


def test_only_mixed_and_rescue_need_groups():
    assert [name for name, gate in GATES.items() if gate.needs_groups] == ["mixed", "rescue"]
    for name in ("mixed", "rescue"):
        with pytest.raises(AssertionError, match=f"{name} needs groups"):
            apply_gate(PAIR, CORRECT, name)


# Settings other than the defaults, so that a gate which ignores them is found out.
SETTINGS = GateSettings(temperature=0.3, margin=-0.2, floor=0.4)


@pytest.mark.parametrize("gate", sorted(GATES))
def test_every_gate_keeps_zero_shape_and_dtype_and_never_turns_a_sign(gate):
    for dtype in (torch.float32, torch.float64):
        reward = torch.randn(2, 30, dtype=dtype)
        reward[:, ::3] = 0
        passed = apply_gate(
            reward, CORRECT, gate, group_correct_frac=MIXED_GROUP, settings=SETTINGS
        )
        assert passed.dtype == dtype and passed.shape == reward.shape
        assert not passed[reward == 0].any()
        assert (passed * reward >= 0).all() and passed.any()


@pytest.mark.parametrize("gate", sorted(GATES))
def test_every_gate_acts_on_candidates_as_on_tokens(gate):
    reward = torch.randn(4, 5, 3)
    correct = torch.tensor([True, False, True, False])
    frac = torch.tensor([0.5, 0.0, 1.0, 0.5])
    options = {"group_correct_frac": frac, "settings": SETTINGS}
    gated = apply_gate(reward, correct, gate, **options)
    for k in range(3):
        alone = apply_gate(reward[..., k].contiguous(), correct, gate, **options)
        torch.testing.assert_close(gated[..., k], alone, rtol=1e-6, atol=0)


def test_settings_default_to_those_of_the_spec():
    assert MethodSpec().gate_settings == GateSettings()
    spec = MethodSpec(gate_temperature=0.3, gate_margin=-0.2, gate_floor=0.4)
    assert spec.gate_settings == SETTINGS


def test_unknown_gate_names_the_option_and_the_known():
    with pytest.raises(ValueError, match="correctness_gated_mode='both'.*none, default, inverse"):
        apply_gate(REWARD, CORRECT, "both")


def test_a_new_gate_is_one_function_and_one_line():
    try:

        @register_gate("halved")
        def halved_when_correct(reward, verdicts):
            return torch.where(verdicts.correct, reward / 2, reward)

        expected = torch.stack((REWARD[0] / 2, REWARD[1]))
        assert torch.equal(apply_gate(REWARD, CORRECT, "halved"), expected)
        assert MethodSpec(gate="halved").needs_groups is False
        with pytest.raises(AssertionError, match="registered twice"):
            register_gate("halved")
    finally:
        GATES.pop("halved")
    with pytest.raises(ValueError, match="halved"):
        MethodSpec(gate="halved")
