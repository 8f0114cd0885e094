"""From samples to verdicts: the trainer's verifier on each completion, one row a sample."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opdvr.eval.problems import Problem
from opdvr.eval.samples import Sample
from opdvr.eval.statistics import NO_VOTE, distinct_4gram
from opdvr.eval.verdicts import Verifier
from opdvr.verifier import answer_key, extract_answer

# Strictly above counts as correct, as training's default correctness_threshold.
CORRECT_ABOVE = 0.0
# Completions verified between two progress reports.
_ROWS_AT_ONCE = 512
# Words, numbers and single signs: the pieces of which 4-grams are made.
_PIECES = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Scored:
    """One sample's verdict, a line of scored.jsonl.

    Attributes:
        key: the problem's.
        sample: 0 to n - 1.
        data_source: the problem's benchmark.
        score: as the verifier gave it.
        acc: the verifier's acc, or its score where it gives none; what avg@n averages.
        correct: score above 0.
        pred: the answer, as the verifier read it; None from a verifier that names none.
        no_box: the text has no complete box.
        truncated: cut at the longest response.
        tokens: length, the end token included.
        distinct_4gram: share of 4-grams that are distinct; None for a text of fewer than 4 pieces.
    """

    key: str
    sample: int
    data_source: str
    score: float
    acc: float
    correct: bool
    pred: str | None
    no_box: bool
    truncated: bool
    tokens: int
    distinct_4gram: float | None


def grade(
    problems: Sequence[Problem], samples: Sequence[Sample], verifier: Verifier
) -> Iterator[list[Scored]]:
    """Verdicts of all samples in the order of problems and sample indices, some at a time."""
    by_key = {problem.key: (place, problem) for place, problem in enumerate(problems)}
    ordered = sorted(samples, key=lambda sample: (by_key[sample.key][0], sample.sample))
    for start in range(0, len(ordered), _ROWS_AT_ONCE):
        rows = ordered[start : start + _ROWS_AT_ONCE]
        verdicts = verifier([by_key[row.key][1] for row in rows], rows)
        yield [_scored(row, verdict) for row, verdict in zip(rows, verdicts, strict=True)]


def _scored(sample: Sample, verdict: dict[str, Any]) -> Scored:
    pred = verdict["pred"]
    return Scored(
        key=sample.key,
        sample=sample.sample,
        data_source=sample.data_source,
        score=float(verdict["score"]),
        acc=float(verdict["acc"]),
        correct=verdict["score"] > CORRECT_ABOVE,
        pred=None if pred is None else str(pred),
        no_box=not extract_answer(sample.text),
        truncated=sample.finish == "length",
        tokens=sample.tokens,
        distinct_4gram=distinct_4gram(_PIECES.findall(sample.text)),
    )


@dataclass(frozen=True)
class Benchmark:
    """One data source's verdicts as arrays [P problems, n samples].

    `votes` holds equal numbers for equal answers of a problem and NO_VOTE for none; it is None
    where the verifier names no answers. `distinct` has nan for texts too short for a 4-gram.
    """

    name: str
    keys: tuple[str, ...]
    acc: np.ndarray
    correct: np.ndarray
    votes: np.ndarray | None
    tokens: np.ndarray
    truncated: np.ndarray
    no_box: np.ndarray
    distinct: np.ndarray


def as_benchmarks(scored: Sequence[Scored], n: int) -> list[Benchmark]:
    """Arrays by data source, in the order in which they first come.

    Args:
        scored: n consecutive verdicts a problem, as `grade` yields them.
        n: samples a problem.
    """
    sources = dict.fromkeys(row.data_source for row in scored)
    return [_benchmark(name, [r for r in scored if r.data_source == name], n) for name in sources]


def _benchmark(name: str, rows: list[Scored], n: int) -> Benchmark:
    def array(values: list[Any], kind: type) -> np.ndarray:
        return np.array(values, dtype=kind).reshape(-1, n)

    named = all(row.pred is not None for row in rows)
    distinct = [np.nan if r.distinct_4gram is None else r.distinct_4gram for r in rows]
    return Benchmark(
        name=name,
        keys=tuple(row.key for row in rows[::n]),
        acc=array([row.acc for row in rows], float),
        correct=array([row.correct for row in rows], bool),
        votes=array(_votes([row.pred for row in rows]), int) if named else None,
        tokens=array([row.tokens for row in rows], float),
        truncated=array([row.truncated for row in rows], bool),
        no_box=array([row.no_box for row in rows], bool),
        distinct=array(distinct, float),
    )


def _votes(answers: list[str]) -> list[int]:
    """A number for each answer, the same for spellings of one."""
    numbers: dict[str, int] = {}
    votes = []
    for answer in answers:
        if not answer.strip():
            votes.append(NO_VOTE)
            continue
        votes.append(numbers.setdefault(answer_key(answer), len(numbers)))
    return votes
