"""`opdvr diagnose` on the embedded pairs, and what it refuses."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from diagnosing import MODELS, ROOT

from opdvr.diagnose import rollouts

SMALL = ("--prompts", 12, "--n", 4, "--max-tokens", 36)


@pytest.mark.parametrize(
    ("student", "teacher", "verdict"),
    [
        ("student", "teacher-good", "go"),
        ("student-other-style", "teacher-good", "cold-start first"),
        ("teacher-good", "teacher-good", "teacher adds nothing new"),
        ("student", "teacher-faulty", "go"),
    ],
)
def test_the_embedded_pairs(diagnose, tmp_path, student, teacher, verdict):
    ran = diagnose(student, teacher, *SMALL, "--json", tmp_path / "found.json")
    assert ran.code == 0, ran.err
    assert f"\nverdict: {verdict}\n" in ran.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {"verdict", "reasons", "numbers", "settings"}
    assert found["verdict"] == verdict
    numbers = found["numbers"]
    assert numbers["student_responses"] == numbers["teacher_responses"] == 48
    assert numbers["ends"]["finished"] >= 46
    assert 0 <= numbers["agreement"] <= 1 and 0 <= numbers["overlap_ratio"] <= 1
    # The shares of the thirds make the whole.
    thirds = [numbers["by_position"][f"{name} third"] for name in ("first", "middle", "last")]
    assert sum(part["tokens"] for part in thirds) == numbers["tokens"]
    # The student's own tokens cannot be likelier to another model, on average.
    assert numbers["log_ratio_mean"] <= 1e-6


def test_the_order_of_completions_does_not_matter(diagnose, monkeypatch, tmp_path):
    diagnose("student", "teacher-good", *SMALL, "--json", tmp_path / "one.json")
    backwards = rollouts.generate

    def forwards(*given, **named):
        return reversed(list(backwards(*given, **named)))

    monkeypatch.setattr(rollouts, "generate", forwards)
    diagnose("student", "teacher-good", *SMALL, "--json", tmp_path / "other.json")
    assert (tmp_path / "one.json").read_text() == (tmp_path / "other.json").read_text()


def test_other_ids_are_told_without_a_rollout(diagnose, monkeypatch, tmp_path):
    folder = shutil.copytree(MODELS / "teacher-good", tmp_path / "permuted")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    digits = [token for token in vocabulary if token.isdigit()]
    ids = [vocabulary[token] for token in digits]
    vocabulary |= dict(zip(digits, ids[1:] + ids[:1], strict=True))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    def never(*_given, **_named):
        raise AssertionError("nothing is to be sampled")

    monkeypatch.setattr(rollouts, "generate", never)
    ran = diagnose("student", folder, "--json", tmp_path / "found.json")
    assert ran.code == 0
    assert "verdict: incompatible" in ran.out
    assert "do not distill token by token: id 7 is '0' in the student and '9'" in ran.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["numbers"]["tokenizer"]["difference"].startswith("id 7 ")


def test_another_template_is_shown(diagnose, tmp_path):
    folder = shutil.copytree(MODELS / "teacher-good", tmp_path / "other")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template.replace("<|user|>", "(<|user|>"))
    ran = diagnose("student", folder, *SMALL)
    assert ran.code == 0, ran.err
    assert "from character 0: student '<|user|>" in ran.out and "'(<|user|>" in ran.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--n", 0), "--n 0: give 1 or more"),
        (("--prompts", 0), "--prompts 0: give 1 or more"),
        (("--temperature", 0), "--temperature 0.0: give more than 0"),
        (("--min-gain", "nan"), "--min-gain nan: give a number"),
        (("--json", "."), "--json . is a folder"),
        (("--verifier", "nothing.py:f"), "--verifier nothing.py:f"),
        (("--bad",), "unrecognized arguments: --bad"),
    ],
)
def test_mistakes_are_one_line(diagnose, options, said):
    ran = diagnose("student", "teacher-good", *options)
    assert ran.code == 2
    assert said in ran.err and ran.err.count("\n") == 1, ran.err


def test_models_and_data_that_are_not_there(diagnose, tmp_path):
    ran = diagnose("student", "/nowhere/teacher")
    assert ran.code == 2 and "TEACHER: model folder not found: /nowhere/teacher" in ran.err
    ran = diagnose("student", "teacher-good", file=tmp_path / "no.parquet")
    assert ran.code == 2 and "no.parquet" in ran.err and ran.err.count("\n") == 1
    bare = shutil.copytree(MODELS / "teacher-good", tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    ran = diagnose("student", bare)
    assert ran.code == 2 and "TEACHER: its tokenizer has no chat template" in ran.err


@pytest.mark.slow
def test_with_the_engine(tmp_path, data):
    pytest.importorskip("vllm")
    found = tmp_path / "found.json"
    pair = [MODELS / "student", MODELS / "teacher-good", data]
    small = ["--prompts", 8, "--max-tokens", 36, "--device", "cpu", "--json", found]
    ran = subprocess.run(
        [sys.executable, "-m", "opdvr", "diagnose", *map(str, [*pair, *small])],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(found.read_text())["verdict"] == "go"
    # What the engines print is in a log of theirs.
    assert all(line.startswith("opdvr diagnose: ") for line in ran.stderr.splitlines())
    assert ran.stdout.startswith("student ") and "\nverdict: go\n" in ran.stdout
