"""Verdicts a second: the verifier against math-verify alone, on the same responses and golds.

Without --data the responses are made here: whole numbers, decimals and fractions, and answers that
need symbolic mathematics. With it each gold of the files meets itself and the gold of another row.
Every round starts with empty caches; the worker process is already up.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow.parquet as pq
from math_verify import parse, verify

from benchmarks.measure import Result, Seconds, Stopwatch, interleaved, note, over_rounds
from opdvr.verifier import compute_score, compute_scores
from opdvr.verifier import score as scoring
from opdvr.verifier.forms import read_form
from opdvr.verifier.leaves import read_leaf
from opdvr.verifier.pool import shut_down

OURS, BATCH, MATH_VERIFY = "ours, one by one", "ours, a batch", "math-verify"
REASONING = "So we compute the value and simplify, step by step. " * 40
SEED = 0

Rows = Sequence[tuple[str, str]]  # (gold, response)


def add_options(parser: argparse.ArgumentParser) -> None:
    """This benchmark's options."""
    parser.add_argument("--data", nargs="*", default=[], metavar="FILE", help="parquet, our schema")
    parser.add_argument("--responses", type=int, default=1000, help="of each case")


def run(options: argparse.Namespace) -> list[Result]:
    """Rates of each case, and how often the two agree."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    count = 60 if options.quick else options.responses
    rounds = options.rounds or (1 if options.quick else 5)
    cases = made_up(count) if not options.data else from_files(options.data, count)
    results = []
    for case, rows in cases.items():
        note(f"{case}: {len(rows)} responses")
        results += measure(case, rows, rounds)
    shut_down()
    return results


def measure(case: str, rows: Rows, rounds: int) -> list[Result]:
    """Interleaved rounds of all sides over the same rows."""
    verdicts: dict[str, list[bool]] = {}
    sides = {OURS: one_by_one, BATCH: batch, MATH_VERIFY: alone}
    seconds = interleaved(
        {name: partial(timed, side, rows, verdicts, name) for name, side in sides.items()},
        rounds,
        warm_up=0 if rounds == 1 else 1,
    )
    results = []
    for name in sides:
        peers = zip(seconds[MATH_VERIFY], seconds[name], strict=True)
        ratios = None if name == MATH_VERIFY else [a["total"] / b["total"] for a, b in peers]
        rates = [len(rows) / taken["total"] for taken in seconds[name]]
        peer = None if ratios is None else MATH_VERIFY
        results.append(over_rounds(f"{case}, {name}", "verdicts", "1/s", rates, peer, ratios))
    same = sum(a == b for a, b in zip(verdicts[OURS], verdicts[MATH_VERIFY], strict=True))
    results.append(Result(case, "agreement with math-verify", same / len(rows), "share"))
    results.append(Result(case, "judged right by ours", sum(verdicts[OURS]) / len(rows), "share"))
    results.append(
        Result(case, "judged right by math-verify", sum(verdicts[MATH_VERIFY]) / len(rows), "share")
    )
    return results


def timed(
    side: Callable[[Rows], list[bool]], rows: Rows, verdicts: dict[str, list[bool]], name: str
) -> Seconds:
    """One side on all rows, from empty caches."""
    shut_down()
    for cached in (scoring._compare, scoring._tidy_gold, read_form, read_leaf):
        cached.cache_clear()
    compute_score(None, r"\boxed{2^{10}}", "1024")  # starts the worker
    watch = Stopwatch()
    with watch.phase("call"):
        verdicts[name] = side(rows)
    return watch.seconds


def one_by_one(rows: Rows) -> list[bool]:
    """Our verifier, a call a response."""
    return [compute_score(None, response, gold)["score"] == 1.0 for gold, response in rows]


def batch(rows: Rows) -> list[bool]:
    """Our verifier, one call for all."""
    golds, responses = zip(*rows, strict=True)
    scores = compute_scores([None] * len(rows), responses, golds)
    return [verdict["score"] == 1.0 for verdict in scores]


def alone(rows: Rows) -> list[bool]:
    """math-verify as its documentation calls it, in this process; golds wrapped so that it reads
    them as LaTeX.
    """
    return [
        bool(verify(parse(rf"\boxed{{{gold.strip('$')}}}"), parse(response)))
        for gold, response in rows
    ]


def made_up(count: int) -> dict[str, Rows]:
    """Half of each case's responses are right."""
    choose = random.Random(SEED)

    def rows(make: Callable[[int], tuple[str, str, str]]) -> Rows:
        pairs = []
        for index in range(count):
            gold, right, wrong = make(choose.randrange(2, 100_000))
            pairs.append((gold, answered(right if index % 2 else wrong)))
        return pairs

    return {
        "whole numbers": rows(lambda n: (str(n), str(n), str(n + 1))),
        "decimals and fractions": rows(
            lambda n: (rf"\frac{{{n}}}{{7}}", rf"\dfrac{{{2 * n}}}{{14}}", f"{n / 7 + 1:.3f}")
        ),
        "symbolic": rows(
            lambda n: (rf"\frac{{x+{n}}}{{\sqrt{{{n}}}}}", rf"\frac{{{n}+x}}{{{n}^{{1/2}}}}",
                       f"x+{n}")
        ),
        "lists and intervals": rows(
            lambda n: (rf"(-\infty,{n}) \cup [{2 * n}, \infty)",
                       rf"[{2 * n},\infty)\cup(-\infty,{n})", rf"(-\infty,{n}]\cup[{2 * n},\infty)")
        ),
    }  # fmt: skip


def from_files(files: Sequence[str], count: int) -> dict[str, Rows]:
    """Golds against themselves and against the next row's."""
    cases = {}
    for file in files:
        column = pq.read_table(file, columns=["reward_model"])["reward_model"].to_pylist()
        golds = [row["ground_truth"] for row in column]
        random.Random(SEED).shuffle(golds)
        others = golds[1:] + golds[:1]
        rows = [
            (gold, answered((gold if index % 2 else other).strip("$")))
            for index, (gold, other) in enumerate(zip(golds, others, strict=True))
        ]
        cases[file.rsplit("/", 1)[-1]] = rows[:count]
    return cases


def answered(answer: str) -> str:
    """A response of some 2,000 characters that ends in the answer."""
    return rf"{REASONING}The answer is \boxed{{{answer}}}."
