"""Verdicts on every kind of answer: verdicts.jsonl, through the whole verifier."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from opdvr.verifier import check_golds, compute_score
from opdvr.verifier.pool import shut_down

PAIRS = [json.loads(line) for line in Path(__file__).with_name("verdicts.jsonl").open()]
KINDS = defaultdict(list)
for pair in PAIRS:
    KINDS[pair["kind"], pair["expected"]].append((pair["gold"], pair["answer"]))


@pytest.fixture(scope="module", autouse=True)
def workers_end():
    yield
    shut_down()


@pytest.mark.parametrize(("kind", "expected"), KINDS)
def test_verdicts(kind, expected):
    score = {"right": 1.0, "wrong": 0.0}[expected]
    judged_otherwise = [
        (gold, answer)
        for gold, answer in KINDS[kind, expected]
        if compute_score("any", rf"So \boxed{{{answer}}}.", gold)["score"] != score
    ]
    assert judged_otherwise == []


def test_each_gold_equals_itself():
    golds = sorted({pair["gold"] for pair in PAIRS})
    assert [pair for pair in zip(golds, check_golds(golds), strict=True) if pair[1]] == []
