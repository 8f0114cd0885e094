"""Scorers that answer in any shape give one schema, and validation names one row a data source."""

import numpy as np
import pytest
import torch

pytest.importorskip("verl")

from case_setup import Letters, make_trainer, rollout, text_ids, with_questions  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from opdvr.integration import validation  # noqa: E402
from opdvr.integration.reward_manager import VerifierRewardManager  # noqa: E402
from opdvr.integration.validation import process_validation_metrics  # noqa: E402

SAMPLES = 16


def judged(*verdicts, **columns):
    """The reward manager's result where the scorer answers row b by verdicts[b]."""
    answers = {str(row): verdict for row, verdict in enumerate(verdicts)}

    def compute_score(data_source, solution_str, ground_truth, extra_info):
        return answers[solution_str]

    batch = with_questions(rollout([text_ids(text) for text in answers]))
    for name, values in columns.items():
        batch.non_tensor_batch[name] = np.array(values, dtype=object)
    manager = VerifierRewardManager(Letters(), 0, compute_score)
    return manager(batch, return_dict=True)


def test_a_dict_a_number_and_half_a_dict_make_one_schema():
    result = judged({"score": 1, "acc": 1}, 0.0, {"score": 0})
    assert result["reward_extra_info"] == {
        "score": [1.0, 0.0, 0.0],
        "acc": [1.0, 0.0, 0.0],
        "pred": ["", "", ""],
    }
    assert result["reward_tensor"].dtype == torch.float32
    # Each response is one character and its end: the score stands at the second token.
    assert result["reward_tensor"].tolist() == [[0, 1, *[0] * 6], [0] * 8, [0] * 8]


def test_accuracy_may_differ_from_the_score():
    # A shaped score and the verdict beside it, as bool.
    extra = judged({"score": 0.25, "acc": True, "pred": "7"}, True)["reward_extra_info"]
    assert extra["score"] == [0.25, 1.0] and extra["acc"] == [1.0, 1.0]
    assert extra["pred"] == ["7", ""]


def test_a_verdict_without_a_score_is_named():
    with pytest.raises(KeyError, match="score"):
        judged({"acc": 1})


def test_a_scorers_own_error_is_not_turned_into_a_verdict():
    def compute_score(**_):
        raise ZeroDivisionError("in the scorer")

    batch = with_questions(rollout([text_ids("a")]))
    with pytest.raises(ZeroDivisionError, match="in the scorer"):
        make_trainer()._compute_or_extract_reward(
            batch, VerifierRewardManager(Letters(), 0, compute_score)
        )


def metrics_of(result):
    rows = len(result["reward_tensor"])
    return process_validation_metrics(["s"] * rows, ["q"] * rows, result["reward_extra_info"])["s"]


def test_the_one_schema_can_be_averaged():
    metrics = metrics_of(judged({"score": 1, "acc": 1}, 0.0, {"score": 0}))
    assert set(metrics) == {"score", "acc"}
    assert metrics["acc"]["mean@3"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "pred",
    [
        7,
        None,
    ],
)
def test_predictions_of_any_type_can_be_voted_on(pred):
    metrics = metrics_of(judged({"score": 1, "pred": pred}, {"score": 0, "pred": "8"}))
    assert metrics["acc"]["mean@2"] == 0.5


@pytest.mark.parametrize(
    ("row", "value"),
    [
        (0, "why"),
        (1, "why"),
        (0, 0.5),
        (1, 0.5),
    ],
)
def test_what_some_rows_alone_have_does_not_break_validation(row, value):
    verdicts = [{"score": 1.0}, {"score": 0.0}]
    verdicts[row]["own"] = value
    for name, metrics in metrics_of(judged(*verdicts)).items():
        assert np.isfinite(list(metrics.values())).all(), name


# Whole validations

# Data source: how many of 16 responses are right, prompt by prompt.
RIGHT = {
    "AIME24": [4, 8],
    "AIME25": [0],
    "AMC23": [16, 16, 16],
    "MATH-500": [12, 4],
    "Minerva": [2],
    "Olympiad-Bench": [1, 2, 3, 10],
}


class Sampler:
    """verl's agent-loop manager: of a prompt's 16 responses, the first `right` hold its answer."""

    def generate_sequences(self, batch):
        counts, responses = {}, []
        for uid, extra in zip(
            batch.non_tensor_batch["uid"], batch.non_tensor_batch["extra_info"], strict=True
        ):
            counts[uid] = counts.get(uid, 0) + 1
            responses.append(text_ids("7" if counts[uid] <= extra["right"] else "8"))
        return rollout(responses)


def validate(monkeypatch, style="rule"):
    """`_validate` of a trainer whose data are `RIGHT`: prompts by how many samples are right."""
    prompts = [(source, right) for source, rights in RIGHT.items() for right in rights]
    reward_model = {"ground_truth": "7"} | ({"style": style} if style else {})
    columns = {
        "raw_prompt": [[{"role": "user", "content": "q"}]] * len(prompts),
        "data_source": [source for source, _ in prompts],
        "reward_model": [reward_model] * len(prompts),
        "extra_info": [{"index": i, "right": right} for i, (_, right) in enumerate(prompts)],
    }
    table = {"dummy_tensor": torch.zeros(len(prompts), 1, dtype=torch.uint8)}
    for name, values in columns.items():
        table[name] = np.fromiter(values, dtype=object, count=len(values))
    trainer = make_trainer()
    trainer.val_dataloader = [table]
    trainer.global_steps, trainer.async_rollout_mode = 0, True
    trainer.async_rollout_manager = Sampler()

    def compute_score(data_source, solution_str, ground_truth, extra_info):
        return float(solution_str == ground_truth)

    trainer.val_reward_fn = VerifierRewardManager(trainer.tokenizer, 0, compute_score)
    trainer.config.merge_with(
        OmegaConf.create(
            {
                "actor_rollout_ref": {
                    "rollout": {
                        "val_kwargs": {"n": SAMPLES, "do_sample": True},
                        "agent": {"num_workers": 1},
                    }
                },
                "trainer": {"log_val_generations": 0},
            }
        )
    )
    monkeypatch.setattr(
        validation.ray_trainer, "process_validation_metrics", process_validation_metrics
    )
    return trainer._validate()


def test_one_core_row_a_data_source_its_mean_over_prompts(monkeypatch):
    metrics = validate(monkeypatch)
    rows = {name: value for name, value in metrics.items() if name.endswith("/acc/mean@16")}
    assert metrics["val-aux/verifier/timeout"] == metrics["val-aux/verifier/error"] == 0.0
    # AIME24: (4/16 + 8/16) / 2; Olympiad-Bench: (1 + 2 + 3 + 10) / 16 / 4; and so on.
    assert rows == pytest.approx(
        {
            "val-core/AIME24/acc/mean@16": 0.375,
            "val-core/AIME25/acc/mean@16": 0.0,
            "val-core/AMC23/acc/mean@16": 1.0,
            "val-core/MATH-500/acc/mean@16": 0.5,
            "val-core/Minerva/acc/mean@16": 0.125,
            "val-core/Olympiad-Bench/acc/mean@16": 0.25,
        }
    )


@pytest.mark.parametrize("style", [None, "model"])
def test_validation_asks_the_verifier_whatever_the_style_is_called(monkeypatch, style):
    assert validate(monkeypatch, style)["val-core/AIME24/acc/mean@16"] == pytest.approx(0.375)
