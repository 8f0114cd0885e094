"""What verl's validation hands over becomes one line of validation.jsonl."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("verl")

from verl import DataProto  # noqa: E402

from opdvr.integration.validation import RecordedValidation  # noqa: E402
from opdvr.report.validations import accuracies, problem_key  # noqa: E402

PROMPTS = ["1+1=?", "2+2=?", "1+1=?"]
SOURCES = ["AMC", "AIME", "AMC"]
GOLDS = ["2", "4", "2"]
# Two responses a problem, in the order of the rows.
ACCURACIES = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def messages(text):
    return [{"role": "user", "content": text}]


def objects(values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


class Verl:
    """As `_validate` of verl goes: batches of rows, each asked, judged, then all of them logged."""

    def __init__(self, batches):
        self.batches, self.logged = batches, 0

    def _get_gen_batch(self, batch):
        prompts = batch.non_tensor_batch.pop("raw_prompt")
        return SimpleNamespace(non_tensor_batch={**batch.non_tensor_batch, "raw_prompt": prompts})

    def _maybe_log_val_generations(self, inputs, outputs, scores):
        self.logged += 1

    def _validate(self):
        texts = []
        for rows in self.batches:
            columns = {
                "raw_prompt": [messages(PROMPTS[row // 2]) for row in rows],
                "uid": [f"uid of row {row // 2}" for row in rows],
                "data_source": [SOURCES[row // 2] for row in rows],
                "reward_model": [{"ground_truth": GOLDS[row // 2]} for row in rows],
            }
            self._get_gen_batch(
                DataProto(non_tensor_batch={name: objects(v) for name, v in columns.items()})
            )
            self._see_verdicts([ACCURACIES[row] for row in rows])
            texts += [f"text {row}" for row in rows]
        scores = [ACCURACIES[row] for rows in self.batches for row in rows]
        self._maybe_log_val_generations(["asked"] * len(texts), texts, scores)
        return {"val-core/AMC/acc/mean@2": 0.25}


class Trainer(RecordedValidation, Verl):
    global_steps, pending_records = 22, None


def validated(batches):
    trainer = Trainer(batches)
    trainer.pending_records = []
    metrics = trainer._validate()
    ((name, record),) = trainer.pending_records
    assert name == "validation.jsonl" and trainer.logged == 1
    return record, metrics


@pytest.mark.parametrize(
    "batches", [[range(6)], [range(2), range(2, 6)], [[4, 5, 2, 3], [0, 1]]], ids=str
)
def test_one_line_whatever_the_batches(batches):
    record, metrics = validated(batches)
    assert record["step"] == 22 and record["n"] == 2
    one = problem_key("AMC", messages("1+1=?"), "2")
    # The problem of rows 0 and 2 is twice in the data: (1 + 0) / 2 and (0 + 0) / 2.
    assert sorted(accuracies(record, "AMC")) == [one, f"{one}-2"]
    assert sorted(accuracies(record, "AMC").values()) == [0.0, 0.5]
    assert list(accuracies(record, "AIME").values()) == [1.0]
    assert {sample["response"] for sample in record["samples"]} == {"text 0", "text 2", "text 4"}
    assert metrics["val-aux/AIME/acc/ci95_low@2"] == 1.0
    assert metrics["val-core/AMC/acc/mean@2"] == 0.25


def test_training_is_not_recorded():
    trainer = Trainer([])
    batch = DataProto(
        non_tensor_batch={"raw_prompt": objects([messages("1+1=?")]), "uid": objects(["u"])}
    )
    assert len(trainer._get_gen_batch(batch).non_tensor_batch["raw_prompt"]) == 1
    trainer._see_verdicts([1.0])
    assert trainer._seen is None


def test_a_validation_that_fails_leaves_nothing():
    trainer = Trainer([range(2)])
    trainer.pending_records = []
    trainer._see_verdicts = lambda accuracies: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer._validate()
    assert trainer.pending_records == [] and trainer._seen is None


def test_a_verdict_that_is_no_number():
    trainer = Trainer([range(6)])
    trainer.pending_records = []
    see = trainer._see_verdicts
    trainer._see_verdicts = lambda accuracies: see([float("nan"), *accuracies[1:]])
    trainer._validate()
    ((_, record),) = trainer.pending_records
    assert None in record["sources"]["AMC"]["accuracy"]
