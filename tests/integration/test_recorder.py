"""What a step writes for people to look at: which responses, which values, how much at most."""

import json

import numpy as np
import pytest
import torch
from verl import DataProto

from opdvr.core import TokenRewards, apply_gate
from opdvr.integration.observed import NO_SLOT, combined, observe
from opdvr.integration.recorder import (
    ANATOMY_STEPS,
    FIRST_TOKENS,
    LAST_TOKENS,
    SAMPLED_STEPS,
    Recorder,
    token_texts,
)
from opdvr.integration.signal import Signal
from opdvr.report.step_records import ANATOMY_NAME, TOKEN_SAMPLES_NAME

B, T = 4, 3


class Bytes:
    """An id is a byte; a character may need several."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def make_recorder(responses=2, total_steps=10):
    return Recorder(Bytes(), "data_source", responses, total_steps)


def make_batch(length=T):
    batch = DataProto.from_single_dict(
        {
            "prompts": torch.tensor([[0, 81]] * B),
            "responses": torch.arange(B * length).view(B, length) % 26 + 97,
            "response_mask": torch.ones(B, length, dtype=torch.int64),
            "attention_mask": torch.tensor([[0, 1] + [1] * length] * B),
            "truncated": torch.tensor([False, False, True, False]),
        }
    )
    batch.non_tensor_batch = {
        "data_source": np.array(["AIME24"] * B, dtype=object),
        "reward_model": np.array([{"ground_truth": "7"}] * B, dtype=object),
        "extra_info": np.array([{"index": 10 + i} for i in range(B)], dtype=object),
    }
    return batch


def make_facts(correct=(True, False, False, True)):
    correct = torch.tensor(correct)
    return Signal(correct.float(), correct, None, None, None, np.arange(B), correct)


def rewards_of(ratio, correct):
    gated = apply_gate(ratio, correct, "default")
    return TokenRewards(ratio, gated, 0.5 * gated)


def written(recorder, step, batch, facts, slots, observed):
    lines = recorder.records(step, batch, facts, slots, observed)
    return [json.loads(json.dumps(line)) for _, line in lines], [name for name, _ in lines]


def test_half_of_the_traced_responses_are_correct():
    correct = torch.tensor([True] * 3 + [False] * 5)
    slots = make_recorder(4).choose(1, correct)
    assert sorted(slots[slots != NO_SLOT].tolist()) == [0, 1, 2, 3]
    assert (slots[correct] != NO_SLOT).sum() == 2
    assert torch.equal(slots, make_recorder(4).choose(1, correct))


@pytest.mark.parametrize("correct", [[True] * 6, [False] * 6, [True] + [False] * 5])
def test_where_one_verdict_is_rare_the_other_fills_up(correct):
    slots = make_recorder(4).choose(1, torch.tensor(correct))
    assert (slots != NO_SLOT).sum() == 4
    assert (make_recorder(9).choose(1, torch.tensor(correct)) != NO_SLOT).sum() == 6
    assert (make_recorder(0).choose(1, torch.tensor(correct)) == NO_SLOT).all()


@pytest.mark.parametrize("total_steps", [1, 7, 100, 5000])
def test_a_run_of_any_length_writes_so_many_steps(total_steps):
    recorder, correct = make_recorder(1, total_steps), torch.tensor([True])
    steps = [s for s in range(1, total_steps + 1) if recorder.choose(s, correct)[0] != NO_SLOT]
    assert steps[0] == 1 and steps[-1] == total_steps
    assert len(steps) == total_steps if total_steps <= SAMPLED_STEPS else len(steps) <= 50


def test_a_line_has_the_values_of_its_response():
    batch, facts = make_batch(), make_facts()
    ratio = torch.tensor([[0.25, -0.5, 0.0]] * B)
    slots = torch.tensor([NO_SLOT, 0, NO_SLOT, 1])
    mask = torch.ones(B, T)
    found = observe(
        ratio,
        rewards_of(ratio, facts.correct),
        batch.batch["responses"],
        mask,
        facts.correct,
        slots,
    )
    lines, names = written(make_recorder(), 1, batch, facts, slots, combined([found]))
    assert names == [ANATOMY_NAME, ANATOMY_NAME, TOKEN_SAMPLES_NAME, TOKEN_SAMPLES_NAME]
    wrong, right = lines[2:]
    assert (wrong["name"], wrong["correct"]) == ("extra_info.index 11", False)
    assert wrong["tokens"] == ["d", "e", "f"] and wrong["ids"] == [100, 101, 102]
    assert wrong["prompt"] == "Q" and wrong["gold"] == "7" and wrong["data_source"] == "AIME24"
    assert wrong["log_ratio"] == right["log_ratio"] == [0.25, -0.5, 0]
    # the default gate leaves an incorrect response what is below 0; the scale halves it
    assert wrong["reward"] == [0, -0.25, 0] and wrong["zeroed"] == [1, 0, 0]
    assert right["reward"] == [0.125, 0, 0] and right["zeroed"] == [0, 1, 0]
    assert wrong["omitted"] is None and wrong["scale"] is None
    pushed = lines[1]["pushed"]
    # correct rows 0 and 3 begin with a and j, incorrect rows 1 and 2 have e and h second
    assert sorted(text for _, text, _, _ in pushed["up"]) == ["a", "j"]
    assert sorted(text for _, text, _, _ in pushed["down"]) == ["e", "h"]


def test_traces_of_candidates_are_zeroed_where_none_of_them_passed():
    ratio = torch.tensor([[[0.5, -0.5], [-0.5, -0.25], [0.0, 0.0]]])
    correct = torch.tensor([True])
    ids = torch.tensor([[[1, 2], [3, 4], [-1, -1]]])
    sampled = torch.tensor([[0.1, 0.2, 0.3]])
    found = observe(
        sampled, rewards_of(ratio, correct), ids, torch.ones(1, 3), correct, torch.tensor([0])
    )
    trace = found.traces[0]
    assert trace.log_ratio.tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert trace.zeroed.tolist() == [False, True, False]
    assert trace.reward.tolist() == [0.25, 0, 0]
    assert found.anatomy.log_ratio[1, :, 0].sum() == 4  # not the empty slots


def test_masked_tokens_are_in_no_trace():
    ratio = torch.tensor([[0.5, float("nan"), 0.25]])
    mask = torch.tensor([[1, 0, 1]])
    rewards = rewards_of(torch.where(mask.bool(), ratio, 0.0), torch.tensor([True]))
    found = observe(
        ratio, rewards, torch.tensor([[1, 2, 3]]), mask, torch.tensor([True]), torch.tensor([0])
    )
    assert found.traces[0].log_ratio.tolist() == [0.5, 0.25]


def test_a_run_without_a_teacher_writes_responses_without_values():
    facts = make_facts()
    slots = torch.tensor([0, 1, NO_SLOT, NO_SLOT])
    lines, names = written(make_recorder(), 1, make_batch(), facts, slots, None)
    assert names == [TOKEN_SAMPLES_NAME] * 2
    assert lines[0]["log_ratio"] is lines[0]["reward"] is lines[0]["zeroed"] is None
    assert make_recorder().metrics(None) == {}


def test_of_a_long_response_the_ends_are_kept():
    length = FIRST_TOKENS + LAST_TOKENS + 5
    batch, facts = make_batch(length), make_facts()
    slots = torch.tensor([0] + [NO_SLOT] * (B - 1))
    ratio = torch.arange(length).float().expand(B, length)
    found = observe(
        ratio,
        rewards_of(ratio, facts.correct),
        batch.batch["responses"],
        torch.ones(B, length),
        facts.correct,
        slots,
    )
    lines, _ = written(make_recorder(), 1, batch, facts, slots, combined([found]))
    sample = lines[-1]
    assert sample["response_tokens"] == length and sample["omitted"] == [FIRST_TOKENS, 5]
    assert len(sample["tokens"]) == len(sample["log_ratio"]) == FIRST_TOKENS + LAST_TOKENS
    assert sample["log_ratio"][FIRST_TOKENS - 1 : FIRST_TOKENS + 1] == [767, 773]


def test_the_header_comes_once_and_only_so_many_steps_of_anatomy():
    recorder, facts, batch = make_recorder(0, 10 * ANATOMY_STEPS), make_facts(), make_batch()
    ratio = torch.ones(B, T)
    slots = torch.full((B,), NO_SLOT)
    found = observe(
        ratio,
        rewards_of(ratio, facts.correct),
        batch.batch["responses"],
        torch.ones(B, T),
        facts.correct,
        slots,
    )
    lines = []
    for step in range(1, 41):
        lines += recorder.records(step, batch, facts, slots, combined([found]))
    assert [line.get("step") for _, line in lines] == [None, 1, 10, 20, 30, 40]


def test_a_character_of_several_tokens_is_shown_with_its_last_one():
    ids = list("aé€".encode())  # 1, 2 and 3 bytes
    assert token_texts(Bytes(), ids) == ["a", "", "é", "", "", "€"]
    assert token_texts(Bytes(), [0xC3, ord("x")]) == ["\ufffd", "x"]
    assert token_texts(Bytes(), [0xC3]) == ["\ufffd"]
    assert token_texts(Bytes(), []) == []
