"""Two evaluations against each other, by hand."""

import json

import pytest
from evaluating import settings

from opdvr.eval.compare import compare_folders, render
from opdvr.eval.jsonl import write_lines
from opdvr.eval.results import MEAN
from opdvr.eval.statistics import RESAMPLES
from opdvr.verifier.custom import OWN


def folder(path, averages, n=4, verifier=OWN, answer_forms="boxed"):
    """A scored evaluation: {(source, row): avg}."""
    path.mkdir()
    results = {"model": path.name, "settings": settings(n=n)}
    results |= {"verifier": verifier, "answer_forms": answer_forms}
    (path / "results.json").write_text(json.dumps(results))
    lines = [
        {
            "key": f"{source}:d:{row}",
            "data_source": source,
            "avg": avg,
            "question": f"{row}\n+1",
            "gold": "1",
        }
        for (source, row), avg in averages.items()
    ]
    write_lines(path / "problems.jsonl", lines)
    return path


def test_differences_by_benchmark_and_over_them(tmp_path):
    a = folder(tmp_path / "a", {("x", 0): 0.0, ("x", 1): 0.5, ("x", 2): 0.5, ("y", 0): 0.25})
    b = folder(tmp_path / "b", {("y", 0): 0.5, ("x", 2): 0.25, ("x", 1): 0.5, ("x", 0): 1.0})
    found = compare_folders(a, b)
    # x: (1.0 + 0 - 0.25) / 3 = 0.25; y: 0.25; the mean over benchmarks 0.25
    assert found["rows"]["x"]["difference"] == pytest.approx(0.25)
    assert found["rows"]["y"]["difference"] == pytest.approx(0.25)
    assert found["rows"][MEAN]["difference"] == pytest.approx(0.25)
    assert found["rows"]["x"]["before"] == pytest.approx(1 / 3)
    assert [p["key"] for p in found["problems"]] == ["x:d:0", "y:d:0", "x:d:1", "x:d:2"]
    low, high = found["rows"]["x"]["difference_95"]
    assert low < 0.25 < high
    text = render(found, show=1)
    assert "2 better, 1 worse, 1 the same" in text
    assert "0.000 -> 1.000  x:d:0  0 +1" in text and "0.500 -> 0.250  x:d:2" in text
    assert json.loads(render(found, show=1, as_json=True))["rows"]["y"]["problems"] == 1


def test_pairing_makes_a_steady_gain_certain(tmp_path):
    # averages differ widely between problems, but b is better by 0.1 on each
    one = {("x", i): i / 20 for i in range(18)}
    a = folder(tmp_path / "a", one)
    b = folder(tmp_path / "b", {key: value + 0.1 for key, value in one.items()})
    row = compare_folders(a, b)["rows"]["x"]
    assert row["difference_95"] == pytest.approx((0.1, 0.1))
    assert row["p"] == pytest.approx(2 / (RESAMPLES + 1))
    # the other way round: the same with the other sign
    back = compare_folders(b, a)["rows"]["x"]
    assert back["difference"] == pytest.approx(-0.1) and back["p"] == row["p"]


def test_a_folder_against_itself(tmp_path):
    a = folder(tmp_path / "a", {("x", i): i / 8 for i in range(8)})
    found = compare_folders(a, a)
    assert found["rows"]["x"]["difference_95"] == (0.0, 0.0)
    assert found["rows"]["x"]["p"] == 1.0
    assert "0 better, 0 worse, 8 the same" in render(found, show=3)


def test_what_does_not_pair_is_said_or_refused(tmp_path):
    a = folder(tmp_path / "a", {("x", 0): 0.0, ("x", 1): 1.0, ("x", 2): 1.0})
    b = folder(tmp_path / "b", {("x", 1): 1.0, ("x", 7): 0.0}, n=16)
    found = compare_folders(a, b)
    assert found["unpaired"] == {"before": 2, "after": 1}
    assert found["rows"]["x"]["problems"] == 1
    text = render(found, show=1)
    assert "2 problems of A, 1 of B" in text and "n is 4 in A and 16 in B" in text
    with pytest.raises(ValueError, match="no problem in common"):
        compare_folders(a, folder(tmp_path / "c", {("y", 0): 1.0}))
    (tmp_path / "d").mkdir()
    with pytest.raises(ValueError, match="no results.json"):
        compare_folders(a, tmp_path / "d")


def test_other_verifiers_or_answer_forms_are_said(tmp_path):
    averages = {("x", 0): 1.0}
    a, b = folder(tmp_path / "a", averages), folder(tmp_path / "b", averages)
    assert "alike" not in render(compare_folders(a, b), show=1)
    c = folder(tmp_path / "c", averages, answer_forms="any")
    line = f"not scored alike: A by {OWN}, B by {OWN} with answer forms 'any'"
    assert line in render(compare_folders(a, c), show=1).splitlines()
    d = folder(tmp_path / "d", averages, verifier="mine.py:f")
    assert f"A by mine.py:f, B by {OWN}" in render(compare_folders(d, a), show=1)
    assert compare_folders(d, a)["before"]["verifier"] == "mine.py:f"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("results.json", '{\n"model": ', r"results\.json, line 2 is damaged"),
        ("results.json", "[]", "no JSON object"),
        ("results.json", "\udcff", "is damaged .*decode"),
        ("results.json", '{"model": "x", "settings": {}}', "lacks verifier, answer_forms"),
        (
            "results.json",
            '{"model": "x", "settings": {}, "verifier": "v", "answer_forms": "any"}',
            "settings are not whole",
        ),
        ("problems.jsonl", "{}\n{broken\n", r"problems\.jsonl, line 1 is damaged .it lacks key"),
        ("problems.jsonl", "{broken\n", r"problems\.jsonl, line 1 is damaged"),
        ("problems.jsonl", None, "problems.jsonl is missing"),
    ],
)
def test_damaged_results_are_named_with_the_remedy(tmp_path, name, content, message):
    a = folder(tmp_path / "a", {("x", 0): 1.0})
    b = folder(tmp_path / "b c", {("x", 0): 1.0})
    if content is None:
        (b / name).unlink()
    else:
        (b / name).write_bytes(content.encode("utf-8", errors="surrogateescape"))
    remedy = f"write it anew with: python -m opdvr eval score '{b}'"
    with pytest.raises(ValueError, match=f"{message}.*; {remedy}$"):
        compare_folders(a, b)
