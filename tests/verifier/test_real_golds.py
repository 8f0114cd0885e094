"""The six benchmarks' 1,590 golds and 1,500 of DeepMath: against themselves, rewritten as models
write them, and against their neighbours. Needs the sibling folder `shared`.
"""

import random
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from opdvr.verifier import check_golds, compute_scores
from opdvr.verifier.pool import shut_down

DATA = Path(__file__).parents[3] / "shared" / "data"
BENCHMARKS = ("AIME24", "AIME25", "AMC23", "MATH-500", "Minerva", "Olympiad-Bench")
NUMBER = r"-?\d+(?:\.\d+)?"
FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no folder shared/data beside this one")


def golds_of(file):
    column = pq.read_table(file, columns=["reward_model"])["reward_model"]
    return [row["ground_truth"] for row in column.to_pylist()]


@pytest.fixture(scope="module", params=["benchmarks", "DeepMath"])
def golds(request):
    if request.param == "benchmarks":
        files = [DATA / "benchmarks" / f"{name}.parquet" for name in BENCHMARKS]
        yield [gold for file in files for gold in golds_of(file)]
    else:
        yield random.Random(0).sample(golds_of(DATA / "train" / "DeepMath_deduped.parquet"), 1500)
    shut_down()


def bare(gold):
    return re.sub(r"(?<!\\)\$", "", gold).strip()


def scientific(gold):
    match = re.fullmatch(r"(-?[\d.]+)[eE]([-+]?\d+)", gold)
    return match and rf"{match[1]} \times 10^{{{int(match[2])}}}"


def thousands(separator):
    def rewrite(gold):
        match = re.fullmatch(r"(-?)(\d{4,})(\.\d+)?", bare(gold))
        if match is None:
            return None
        return match[1] + f"{int(match[2]):,}".replace(",", separator) + (match[3] or "")

    return rewrite


def reordered(gold):
    items, depth, item = [], 0, ""
    for sign in bare(gold):
        depth += (sign in "({[") - (sign in ")}]")
        if sign == "," and depth == 0:
            items.append(item)
            item = ""
        else:
            item += sign
    items.append(item)
    if len(items) < 2 or "=" in gold or r"\!" in gold:
        return None
    return ", ".join(item.strip() for item in reversed(items))


def fraction(form):
    def rewrite(gold):
        match = FRACTION.fullmatch(bare(gold))
        return match and form(match[1], int(match[2]), int(match[3]))

    return rewrite


def when(pattern, form):
    return lambda gold: form(bare(gold)) if re.fullmatch(pattern, bare(gold)) else None


# As it is rewritten: gold -> answer, or None where this does not apply.
REWRITINGS = {
    "itself": lambda gold: gold,
    "without dollars": lambda gold: bare(gold) if "$" in gold else None,
    "in dollars": lambda gold: f"${bare(gold)}$",
    "scientific": scientific,
    "12 345": thousands(r"\,"),
    "12{,}345": thousands("{,}"),
    "12,345": thousands(","),
    "12,\\!345": thousands(r",\!"),
    "without leading zeros": when(r"0\d+", lambda text: str(int(text))),
    "142 for 142.0": when(r"\d+\.0", lambda text: text[:-2]),
    "reordered": reordered,
    "unreduced": fraction(lambda sign, a, b: rf"{sign}\frac{{{3 * a}}}{{{3 * b}}}"),
    "slash": fraction(lambda sign, a, b: f"{sign}{a}/{b}"),
    "dfrac": lambda gold: gold.replace(r"\frac", r"\dfrac") if r"\frac" in gold else None,
    "text": when(r"[1-9][\d.]*|[A-Za-z ]{3,}", lambda text: rf"\text{{{text}}}"),
    "unit": when(NUMBER, lambda text: rf"{text} \text{{ cm}}"),
    "x =": when(rf"{NUMBER}|-?\\frac\{{\d+\}}\{{\d+\}}", lambda text: f"x = {text}"),
    "left and right": lambda gold: (
        gold.replace("(", r"\left(").replace(")", r"\right)")
        if "(" in gold and r"\left" not in gold and "[" not in gold and r"\(" not in gold
        else None
    ),
}


def right(pairs):
    golds, answers = zip(*pairs, strict=True)
    responses = [rf"Thus \boxed{{{answer}}}." for answer in answers]
    return [v["score"] == 1.0 for v in compute_scores([None] * len(pairs), responses, golds)]


def test_each_is_usable_and_equals_itself(golds):
    assert set(check_golds(golds)) == {None}


@pytest.mark.parametrize("name", REWRITINGS)
def test_rewritten_it_is_still_right(golds, name):
    pairs = [(gold, answer) for gold in golds if (answer := REWRITINGS[name](gold)) is not None]
    if not pairs:
        pytest.skip("no gold of this form")
    wrong = [pair for pair, verdict in zip(pairs, right(pairs), strict=True) if not verdict]
    assert wrong == []


def test_the_neighbours_gold_is_accepted_only_where_it_says_the_same(golds):
    pairs = [(a, b) for a, b in zip(golds, golds[1:], strict=False) if bare(a) != bare(b)]
    accepted = {pair for pair, verdict in zip(pairs, right(pairs), strict=True) if verdict}
    assert accepted <= {("5", "x=5"), ("Yes", "yes"), ("0", r"\{0\}"), ("0", "A = 0")}
