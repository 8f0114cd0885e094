"""The gate's anatomy: sums by verdict, bin, position and token, by hand and by their properties."""

import math

import pytest
import torch

from opdvr.core import (
    Anatomy,
    add_anatomies,
    anatomy_metrics,
    anatomy_of,
    apply_gate,
    most_pushed,
)
from opdvr.core.anatomy import EDGES, POSITION_STARTS

# correct: +0.9, -0.4; incorrect: +0.2, -3.0, and one masked place that holds NaN
RATIO = torch.tensor([[0.9, -0.4, 0.0], [0.2, -3.0, math.nan]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
CORRECT = torch.tensor([True, False])
IDS = torch.tensor([[5, 7, 9], [7, 5, 5]])
SCALE = torch.tensor([[2.0], [1.0]])


def make(ratio=RATIO, mask=MASK, correct=CORRECT, ids=IDS, scale=SCALE, gate="default"):
    gated = apply_gate(torch.where(mask.bool(), ratio, 0.0), correct, gate)
    return anatomy_of(ratio, gated, gated * scale, ids, mask, correct)


def bin_with(value):
    return max(index for index, edge in enumerate(EDGES) if edge <= value)


def test_every_number_has_one_bin():
    assert list(EDGES) == sorted(set(EDGES)) and EDGES[0] == -torch.inf and EDGES[-1] == torch.inf
    assert 0.0 in EDGES and [-edge for edge in reversed(EDGES)] == list(EDGES)


def test_sums_by_verdict_and_bin():
    found = make().log_ratio
    assert found.shape == (2, len(EDGES) - 1, 4) and found.dtype == torch.float64
    wrong, right = found
    # default: of the correct response +0.9 stays, of the incorrect one -3.0
    assert right[bin_with(0.9)].tolist() == pytest.approx([1, 0.9, 1, 0.9])
    assert right[bin_with(-0.4)].tolist() == pytest.approx([1, -0.4, 0, 0])
    assert right[bin_with(0.0)].tolist() == [1, 0, 0, 0]
    assert wrong[bin_with(0.2)].tolist() == pytest.approx([1, 0.2, 0, 0])
    assert wrong[bin_with(-3.0)].tolist() == pytest.approx([1, -3.0, 1, 3.0])
    assert found[..., 0].sum() == 5  # not the masked one


def test_sums_by_verdict_and_position():
    wrong, right = make().position
    assert right[:4, 0].tolist() == [1, 1, 1, 0]  # positions 0, 1, 2-3, 4-7
    assert wrong[:4, 0].tolist() == [1, 1, 0, 0]
    assert wrong[1].tolist() == pytest.approx([1, -3.0, 3.0, 1])
    ratio = torch.zeros(1, 20)
    found = make(ratio, torch.ones(1, 20), CORRECT[:1], torch.zeros(1, 20).long(), SCALE[:1])
    # 0 | 1 | 2-3 | 4-7 | 8-15 | 16-19
    assert found.position[1, :6, 0].tolist() == [1, 1, 2, 4, 8, 4]
    assert POSITION_STARTS[:6] == (0, 1, 2, 4, 8, 16)


def test_tokens_pushed_up_and_down():
    # 5: up by 0.9 times the scale 2 in the correct response, down by 3.0 in the other
    found = make()
    assert found.token_ids.tolist() == [5]
    assert found.pushed[0].tolist() == pytest.approx([1, 1.8, 1, -3.0])
    pushed = most_pushed(found, 10)
    assert pushed["up"] == [(5, 1, pytest.approx(1.8))]
    assert pushed["down"] == [(5, 1, pytest.approx(-3.0))]


def test_most_pushed_is_by_how_often():
    found = Anatomy(
        torch.zeros(1),
        torch.zeros(1),
        torch.tensor([3, 4, 8]),
        torch.tensor([[2, 0.1, 0, 0], [5, 0.01, 1, -9.0], [0, 0, 4, -0.2]]),
    )
    assert [token for token, _, _ in most_pushed(found, 2)["up"]] == [4, 3]
    assert [token for token, _, _ in most_pushed(found, 1)["down"]] == [8]


def test_candidates_count_one_by_one_and_empty_slots_not_at_all():
    ratio = torch.tensor([[[0.5, -0.25], [1.0, 0.0]]])  # the last slot is empty
    ids = torch.tensor([[[2, 3], [2, -1]]])
    mask = ids >= 0
    found = anatomy_of(ratio, ratio, ratio, ids, mask, torch.tensor([True]))
    assert found.log_ratio[1, :, 0].sum() == 3
    assert found.position[1, :2, 0].tolist() == [2, 1]
    assert found.token_ids.tolist() == [2, 3]
    assert found.pushed[0].tolist() == pytest.approx([2, 1.5, 0, 0])
    # with a mask of tokens it is spread over the candidates
    whole = anatomy_of(ratio, ratio, ratio, ids, torch.ones(1, 2), torch.tensor([True]))
    assert whole.log_ratio[1, :, 0].sum() == 4


def test_parts_add_up_to_the_whole():
    torch.manual_seed(0)
    ratio, mask = torch.randn(6, 40), torch.rand(6, 40) > 0.2
    correct, ids = torch.rand(6) > 0.5, torch.randint(0, 9, (6, 40))
    ones = torch.ones(6, 1)
    whole = make(ratio, mask, correct, ids, ones)
    rows = [slice(0, 1), slice(1, 4), slice(4, 6)]
    parts = [make(ratio[r], mask[r], correct[r], ids[r], ones[r]) for r in rows]
    for name, one, other in zip(Anatomy._fields, add_anatomies(parts), whole, strict=True):
        assert torch.allclose(one, other), name
    assert add_anatomies([]) is None


def test_kept_by_default_and_by_inverse_is_all_there_is():
    default, inverse, none = (make(gate=gate).log_ratio for gate in ("default", "inverse", "none"))
    assert torch.allclose(default[..., 3] + inverse[..., 3], none[..., 3])
    assert none[..., 3].sum() == pytest.approx(0.9 + 0.4 + 0.2 + 3.0)


def test_quantiles_are_near_those_of_the_values():
    torch.manual_seed(1)
    ratio = torch.randn(50, 100)
    mask, correct, ids = torch.ones(50, 100), torch.ones(50).bool(), torch.zeros(50, 100).long()
    metrics = anatomy_metrics(make(ratio, mask, correct, ids, torch.ones(50, 1)))
    for share in (5, 25, 75, 95):
        exact = torch.quantile(ratio, share / 100).item()
        assert metrics[f"opd/log_ratio_q{share:02d}"] == pytest.approx(exact, rel=0.15)
    assert metrics["opd/log_ratio_q50"] == pytest.approx(0.0, abs=0.05)


def test_quantile_of_one_value_is_in_its_bin():
    one = torch.tensor([[0.3]])
    metrics = anatomy_metrics(make(one, one, CORRECT[:1], IDS[:1, :1], SCALE[:1]))
    low, high = EDGES[bin_with(0.3)], EDGES[bin_with(0.3) + 1]
    assert all(low <= metrics[f"opd/log_ratio_q{q}"] <= high for q in ("05", "50", "95"))
    far = torch.tensor([[-500.0]])
    metrics = anatomy_metrics(make(far, one, CORRECT[:1], IDS[:1, :1], SCALE[:1]))
    assert metrics["opd/log_ratio_q50"] == -500.0


def test_mean_by_position_and_nothing_without_tokens():
    metrics = anatomy_metrics(make())
    assert metrics["opd/log_ratio_mean_from_0"] == pytest.approx((0.9 + 0.2) / 2)
    assert metrics["opd/log_ratio_mean_from_1"] == pytest.approx((-0.4 - 3.0) / 2)
    assert metrics["opd/log_ratio_mean_from_2"] == 0.0
    assert "opd/log_ratio_mean_from_4" not in metrics
    assert anatomy_metrics(make(mask=torch.zeros_like(MASK))) == {}
