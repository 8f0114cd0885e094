"""What validation.jsonl holds: the accuracy of each problem, and a few responses.

A line: step; n, responses a problem; sources, by name the keys of its problems, sorted, and the
mean accuracy of each (null where the verifier gave no number); samples, of the same few problems in
every validation.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from opdvr.eval.statistics import bootstrap_means, interval

SAMPLES = 8
SAMPLE_CHARS = 4000
_DIGEST_CHARS = 16


@dataclass
class Response:
    """One response in a validation.

    Attributes:
        uid: the same for all responses to one row of the data.
        source: the row's data_source.
        key: see `problem_key`.
        gold: its ground truth, as text.
        accuracy: the verifier's; None where it is no finite number.
        score: what the reward would be; None likewise.
        prompt, text: what was asked and answered, without special tokens.
    """

    uid: str
    source: str
    key: str
    gold: str
    accuracy: float | None = None
    score: float | None = None
    prompt: str = ""
    text: str = ""


def problem_key(source: str, messages: Sequence[Mapping[str, Any]], gold: object) -> str:
    """The same for the same problem in any run, whatever its model, template or row number."""
    said = [[message.get("role"), message.get("content")] for message in messages]
    text = json.dumps([source, said, gold], sort_keys=True, ensure_ascii=False, default=str)
    # A prompt of somebody's may hold half a character.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]


def validation_record(step: int, responses: Sequence[Response]) -> dict[str, Any]:
    """The line of one validation; responses in any order."""
    by_row: dict[str, list[Response]] = defaultdict(list)
    for response in responses:
        by_row[response.uid].append(response)
    problems: dict[str, list[tuple[str, list[Response]]]] = defaultdict(list)
    times: Counter[tuple[str, str]] = Counter()
    for rows in by_row.values():
        source, key = rows[0].source, rows[0].key
        times[source, key] += 1
        count = times[source, key]
        # A problem that is twice in the data is two problems of one text.
        problems[source].append((key if count == 1 else f"{key}-{count}", rows))
    problems = dict(sorted(problems.items()))
    for pairs in problems.values():
        pairs.sort(key=lambda pair: pair[0])
    first = zip_longest(*([rows[0] for _, rows in pairs] for pairs in problems.values()))
    shown = [response for response in chain.from_iterable(first) if response is not None][:SAMPLES]
    return {
        "step": step,
        "n": max((len(rows) for rows in by_row.values()), default=0),
        "sources": {
            source: {
                "problems": [key for key, _ in pairs],
                "accuracy": [_mean(rows) for _, rows in pairs],
            }
            for source, pairs in problems.items()
        },
        "samples": [_sample(response) for response in shown],
    }


def _mean(rows: Sequence[Response]) -> float | None:
    values = [row.accuracy for row in rows]
    return None if None in values else sum(values) / len(values)


def _sample(response: Response) -> dict[str, Any]:
    return {
        "data_source": response.source,
        "prompt": response.prompt[:SAMPLE_CHARS],
        "response": response.text[:SAMPLE_CHARS],
        "gold": response.gold,
        "score": response.score,
    }


def accuracies(record: Mapping[str, Any], source: str) -> dict[str, float]:
    """Accuracy by problem key of one data source; problems without a number are left out."""
    found = record["sources"].get(source, {"problems": [], "accuracy": []})
    pairs = zip(found["problems"], found["accuracy"], strict=True)
    return {key: value for key, value in pairs if value is not None}


def intervals(record: Mapping[str, Any]) -> dict[str, float]:
    """95 % interval of each source's accuracy, bootstrapped over problems, as metrics."""
    metrics = {}
    for source in record["sources"]:
        values = list(accuracies(record, source).values())
        if values:
            low, high = interval(bootstrap_means(np.array(values)))
            metrics[f"val-aux/{source}/acc/ci95_low@{record['n']}"] = low
            metrics[f"val-aux/{source}/acc/ci95_high@{record['n']}"] = high
    return metrics
