"""A model's second opinion on answers that the rules reject; never mixed into the main figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from opdvr.eval.grading import Benchmark, Scored
from opdvr.eval.jsonl import LineWriter, damaged, read_lines
from opdvr.eval.problems import Problem

JUDGED = "judged.jsonl"
# An answer longer than this is no answer; a judge would be asked to read a whole failure.
MAX_ANSWER_CHARS = 2000
_FAILURES_SHOWN_CHARS = 200
_VERDICT = re.compile(r"verdict\W{0,6}\s*(in)?correct\b", re.IGNORECASE)
_INSTRUCTION = """\
Two answers to one mathematical problem are given: the reference, which is right, and a candidate.
Decide whether the candidate says the same as the reference. Another way to write the same value or
object is the same; an answer that is incomplete, more general, or only near it is not. Do not solve
the problem anew and do not doubt the reference.

Problem:
{question}

Reference answer: {gold}
Candidate answer: {answer}

End with one line that reads "Verdict: correct" or "Verdict: incorrect"."""


@dataclass(frozen=True)
class Question:
    """One distinct answer of a problem, to be judged once however often it was given."""

    key: str
    pred: str
    prompt: str


@dataclass(frozen=True)
class Judgement:
    """A line of judged.jsonl.

    Attributes:
        key: the problem's.
        pred: the answer that was judged.
        judge: the model that was asked.
        correct: its verdict.
        reply: all it said.
    """

    key: str
    pred: str
    judge: str
    correct: bool
    reply: str


@dataclass
class Tally:
    """How the judging went: distinct answers asked about, accepted, and failed (asked again next
    time), and samples that were accepted.
    """

    asked: int = 0
    accepted: int = 0
    failed: int = 0
    accepted_samples: int = 0
    first_failure: str | None = None


# Asks about prompts; yields (place, reply) or (place, exception) as they come.
Asker = Callable[[Sequence[str]], Iterator[tuple[int, "str | Exception"]]]


def questions(problems: Iterable[Problem], scored: Iterable[Scored]) -> list[Question]:
    """The distinct answers that the rules reject: non-empty ones, each once a problem."""
    by_key = {problem.key: problem for problem in problems}
    found: dict[tuple[str, str], Question] = {}
    for row in scored:
        if not _to_judge(row) or (row.key, row.pred) in found:
            continue
        problem = by_key[row.key]
        golds = problem.gold if isinstance(problem.gold, list) else [problem.gold]
        text = _INSTRUCTION.format(
            question=problem.question, gold=" or ".join(map(str, golds)), answer=row.pred
        )
        found[row.key, row.pred] = Question(row.key, row.pred, text)
    return list(found.values())


def _to_judge(row: Scored) -> bool:
    return (
        not row.correct
        and row.pred is not None
        and bool(row.pred.strip())
        and len(row.pred) <= MAX_ANSWER_CHARS
    )


def read_verdict(reply: str) -> bool:
    """The last verdict in a judge's reply.

    Raises:
        ValueError: it names none.
    """
    verdicts = list(_VERDICT.finditer(reply))
    if not verdicts:
        raise ValueError(f"no verdict in the reply: {reply[-_FAILURES_SHOWN_CHARS:]!r}")
    return verdicts[-1].group(1) is None


def judge(
    asked: Sequence[Question], folder: Path, name: str, ask: Asker
) -> tuple[dict[tuple[str, str], bool], Tally]:
    """Verdicts on `asked`: those that judged.jsonl has from this judge, and the rest now.

    Each verdict is written as it comes. A failure is counted and not written, so that the next run
    asks again.

    Returns:
        {(key, pred): accepted} of what was judged, and the tally.
    """
    path = folder / JUDGED
    before = read_judgements(folder, repair=True)
    verdicts = {(j.key, j.pred): j.correct for j in before if j.judge == name}
    wanted = {(question.key, question.pred) for question in asked}
    verdicts = {place: correct for place, correct in verdicts.items() if place in wanted}
    missing = [q for q in asked if (q.key, q.pred) not in verdicts]
    tally = Tally(asked=len(asked))
    with LineWriter(path) as file:
        for place, reply in ask([question.prompt for question in missing]) if missing else ():
            question = missing[place]
            try:
                if isinstance(reply, Exception):
                    raise reply
                correct = read_verdict(reply)
            except (OSError, ValueError) as failure:
                tally.failed += 1
                tally.first_failure = tally.first_failure or _in_a_line(failure)
                continue
            verdicts[question.key, question.pred] = correct
            file.append(asdict(Judgement(question.key, question.pred, name, correct, reply)))
    tally.accepted = sum(verdicts.values())
    return verdicts, tally


def read_judgements(folder: Path, repair: bool = False) -> list[Judgement]:
    """What judged.jsonl has; `repair` as in `read_lines`.

    Raises:
        ValueError: a line is damaged.
    """
    found = []
    for number, content in read_lines(folder / JUDGED, repair):
        try:
            found.append(Judgement(**content))
        except TypeError as error:
            raise damaged(folder / JUDGED, number, f"no verdict: {error}") from None
    return found


def _in_a_line(failure: Exception) -> str:
    return " ".join(str(failure).split())[:_FAILURES_SHOWN_CHARS]


def with_judge(
    benchmarks: Sequence[Benchmark],
    scored: Sequence[Scored],
    verdicts: dict[tuple[str, str], bool],
    tally: Tally,
) -> dict[str, np.ndarray]:
    """acc [P, n] by benchmark, 1 where the judge accepted; counts the accepted samples."""
    accepted = {
        (row.key, row.sample)
        for row in scored
        if verdicts.get((row.key, row.pred or ""), False) and _to_judge(row)
    }
    tally.accepted_samples = len(accepted)
    found = {}
    for benchmark in benchmarks:
        acc = benchmark.acc.copy()
        for place, key in enumerate(benchmark.keys):
            for index in range(acc.shape[1]):
                if (key, index) in accepted:
                    acc[place, index] = 1.0
        found[benchmark.name] = acc
    return found
