"""Verdicts are the trainer's: the same samples through both give the same numbers."""

import numpy as np
import pytest
from evaluating import STUDENT, problem, sample

from opdvr.eval.grading import as_benchmarks, grade
from opdvr.eval.results import MEAN, render_table, summarise
from opdvr.eval.statistics import NO_VOTE
from opdvr.eval.verdicts import Rules, as_verdict, load_verifier
from opdvr.verifier import answer_key
from opdvr.verifier.custom import OWN


def scored_rows(problems, samples, verifier=None):
    return [
        row
        for rows in grade(problems, samples, load_verifier(Rules(verifier or OWN)))
        for row in rows
    ]


def test_samples_are_put_in_order_and_scored():
    first, second = problem(0, "1/2"), problem(1, "7")
    samples = [
        sample(second, 1, "no answer", finish="length"),
        sample(first, 1, "\\boxed{0.5}"),
        sample(second, 0, "\\boxed{7}", tokens=9),
        sample(first, 0, "\\boxed{2}"),
    ]
    rows = scored_rows([first, second], samples)
    assert [(r.key, r.sample, r.correct) for r in rows] == [
        (first.key, 0, False),
        (first.key, 1, True),
        (second.key, 0, True),
        (second.key, 1, False),
    ]
    assert [r.no_box for r in rows] == [False, False, False, True]
    assert [r.truncated for r in rows] == [False, False, False, True]
    (benchmark,) = as_benchmarks(rows, 2)
    assert benchmark.keys == (first.key, second.key)
    assert benchmark.acc.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert benchmark.tokens.tolist() == [[5, 5], [9, 5]]
    assert benchmark.votes[1].tolist()[1] == NO_VOTE


def test_spellings_of_one_answer_vote_together():
    one = problem(0, "3/4")
    texts = ["\\boxed{\\dfrac{3}{4}}", "\\boxed{5}", "\\boxed{\\frac{3}{4}.}"]
    (benchmark,) = as_benchmarks(
        scored_rows([one], [sample(one, i, text) for i, text in enumerate(texts)]), 3
    )
    votes = benchmark.votes[0]
    assert votes[0] == votes[2] != votes[1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("\\left( 1,2 \\right)", "(1, 2)", True),
        ("\\text{Monday}", "monday", True),
        ("$x+1$", "x + 1", True),
        ("\\leftarrow", "arrow", False),
        ("12", "1 3", False),
        ("1/2", "0.5", True),
    ],
)
def test_spelling(one, other, same):
    assert (answer_key(one) == answer_key(other)) is same


def test_benchmarks_are_told_apart_and_averaged_alike():
    problems = [problem(0, "1", "a"), problem(1, "1", "a"), problem(0, "1", "b")]
    right = {"a:d:0": 2, "a:d:1": 0, "b:d:0": 1}
    samples = [
        sample(p, i, "\\boxed{1}" if i < right[p.key] else "\\boxed{2}")
        for p in problems
        for i in range(2)
    ]
    found = summarise(as_benchmarks(scored_rows(problems, samples), 2))
    # a: (2/2 + 0/2) / 2 = 0.5; b: 1/2; pooled it would be (1 + 0 + 0.5) / 3
    assert found["a"]["avg"] == 0.5 and found["b"]["avg"] == 0.5
    assert found[MEAN]["avg"] == 0.5
    # pass@2: a 1/2, b 1; maj@2: a 1/2, b 1 (a tie, the right one came first)
    assert (found["a"]["pass"][2], found["b"]["pass"][2], found[MEAN]["pass"][2]) == (0.5, 1, 0.75)
    assert (found["a"]["maj"][2], found["b"]["maj"][2]) == (0.5, 1.0)
    assert (found["a"]["solved_none"], found["a"]["solved_all"]) == (0.5, 0.5)
    table = render_table(found)
    assert len(table.splitlines()) == 2 + 3 and MEAN in table


def floats(data_source, solution_str, ground_truth, extra_info=None):
    return 0.25 * extra_info["index"]


def test_a_users_verifier_by_module_and_by_file(tmp_path):
    rows = scored_rows([problem(2)], [sample(problem(2), 0, "x")], f"{__name__}:floats")
    assert (rows[0].score, rows[0].acc, rows[0].correct, rows[0].pred) == (0.5, 0.5, True, None)
    file = tmp_path / "mine.py"
    file.write_text(
        "def f(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': -1.0, 'acc': 0.0, 'pred': solution_str}\n"
    )
    rows = scored_rows([problem()], [sample(problem(), 0, "x")], f"{file}:f")
    assert (rows[0].score, rows[0].acc, rows[0].correct, rows[0].pred) == (-1.0, 0.0, False, "x")
    # an answerless verifier has no majority
    found = summarise(
        as_benchmarks(
            scored_rows(
                [problem(2)], [sample(problem(2), i, "x") for i in (0, 1)], f"{__name__}:floats"
            ),
            2,
        )
    )
    assert found["a"]["maj"] is None and "-" in render_table(found)


@pytest.mark.parametrize("name", ["nothing", "no_such_module:f", "json:no_such", "none.py:f", ":f"])
def test_verifiers_that_are_not_there(name):
    with pytest.raises(ValueError, match="--verifier"):
        load_verifier(Rules(name))


def test_answer_forms_are_our_verifiers():
    texts = ["Answer: 1", "\\boxed{1}"]
    samples = [sample(problem(), i, text) for i, text in enumerate(texts)]
    for forms, correct in (("boxed", [False, True]), ("any", [True, True])):
        verifier = load_verifier(Rules(answer_forms=forms))
        rows = [row for rows in grade([problem()], samples, verifier) for row in rows]
        assert [row.correct for row in rows] == correct
        assert [row.no_box for row in rows] == [True, False]
    with pytest.raises(ValueError, match="--answer-forms"):
        load_verifier(Rules(f"{__name__}:floats", "any"))


# --- the trainer's validation on the same samples


def trainer_metrics(problems, ids, compute_score, n):
    """{data source: {variable: {metric: value}}} as validation logs it, from token ids."""
    import torch
    from tensordict import TensorDict
    from transformers import AutoTokenizer
    from verl import DataProto

    from opdvr.integration.reward_manager import VerifierRewardManager
    from opdvr.integration.validation import process_validation_metrics

    tokenizer = AutoTokenizer.from_pretrained(STUDENT)
    width = max(map(len, ids))
    rows = [problem for problem in problems for _ in range(n)]
    responses = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    data = DataProto(
        batch=TensorDict({"responses": responses, "attention_mask": mask}, batch_size=len(ids)),
        non_tensor_batch={
            "data_source": np.array([p.data_source for p in rows], dtype=object),
            "reward_model": np.array([{"ground_truth": p.gold} for p in rows], dtype=object),
            "extra_info": np.array([p.extra_info for p in rows], dtype=object),
        },
    )
    manager = VerifierRewardManager(tokenizer, 0, compute_score)
    infos = manager(data, return_dict=True)["reward_extra_info"]
    return process_validation_metrics([p.data_source for p in rows], [p.key for p in rows], infos)


def partial_credit(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str) / 100


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("verifier", [None, "partial_credit"])
def test_equal_to_the_trainers_validation(n, verifier):
    pytest.importorskip("verl")
    from transformers import AutoTokenizer

    from opdvr.verifier import compute_score

    tokenizer = AutoTokenizer.from_pretrained(STUDENT)
    rng = np.random.default_rng(7)
    problems = [problem(i, str(rng.integers(0, 3)), "ab"[i % 3 == 0]) for i in range(8)]
    ids = []
    for _ in range(len(problems) * n):
        answer = f"\\boxed{{{rng.integers(0, 3)}}}" if rng.random() < 0.8 else "1+1=2;"
        ids.append(tokenizer.encode("7*8+9=65;" + answer, add_special_tokens=False))
        if rng.random() < 0.7:
            ids[-1].append(tokenizer.eos_token_id)
    function = compute_score if verifier is None else globals()[verifier]
    expected = trainer_metrics(problems, ids, function, n)

    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    samples = [sample(problems[i // n], i % n, text, len(ids[i])) for i, text in enumerate(texts)]
    name = None if verifier is None else f"{__name__}:{verifier}"
    found = summarise(as_benchmarks(scored_rows(problems, samples, name), n))
    for source in ("a", "b"):
        assert 0 < found[source]["avg"] < 1
        assert found[source]["avg"] == pytest.approx(
            expected[source]["acc"][f"mean@{n}"], abs=1e-12
        )


def test_numbers_become_verdicts_as_in_training():
    pytest.importorskip("verl")
    from opdvr.integration.reward_manager import _complete

    for verdict in (0.5, 1, {"score": 1.0}, {"score": 1.0, "acc": 0.0, "pred": "7"}):
        ours, theirs = as_verdict(verdict), _complete(verdict)
        assert (ours["score"], ours["acc"]) == (theirs["score"], theirs["acc"])
        assert (ours["pred"] or "") == theirs["pred"]
