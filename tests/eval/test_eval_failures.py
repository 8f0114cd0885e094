"""What goes wrong after the sampling has begun ends in one line with the way on."""

import errno
import json
import re
import shlex
from pathlib import Path

import pytest
from evaluating import lines_of, row, write_data

from opdvr.eval import command, sampling
from opdvr.eval.jsonl import LineWriter
from opdvr.eval.samples import SAMPLES


def last_line(capsys):
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.splitlines()[-1]


def test_a_verifier_that_fails_is_one_line_with_the_way_on(engine, arguments, tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text("def f(ground_truth, **row):\n    return {'40': 1.0}[ground_truth]\n")
    assert command.main([*arguments, "--verifier", f"{mine}:f"]) == 2
    line, out = last_line(capsys), tmp_path / "out"
    assert f"--verifier {mine}:f, sample 0 of opdvr-demo:" in line
    assert "KeyError: '10'" in line and line.endswith(f"(traceback: {out / 'verifier.log'})")
    assert 'mine.py", line 2, in f' in (out / "verifier.log").read_text()
    assert not (out / "results.json").exists() and len(lines_of(out / SAMPLES)) == 6
    mine.write_text("def f(ground_truth, **row):\n    return float(ground_truth == '40')\n")
    again = line.split("same samples with: ")[1].split(" (traceback")[0]
    assert command.main(shlex.split(again)[4:]) == 0
    assert json.loads((out / "results.json").read_text())["mean"]["avg"] == 0.25
    assert len(engine.asked) == 1


def test_not_a_number_never_reaches_the_results(engine, arguments, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def f(**row):\n    return float('nan')\n")
    assert command.main([*arguments, "--verifier", f"{tmp_path}/mine.py:f"]) == 2
    line = last_line(capsys)
    assert "returned nan" in line and "(opdvr-demo)" in line and "traceback" not in line
    assert not (tmp_path / "out" / "results.json").exists()


def test_an_impossible_verifier_is_refused_before_sampling(engine, arguments, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("async def f(**row):\n    return 1.0\n")
    assert command.main([*arguments, "--verifier", f"{tmp_path}/mine.py:f"]) == 2
    assert "asynchronous" in last_line(capsys) and engine.asked == []


def test_scoring_anew_with_another_verifier_is_said(engine, arguments, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def f(**_row):\n    return 1.0\n")
    mine, out = f"{tmp_path}/mine.py:f", str(tmp_path / "out")
    assert command.main([*arguments, "--verifier", mine]) == 0
    said = capsys.readouterr()
    assert "scored anew" not in said.err and said.out.startswith(f"Scored by {mine}\n")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["verifier"] == mine
    assert command.main(arguments) == 0
    line = f"{out} is scored anew with opdvr.verifier:compute_score (before: {mine})"
    assert line in capsys.readouterr().err
    # the forms of answers are ours: they do not go with the verifier that was begun with
    assert command.main(["score", out, "--answer-forms", "any"]) == 2
    assert "--verifier opdvr.verifier:compute_score" in last_line(capsys)
    own = ["--verifier", "opdvr.verifier:compute_score", "--answer-forms", "any"]
    assert command.main(["score", out, *own]) == 0
    assert "answer forms 'any' (before: opdvr.verifier" in capsys.readouterr().err
    assert "with answer forms 'any'" in (tmp_path / "out" / "results.md").read_text()
    # damaged results are written anew
    (tmp_path / "out" / "results.json").write_text("{")
    assert command.main(["score", out]) == 0
    assert "results.json is damaged and is written anew" in capsys.readouterr().err


def test_a_full_disk_while_sampling(engine, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sampling, "LineWriter", lambda _path: LineWriter(Path("/dev/full")))
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("opdvr eval: /dev/full cannot be written (No space")
    assert error.endswith("free space (or make it writable) and run the same command again\n")
    assert "what the engine said" not in error


def test_a_full_disk_in_a_library(arguments, monkeypatch, capsys):
    def generate(*_given):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/of_the_engine")
        yield

    monkeypatch.setattr(sampling, "generate", generate)
    assert command.main(arguments) == 2
    assert "/tmp/of_the_engine cannot be written (No space left" in last_line(capsys)
    # another mistake of the system's is no matter of space
    monkeypatch.setattr(sampling, "generate", lambda *_given: open("/no/such/file"))
    with pytest.raises(FileNotFoundError):
        command.main(arguments)


@pytest.mark.parametrize("name", ["results.json", "problems.jsonl", "scored.jsonl", "results.md"])
def test_results_that_cannot_be_written(engine, arguments, tmp_path, capsys, name):
    (tmp_path / "out" / f"{name}.tmp").mkdir(parents=True)
    assert command.main(arguments) == 2
    line = last_line(capsys)
    assert f"{tmp_path}/out/{name} cannot be written" in line and "the same command again" in line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run.json", "run.json, line 1 is damaged"),
        ("samples.jsonl", "samples.jsonl, line 1 is damaged"),
        ("judged.jsonl", "judged.jsonl, line 1 is damaged (no verdict:"),
    ],
)
def test_damaged_files_are_named(engine, arguments, tmp_path, capsys, name, message):
    assert command.main(arguments) == 0
    content = '{"key": 1}\n' if name == "judged.jsonl" else "{broken\n"
    (tmp_path / "out" / name).write_text(content)
    judge = ["--judge-model", "m", "--judge-url", "http://127.0.0.1:9/v1"]
    for line in (["score", str(tmp_path / "out"), *judge], [*arguments, *judge]):
        assert command.main(line) == 2
        assert message in last_line(capsys)


def test_rows_without_a_data_source_are_said(engine, arguments, tmp_path, capsys):
    data = write_data(tmp_path / "x.parquet", [row("12*3+4=?", "40", None)])
    (tmp_path / "mine.py").write_text("def f(**_row):\n    return 1.0\n")
    for verifier in ([], ["--verifier", f"{tmp_path}/mine.py:f"]):
        given = [*arguments, "--data", str(data), "--output", str(tmp_path / f"o{len(verifier)}")]
        assert command.main([*given, *verifier]) == 0
        said = capsys.readouterr()
        assert len(re.findall("without data_source.* None", said.err)) == 1
        assert "| None " in said.out


@pytest.mark.parametrize("name", ["mine.csv", "mine.jsonl"])
def test_other_files_than_the_schemas_get_a_remedy(engine, arguments, tmp_path, capsys, name):
    (tmp_path / name).write_text("question,answer\n1+1=?,2\n")
    assert command.main([*arguments, "--data", str(tmp_path / name)]) == 2
    line = last_line(capsys)
    assert name in line and "prepare user" in line and engine.asked == []
