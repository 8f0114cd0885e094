"""validation.jsonl: problems are the same in every run, whatever the order of their responses."""

import json
import random

import pytest

from opdvr.report.step_records import json_lines
from opdvr.report.validations import (
    Response,
    accuracies,
    intervals,
    problem_key,
    validation_record,
)


def question(text):
    return [{"role": "user", "content": text}]


def response(uid, source, asked, accuracy, **rest):
    key = problem_key(source, question(asked), "7")
    return Response(uid, source, key, "7", accuracy, **rest)


KEY_A, KEY_B = (problem_key("AMC", question(text), "7") for text in ("a?", "b?"))
RESPONSES = [
    response("u1", "AMC", "a?", 1.0, prompt="<user> a?", text="it is 7", score=1.0),
    response("u1", "AMC", "a?", 0.0),
    response("u2", "AMC", "b?", 1.0),
    response("u2", "AMC", "b?", 1.0),
    response("u3", "AIME", "a?", 0.0),
    response("u3", "AIME", "a?", 0.0),
]


def test_the_record():
    record = validation_record(3, RESPONSES)
    assert record["step"] == 3 and record["n"] == 2
    # a?: (1 + 0) / 2; b?: (1 + 1) / 2
    assert accuracies(record, "AMC") == {KEY_A: 0.5, KEY_B: 1.0}
    assert list(accuracies(record, "AIME").values()) == [0.0]
    assert accuracies(record, "no such source") == {}
    keys = record["sources"]["AMC"]["problems"]
    assert keys == sorted(keys)
    shown = {
        "data_source": "AMC",
        "prompt": "<user> a?",
        "response": "it is 7",
        "gold": "7",
        "score": 1.0,
    }
    assert shown in record["samples"] and len(record["samples"]) == 3  # one a problem
    assert json.loads(json_lines(record)) == record


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_problems_does_not_matter(seed):
    pairs = [RESPONSES[i : i + 2] for i in (0, 2, 4)]
    random.Random(seed).shuffle(pairs)
    record = validation_record(3, [row for pair in pairs for row in pair])
    expected = validation_record(3, RESPONSES)
    assert {name: dict(value) for name, value in record["sources"].items()} == expected["sources"]


def test_a_problem_that_is_twice_in_the_data():
    twice = [response("u1", "AMC", "a?", 1.0), response("u2", "AMC", "a?", 0.0)]
    assert accuracies(validation_record(0, twice), "AMC") == {KEY_A: 1.0, f"{KEY_A}-2": 0.0}


def test_a_key_is_of_source_prompt_and_gold():
    base = problem_key("AMC", question("a?"), "7")
    assert base == problem_key("AMC", [{"content": "a?", "role": "user", "name": None}], "7")
    others = {
        problem_key("AIME", question("a?"), "7"),
        problem_key("AMC", question("a? "), "7"),
        problem_key("AMC", question("a?"), "8"),
        problem_key("AMC", question("a?"), ["7", "8"]),
        problem_key("AMC", question("\ud800"), "7"),  # half a character
    }
    assert len(others | {base}) == 6


def test_what_is_no_number_is_left_out():
    record = validation_record(0, [response("u1", "AMC", "a?", None), RESPONSES[2]])
    assert record["sources"]["AMC"]["accuracy"].count(None) == 1
    assert accuracies(record, "AMC") == {KEY_B: 1.0}
    assert intervals(validation_record(0, [response("u1", "AMC", "a?", None)])) == {}


def test_samples_are_few_short_and_of_every_source():
    many = [
        response(f"m{i}", "MATH", f"{i}?", 1.0, prompt=f"{i}?", text="x" * 9000) for i in range(50)
    ]
    record = validation_record(0, [*many, RESPONSES[4]])
    assert len(record["samples"]) == 8
    assert {sample["data_source"] for sample in record["samples"]} == {"MATH", "AIME"}
    assert max(len(sample["response"]) for sample in record["samples"]) == 4000
    again = validation_record(9, [RESPONSES[4], *many[::-1]])
    assert {s["prompt"] for s in again["samples"]} == {s["prompt"] for s in record["samples"]}


def test_intervals():
    assert intervals(validation_record(0, RESPONSES))["val-aux/AIME/acc/ci95_high@2"] == 0.0
    half = [response(f"u{i}", "AMC", f"{i}?", float(i % 2)) for i in range(100)]
    found = intervals(validation_record(0, half))
    # 100 coins: a standard error of .05, so the interval is about .5 -+ .098
    assert found["val-aux/AMC/acc/ci95_low@1"] == pytest.approx(0.402, abs=0.011)
    assert found["val-aux/AMC/acc/ci95_high@1"] == pytest.approx(0.598, abs=0.011)
