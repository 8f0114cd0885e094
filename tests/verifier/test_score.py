"""The seam: keys, policy, caching, and mathematics through the worker process."""

import json
from pathlib import Path

import pytest

from opdvr.verifier import compute_score, compute_scores, configure, counters
from opdvr.verifier.pool import get_pool, shut_down

SHARED_CASES = Path(__file__).parents[3] / "shared" / "cases"


@pytest.fixture(scope="module", autouse=True)
def workers_end():
    yield
    shut_down()


def score(gold, answer):
    return compute_score("AIME24", rf"So \boxed{{{answer}}}.", gold)["score"]


@pytest.mark.parametrize(
    "source",
    ["AIME24", "AMC23", "MATH-500", "Minerva", "DeepMath-103K", "math_dapo", "unknown", "", None],
)
def test_any_data_source_is_scored_alike(source):
    assert compute_score(source, r"\boxed{34}", "34") == {"score": 1.0, "acc": 1.0, "pred": "34"}
    assert compute_score(source, r"\boxed{43}", "34") == {"score": 0.0, "acc": 0.0, "pred": "43"}
    assert compute_score(source, "34", "34", {"index": 1}) == {
        "score": 0.0,
        "acc": 0.0,
        "pred": "",
    }


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1024", "2^{10}"),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
        ("3+4i", "4i+3"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\{1,2\}", r"\{2, 1\}"),
        ("1,-2", "-2, 1"),
        ("3,5,7", r"3, 5 \text{ and } 7"),
        (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty) \cup (-\infty,2)"),
        ("0 < x < 12.5", "(0, 12.5)"),
        (r"$x=\frac{1}{6} \pi$", r"\frac{\pi}{6}"),
        (r"\frac{1}{\sqrt{n}}", r"\sqrt{\frac{1}{n}}"),
        ("np.arcsin(10/13)", r"\arcsin\left(\frac{10}{13}\right)"),
        (r"\frac{1}{3}", r"\frac{1}{3} \approx 0.333"),
        ("2x+4y=6", "x+2y=3"),
    ],
)
def test_equal_by_mathematics(gold, answer):
    assert score(gold, answer) == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("(1,2)", "(2,1)"),
        ("(1,2)", "(1,2,3)"),
        ("[0,1)", "[0,1]"),
        (r"(-\infty,2)\cup(2,\infty)", r"(-\infty,\infty)"),
        (r"\pi", "3.14"),
        (r"\pi", r"\frac{355}{113}"),  # equal to 7 digits
        ("262537412640768744", r"e^{\pi\sqrt{163}}"),  # equal to 30 digits
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        ("x=0", "x^2+1=0"),
        ("3x-y+13=0", "3x+4y+14=0"),
        (r"\frac{x^2}{4}+\frac{y^2}{3}=1", r"\frac{x^2}{16}+\frac{y^2}{12}=1"),
        ("f(x)=2x", "f(x)=3x"),
        ("p-q", "q-p"),
        ("7", "1,2,3,4,5,6,7,8,9,10"),
        ("2c", "2"),
        ("2c", "2d"),
        ("x", r"\sqrt{x^2}"),  # equal for positive x only
    ],
)
def test_different_by_mathematics(gold, answer):
    assert score(gold, answer) == 0.0


def test_fast_paths_start_no_process():
    shut_down()
    assert get_pool().process_ids() == []
    compute_scores([""] * 3, [r"\boxed{5}", r"\boxed{0.50}", "none"], ["5", r"\frac{1}{2}", "3"])
    assert get_pool().process_ids() == []
    score("2^{11}", "2048")
    assert len(get_pool().process_ids()) == 1


def test_verdicts_are_remembered():
    score("3^{3}", "27")
    shut_down()
    assert score("3^{3}", "27") == 1.0
    assert get_pool().process_ids() == []


def test_batch_equals_one_by_one_and_keeps_order():
    golds = ["2^{3}", "5", "x+y", "7"]
    texts = [r"\boxed{8}", r"\boxed{6}", r"\boxed{y+x}", "no box"]
    expected = [compute_score(None, text, gold) for text, gold in zip(texts, golds, strict=True)]
    assert [row["score"] for row in expected] == [1.0, 0.0, 1.0, 0.0]
    assert compute_scores([None] * 4, texts, golds) == expected
    configure(workers=2)
    try:
        assert compute_scores([None] * 4, texts, golds, [None] * 4) == expected
    finally:
        configure(workers=1)


def test_batch_of_unequal_lengths_is_refused():
    with pytest.raises(ValueError):
        compute_scores([None], ["a", "b"], ["5", "6"])
    with pytest.raises(ValueError, match="extra_infos has 1 entries for 2"):
        compute_scores([None] * 2, ["a", "b"], ["5", "6"], [None])


def test_very_long_box_is_wrong_without_parsing():
    before = counters()
    assert score("5", "x+" * 2000 + "1") == 0.0
    assert counters()["timeout"] == before["timeout"]


def test_box_marker_in_prompt_words_is_no_answer():
    text = r"I must put my final answer within \boxed{}. The answer is 5"
    assert compute_score("", text, "5")["score"] == 0.0


@pytest.mark.skipif(not SHARED_CASES.is_dir(), reason="the collection of cases is not here")
def test_collected_cases():
    wrong = []
    for line in (SHARED_CASES / "verifier.jsonl").read_text().splitlines():
        case = json.loads(line)
        if case["expected"] not in ("right", "wrong"):
            continue
        got = compute_score("", case["response"], case["gold"])["score"]
        if (got == 1.0) != (case["expected"] == "right"):
            wrong.append((case["id"], case["what"]))
    assert not wrong
