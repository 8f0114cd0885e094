"""Packed and alone must score alike; every way in which they may not is noticed."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from preflight_pair import running_on  # noqa: E402

from opdvr.integration.config import DEMO_MODELS  # noqa: E402
from opdvr.integration.head import ScoringHead  # noqa: E402
from opdvr.integration.preflight.layouts import (  # noqa: E402
    largest_difference,
    pack,
    score_alone,
    score_packed,
)
from opdvr.integration.preflight.numbers_meaning import SAME_NATS  # noqa: E402

# Careful and careless solutions of the embedded task, in its tokens; 1 is the end.
ROWS = [((3, 10, 11, 4), (17, 9, 8, 1)), ((3, 12, 4), (7, 8)), ((3, 13, 18, 9, 4), (20, 5, 6, 1))]


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(DEMO_MODELS / "student", dtype=torch.float32)
    return loaded.eval()


def apart(model, row, temperature=1.0):
    """Nats between `row`, scored packed, and ROWS alone at temperature 1."""
    with torch.no_grad():
        packed = score_packed(model, ScoringHead(model, None), row, temperature, [1], 4)
        alone = score_alone(model, ROWS, 1.0, "cpu")
    return largest_difference([scored.logprobs for scored in packed], alone).nats


def test_what_is_packed():
    row = pack(ROWS[:2])
    assert row.input_ids.tolist() == [[3, 10, 11, 4, 17, 9, 8, 1, 3, 12, 4, 7, 8]]
    assert row.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4]]
    assert row.positions.tolist() == [3, 4, 5, 6, 10, 11]  # one before 17 9 8 1 and 7 8
    assert row.targets.tolist() == [17, 9, 8, 1, 7, 8]


def test_both_layouts_agree(model):
    assert apart(model, pack(ROWS)) < SAME_NATS / 10


def test_scores_are_those_of_the_models_own_logits(model):
    with torch.no_grad():
        scores = score_packed(model, ScoringHead(model, None), pack(ROWS), 2.0, [1, 4], 3)
        prompt, response = ROWS[1]
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0]
    last = (logits[len(prompt)] / 2).log_softmax(-1)  # predicts the second of two tokens
    torch.testing.assert_close(scores[1].logprobs[1], last[response[1]])
    torch.testing.assert_close(scores[1].end_logprobs, last[[1, 4]])
    assert scores[1].top_ids[1].tolist() == last.topk(3).indices.tolist()
    torch.testing.assert_close(scores[1].top_logprobs[1], last.topk(3).values)
    torch.testing.assert_close(scores[1].entropy[1], -(last.exp() * last).sum())


def test_shifted_by_one_is_noticed(model):
    row = pack(ROWS)
    assert apart(model, replace(row, positions=row.positions - 1)) > SAME_NATS
    assert apart(model, replace(row, positions=(row.positions + 1))) > SAME_NATS


def test_positions_that_run_on_are_noticed(model):
    assert apart(model, running_on(ROWS)) > SAME_NATS


def test_attended_padding_is_noticed(model):
    """Two <pad> before the second prompt, as a part of its sequence."""
    before = len(ROWS[0][0]) + len(ROWS[0][1])
    padded = [ROWS[0], ((0, 0, *ROWS[1][0]), ROWS[1][1]), ROWS[2]]
    row = pack(padded)
    assert row.input_ids[0, before : before + 2].tolist() == [0, 0]
    assert apart(model, row) > SAME_NATS


def test_another_temperature_is_noticed(model):
    assert apart(model, pack(ROWS), temperature=1.01) > SAME_NATS


def test_no_number_is_the_largest_difference():
    one = [torch.tensor([0.0, -1.0]), torch.tensor([-2.0])]
    found = largest_difference(one, [torch.tensor([0.0, -1.5]), torch.tensor([-2.25])])
    assert (found.nats, found.response, found.place) == (0.5, 0, 1)
    found = largest_difference(one, [torch.tensor([0.0, -1.5]), torch.tensor([float("nan")])])
    assert (found.nats, found.response, found.place) == (float("inf"), 1, 0)
