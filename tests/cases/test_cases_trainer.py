"""One step of the trainer up to its workers: groups, verdicts, cut-off responses, empty batches."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("verl")

from case_setup import (  # noqa: E402
    LENGTH,
    STOP,
    before_update,
    make_trainer,
    one_step,
    rollout,
    text_ids,
    update,
    verls_grpo_advantages,
    with_questions,
)
from verl import DataProto  # noqa: E402
from verl.trainer.ppo.metric_utils import compute_data_metrics  # noqa: E402
from verl.utils.debug.metrics import calculate_debug_metrics  # noqa: E402

from opdvr.core import MethodSpec, log_ratio, require_finite, token_rewards  # noqa: E402
from opdvr.integration import signal  # noqa: E402

NAN = float("nan")
CUT = [STOP, STOP, LENGTH]


def three_responses(finish=CUT):
    """Responses of 3, 2 and 2 tokens to one prompt, the last one cut off."""
    rows = [text_ids("ab"), text_ids("c"), text_ids("de", end=False)]
    return with_questions(rollout(rows, finish=finish))


@pytest.mark.parametrize("score", [0.35, 0.1, 1.0])
@pytest.mark.parametrize("by_std", [False, True])
def test_equal_scores_give_exactly_nothing(score, by_std):
    # Eight float32 scores of 0.35 have a mean of 0.35000002: verl makes an advantage of that.
    spec = MethodSpec(
        estimator="token_reward_direct_plus_grpo",
        grpo_scaled=True,
        grpo_norm_by_std=by_std,
        grpo_scale_baseline=0.125,
    )
    lengths = range(1, 9)
    batch = with_questions(rollout([[65] * length for length in lengths]))
    scores = torch.zeros(8, 8)  # verl's place for a score: the response's last token
    scores[torch.arange(8), torch.tensor(lengths) - 1] = score
    batch.batch["token_level_scores"] = scores
    facts = signal.read_signal(spec, batch, norm_outcome_by_std=by_std)
    assert scores.dtype == torch.float32 and facts.correct.all()
    assert torch.equal(facts.outcome, torch.zeros(8))
    assert torch.equal(facts.scale, torch.full((8,), 0.125))


def test_verls_own_estimator_shows_why():
    assert verls_grpo_advantages([0.35] * 8).abs().max() > 0.01


def test_a_masked_response_moves_no_baseline(monkeypatch):
    # Scores 1, 0, 5 without the last: mean 0.5, so a = 0.5, -0.5 and nothing.
    trainer = make_trainer(grpo_scaled=True, truncated_responses="mask")
    sent, metrics = one_step(trainer, three_responses(), [1.0, 0.0, 5.0], monkeypatch)
    assert sent["reward_scale"].tolist() == [0.5, 0.5, 0.0]
    assert sent["response_mask"].sum(-1).tolist() == [3, 2, 0]
    # Gate, then scale: teacher -0.25, student -0.5, so r = +0.25, only on the correct response.
    expected = torch.zeros(3, 8)
    expected[0, :3] = 0.25 * 0.5
    assert torch.equal(sent["advantages"], expected)
    assert metrics["opd/truncated_frac"] == pytest.approx(1 / 3)


def test_a_masked_response_has_no_outcome_either(monkeypatch):
    trainer = make_trainer("grpo", distill=False, truncated_responses="mask")
    sent, _ = one_step(trainer, three_responses(), [1.0, 0.0, 5.0], monkeypatch)
    assert sent["advantages"].sum(-1).tolist() == [3 * 0.5, 2 * -0.5, 0.0]


def test_a_masked_response_is_no_member_of_its_group_in_the_metrics(monkeypatch):
    # 1 and 1 are left of 1, 1, 0: the group is all equal.
    trainer = make_trainer(truncated_responses="mask")
    _, metrics = one_step(trainer, three_responses(), [1.0, 1.0, 0.0], monkeypatch)
    assert metrics["opd/all_equal_group_frac"] == 1.0


@pytest.mark.parametrize(
    ("rule", "correct", "trained_tokens"),
    [("keep", [True, False, True], 7), ("wrong", [True, False, False], 7), ("mask", None, 5)],
)
def test_a_cut_off_response_with_a_right_answer(monkeypatch, rule, correct, trained_tokens):
    trainer = make_trainer(truncated_responses=rule)
    sent, metrics = one_step(trainer, three_responses(), [1.0, 0.0, 1.0], monkeypatch)
    assert correct is None or sent["correct"].tolist() == correct
    assert sent["response_mask"].sum() == trained_tokens
    assert metrics["opd/truncated_frac"] == pytest.approx(1 / 3)


def test_the_rule_for_cut_off_responses_leaves_validation_alone():
    trainer = make_trainer(truncated_responses="wrong")
    batch = three_responses()
    result = trainer._compute_or_extract_reward(batch, right, return_dict=True)
    assert result["reward_tensor"].sum(-1).tolist() == [1.0, 1.0, 1.0]
    assert result["reward_extra_info"]["truncated"] == [0.0, 0.0, 1.0]


def right(batch, return_dict):
    rewards = torch.zeros(batch.batch["responses"].shape)
    rewards[:, 0] = 1.0
    return {"reward_tensor": rewards, "reward_extra_info": {}}


def test_wrong_is_wrong_under_any_threshold(monkeypatch):
    # A scorer of -1 and +1, and a threshold between them.
    trainer = make_trainer(truncated_responses="wrong", correctness_threshold=-0.5)
    sent, _ = one_step(trainer, three_responses(), [1.0, -1.0, 1.0], monkeypatch)
    assert sent["correct"].tolist() == [True, False, False]


def test_a_score_that_is_no_number_is_no_verdict():
    batch = three_responses()
    batch.batch["token_level_scores"] = torch.zeros(3, 8)
    batch.batch["token_level_scores"][1, 0] = NAN
    with pytest.raises(FloatingPointError, match="verifier score is nan at row 1"):
        signal.read_signal(MethodSpec(), batch, False)


def all_cut_off():
    rows, logprobs = [text_ids("ab", end=False), text_ids("c", end=False)], [[-0.1, -0.2], [-0.3]]
    return with_questions(rollout(rows, finish=[LENGTH, LENGTH], logprobs=logprobs))


def fits_own_metrics(batch):
    return calculate_debug_metrics(batch) | compute_data_metrics(batch, use_critic=False)


@pytest.mark.parametrize("rule", ["keep", "wrong"])
def test_a_step_in_which_all_responses_are_cut_off(monkeypatch, rule):
    trainer = make_trainer(truncated_responses=rule)
    batch = before_update(trainer, all_cut_off(), [0.0, 0.0])
    update(trainer, batch, monkeypatch)
    assert all(math.isfinite(value) for value in fits_own_metrics(batch).values())


def test_a_step_in_which_all_responses_are_masked_goes_on(monkeypatch):
    trainer = make_trainer(truncated_responses="mask")
    batch = before_update(trainer, all_cut_off(), [0.0, 0.0])
    calculate_debug_metrics(batch)  # fit makes these between the log-probs and the update
    sent, metrics = update(trainer, batch, monkeypatch)
    assert not sent["response_mask"].any() and not sent["advantages"].any()
    fits_own_metrics(batch)  # and these after it
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_rollout_without_log_probs_is_named():
    batch = three_responses()
    batch.batch.pop("rollout_log_probs")
    with pytest.raises(KeyError, match="rollout_log_probs"):
        make_trainer()._compute_old_log_prob(batch)


@pytest.mark.parametrize("teacher_width", [6, 1])
def test_scores_of_another_width_are_refused(teacher_width):
    # Of width 1 they would broadcast: one token's value for the whole response.
    student, mask = torch.zeros(1, 8), torch.ones(1, 8)
    teacher = torch.zeros(1, teacher_width)
    with pytest.raises(AssertionError, match=rf"\(1, {teacher_width}\).*\(1, 8\)"):
        log_ratio(teacher, student, mask)
    with pytest.raises(AssertionError, match="teacher log-probability is"):
        token_rewards(MethodSpec(), teacher, student, mask, torch.tensor([True]))
    with pytest.raises(AssertionError, match=r"entropy is \(1, 1\) and its mask \(1, 8\)"):
        require_finite(torch.zeros(1, 1), mask, "entropy")


def test_a_teacher_of_another_template_shows_in_the_first_tokens(monkeypatch):
    # Gaps of 3 at each of the first five tokens and 0.5 at the two after: (15 + 1) / 7 overall.
    batch = with_questions(rollout([text_ids("abcdef")] * 2))
    trainer = make_trainer()
    teacher = torch.tensor([-3.5] * 5 + [-1.0] * 2 + [0.0])
    _, metrics = one_step(trainer, batch, [1.0, 0.0], monkeypatch, teacher=teacher)
    assert metrics["opd/log_ratio_abs_mean_first"] == pytest.approx(3.0)
    assert metrics["opd/log_ratio_abs_mean"] == pytest.approx(16 / 7)


def test_groups_go_by_id_after_rows_were_reordered(monkeypatch):
    # p: 1, 0 (a = 0.5, -0.5); q: 1, 1 (nothing), interleaved.
    batch = with_questions(rollout([[65], [66], [67], [68]]), groups=["p", "q", "q", "p"])
    sent, _ = one_step(make_trainer(grpo_scaled=True), batch, [1.0, 1.0, 1.0, 0.0], monkeypatch)
    assert sent["reward_scale"].tolist() == [0.5, 0.0, 0.0, 0.5]


def test_samples_are_named_by_the_data_file_where_it_numbers_them():
    batch = three_responses()
    assert signal.sample_indices(batch) == [100, 101, 102]
    # Files with text in that column, or without it, fall back to the row of the batch.
    batch.non_tensor_batch["extra_info"] = np.array([{"index": "a"}, {}, {"index": 7}], object)
    assert signal.sample_indices(batch) == [0, 1, 7]
    assert signal.sample_indices(DataProto.from_dict({"x": torch.zeros(2)})) == [0, 1]
