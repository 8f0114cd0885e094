"""Two runs compared: pairing by problem and step, intervals, and what is said of mistakes."""

import json

import numpy as np
import pytest
import yaml

from opdvr.eval.statistics import block_bootstrap_means
from opdvr.report import compare_command
from opdvr.report.compare import block_length, compare_runs, render
from opdvr.report.step_records import json_lines

KEYS = [f"k{i:02d}" for i in range(20)]


def record(step, amc, aime=None, n=4, keys=KEYS):
    sources = {"AMC": {"problems": keys[: len(amc)], "accuracy": amc}}
    if aime is not None:
        sources["AIME"] = {"problems": keys[: len(aime)], "accuracy": aime}
    return {"step": step, "n": n, "sources": sources, "samples": []}


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, accuracy by step, validations, settings): a run's folder."""

    def make(name, accuracy, validations=(), settings=None):
        folder = tmp_path / name
        folder.mkdir()
        lines = [{"step": 0, "time": 1.0}]
        lines += [
            {"step": step, "timing_s/step": 2.0, "cg/correct_frac": value}
            for step, value in enumerate(accuracy, start=1)
        ]
        (folder / "metrics.jsonl").write_bytes(json_lines(*lines))
        if validations:
            (folder / "validation.jsonl").write_bytes(json_lines(*validations))
        if settings is not None:
            (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        return folder

    return make


def test_benchmarks_are_paired_by_problem(make_run):
    a = make_run("a", [0.5], [record(0, [0.0] * 20), record(9, [0.25] * 20, [0.5] * 10)])
    # B has the problems in another order, and one more of AMC; its last validation is later.
    one = record(9, [0.25 + 0.01 * i for i in range(20)], [0.5] * 10)
    one["sources"]["AMC"]["problems"] = KEYS[::-1]
    one["sources"]["AMC"]["problems"] = [*KEYS[::-1], "new"]
    one["sources"]["AMC"]["accuracy"].append(1.0)
    b = make_run("b", [0.5], [one, record(18, [1.0] * 20)])
    found = compare_runs(a, b)
    assert found["steps"] == [9, 9] and found["unpaired"] == [0, 1]
    # Differences 0, .01, ... .19: mean .095.
    row = found["rows"]["AMC"]
    assert (row["problems"], row["before"]) == (20, 0.25)
    assert row["difference"] == pytest.approx(0.095)
    low, high = row["difference_95"]
    assert 0.06 < low < 0.095 < high < 0.13
    assert found["rows"]["AIME"]["difference_95"] == (0.0, 0.0)
    # (.095 + 0) / 2
    assert found["rows"]["mean of benchmarks"]["difference"] == pytest.approx(0.0475)
    text = render(found)
    assert "validation at step 9; " in text and "left out: 0 problems of A, 1 of B" in text
    assert "| AMC " in text and "+0.095" in text


def test_pairing_is_by_key_not_by_place(make_run):
    values = [i / 20 for i in range(20)]
    turned = record(9, values[::-1], keys=KEYS[::-1])
    a, b = make_run("a", [0.5], [record(9, values)]), make_run("b", [0.5], [turned])
    assert compare_runs(a, b)["rows"]["AMC"]["difference_95"] == (0.0, 0.0)


def test_at_a_step_and_at_the_best(make_run):
    a = make_run("a", [0.5], [record(s, [v] * 20) for s, v in ((3, 0.5), (6, 0.9), (9, 0.6))])
    b = make_run("b", [0.5], [record(s, [v] * 20) for s, v in ((3, 0.7), (6, 0.7), (9, 0.1))])
    assert compare_runs(a, b)["rows"]["AMC"]["difference"] == pytest.approx(-0.5)
    assert compare_runs(a, b, "3")["rows"]["AMC"]["difference"] == pytest.approx(0.2)
    best = compare_runs(a, b, "best")
    assert best["steps"] == [6, 3]  # the first of equal ones
    assert best["rows"]["AMC"]["difference"] == pytest.approx(-0.2)
    assert "step 6 of A, step 3 of B" in render(best)
    with pytest.raises(ValueError, match=r"--at 4: use last, best, or a step .*\(3, 6, 9\)"):
        compare_runs(a, b, "4")


def test_a_step_validated_again_after_a_resume_counts_once(make_run):
    a = make_run("a", [0.5], [record(3, [0.1] * 20), record(3, [0.5] * 20)])
    b = make_run("b", [0.5], [record(3, [0.5] * 20)])
    assert compare_runs(a, b)["rows"]["AMC"]["difference"] == 0.0


def test_training_is_paired_by_step(make_run):
    noise = np.random.default_rng(0).normal(0, 0.1, 40)
    a = make_run("a", noise + 0.4)
    b = make_run("b", noise[:30] + 0.5)
    row = compare_runs(a, b)["training"]["batch accuracy"]
    # The noise is the same in both, so every difference is .1, and 30 steps are in both.
    assert row["steps"] == 30 and row["difference"] == pytest.approx(0.1)
    assert row["difference_95"] == pytest.approx((0.1, 0.1))
    assert set(compare_runs(a, b)["training"]) == {"batch accuracy", "seconds a step"}


def test_a_handful_of_steps_makes_no_interval(make_run):
    found = compare_runs(make_run("a", [0.5] * 9), make_run("b", [0.6] * 9))
    assert found["training"]["batch accuracy"]["difference_95"] is None
    assert "too few steps" in render(found) and "there is no validation.jsonl" in render(found)


def test_blocks_are_wider_than_single_steps_where_neighbours_go_together():
    # Ten steps up, ten steps down: drawn one by one the mean looks more certain than it is.
    series = np.repeat([1.0, -1.0] * 5, 10)
    alone, together = (block_bootstrap_means(series, block).std() for block in (1, 10))
    assert alone == pytest.approx(0.1, abs=0.005)  # 1 / sqrt(100)
    assert together > 1.5 * alone
    # A block of the whole series is the series.
    assert set(block_bootstrap_means(np.array([1.0, 2.0, 6.0]), 3)) == {3.0}
    with pytest.raises(ValueError, match="blocks of 4"):
        block_bootstrap_means(np.ones(3), 4)


def test_block_length():
    assert [block_length(n) for n in (1, 30, 1000)] == [1, 3, 10]


def test_settings(make_run):
    shared = {"trainer": {"experiment_name": "x", "nnodes": 1}, "data": {"files": ["p", "q"]}}
    other = {"trainer": {"experiment_name": "y", "nnodes": 2}, "data": {"files": ["p"], "k": {}}}
    a, b = make_run("a", [0.5], settings=shared), make_run("b", [0.5], settings=other)
    assert compare_runs(a, b)["differing"] == {
        "data.files": [["p", "q"], ["p"]],
        "data.k": ["(not there)", {}],
        "trainer.nnodes": [1, 2],
    }
    assert "trainer.nnodes: 1 in A, 2 in B" in render(compare_runs(a, b))
    assert "settings: the same" in render(compare_runs(a, a))
    assert compare_runs(a, make_run("c", [0.5]))["differing"] is None


def test_the_command(make_run, tmp_path, capsys):
    a, b = (make_run(name, [0.5] * 10, [record(9, [v] * 20)]) for name, v in (("a", 0), ("b", 1)))
    assert compare_command.main([str(a), str(b), "--json", str(tmp_path / "found.json")]) == 0
    assert "| AMC " in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rows"]["AMC"]["difference"] == 1.0 and found["n"] == [4, 4]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "is no training run: it has no metrics.jsonl"),
        ({"results.json": "{}"}, "python -m opdvr eval compare A B"),
        ({"metrics.jsonl": "torn\n{}\n"}, "line 1"),
    ],
)
def test_mistakes_are_one_line(make_run, tmp_path, capsys, files, said):
    other = tmp_path / "other"
    other.mkdir()
    for name, text in files.items():
        (other / name).write_text(text)
    assert compare_command.main([str(make_run("a", [0.5])), str(other)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and said in err and str(other) in err


def test_a_file_that_cannot_be_written(make_run, tmp_path, capsys):
    a = make_run("a", [0.5])
    missing = tmp_path / "no folder" / "found.json"
    assert compare_command.main([str(a), str(a), "--json", str(missing)]) == 2
    assert f"--json {missing} cannot be written" in capsys.readouterr().err
