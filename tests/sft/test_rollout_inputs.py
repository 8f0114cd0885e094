"""Options and prompts of a rollout: what is read, and what is refused in one line."""

import dataclasses
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rolling import ROOT, row, write_data

from opdvr.sft.rejection import KEEP_ALL, Rejection
from opdvr.sft.rollout_options import read_rollout_options
from opdvr.sft.rollout_prompts import load_prompts

LEAST = ["--model", "m", "--data", "x.parquet", "--output", "o"]


def test_defaults_are_the_published_ones():
    options = read_rollout_options(LEAST)
    rules = options.rejection
    assert (options.n, options.attempts, options.max_tokens) == (1, 3, 8192)
    assert (options.temperature, options.top_p, options.val_fraction) == (0.7, 0.95, 0.05)
    assert (rules.line_chars, rules.line_times) == (20, 5)
    assert (rules.chunk_chars, rules.chunk_times) == (100, 3)
    assert (rules.block_chars, rules.block_times, rules.block_over) == (50, 3, 5000)
    assert rules.truncated and rules.box and rules.correct


def test_filters_as_options():
    given = ["--no-require-box", "--no-reject-truncated", "--no-require-correct"]
    options = read_rollout_options([*LEAST, *given, "--line-times", "0", "--block-chars", "60"])
    expected = Rejection(truncated=False, box=False, correct=False, line_times=0, block_chars=60)
    assert options.rejection == expected
    assert read_rollout_options([*LEAST, "--keep-all"]).rejection == KEEP_ALL


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--n", "0"], "--n 0: give 1 or more"),
        (["--attempts", "0"], "--attempts 0: give 1 or more"),
        (["--temperature", "0", "--n", "2"], "--n 2 responses would be copies"),
        (["--temperature", "nan"], "--temperature nan: give 0 or more"),
        (["--top-p", "0"], "--top-p 0.0: give more than 0"),
        (["--chunk-times", "1"], "--chunk-times 1: give 2 or more, or 0 for no such rule"),
        (["--line-chars", "0"], "--line-chars 0: give 1 or more"),
        (["--block-over", "-1"], "--block-over -1: give 0 or more"),
        (["--val-fraction", "1"], "--val-fraction 1.0: give 0 or more, below 1"),
        (["--verifier-limit", "0"], "--verifier-limit 0.0: give seconds above 0"),
        (["--limit", "0"], "--limit 0: give 1 or more"),
        (["--atempts", "3"], "unrecognized arguments: --atempts"),
    ],
)
def test_mistakes_name_the_option(given, said):
    with pytest.raises(ValueError) as mistake:
        read_rollout_options([*LEAST, *given])
    assert said in str(mistake.value) and "\n" not in str(mistake.value)


def load(path, **changed):
    own_verifier = changed.pop("own_verifier", True)
    options = dataclasses.replace(read_rollout_options(LEAST), data=(str(path),), **changed)
    return load_prompts(options, own_verifier, boxes_only=False)


def test_verls_schema_is_read_as_the_evaluation_reads_it(tmp_path):
    path = write_data(tmp_path / "x.parquet", [row("a"), row("b", "1", "other"), row("c")])
    problems, files, warnings = load(path)
    assert [problem.gold for problem in problems] == ["40", "1", "40"]
    assert len(files) == 1 and warnings == []
    assert [p.question for p in load(path, limit=1)[0]] == ["a", "b"]


def test_text_and_golds_in_columns_of_ones_own(tmp_path):
    path = tmp_path / "mine.parquet"
    contents = {"q": ["1+1=?", "2+2=?"], "more": [{"gold": "2"}, {"gold": "4"}]}
    pq.write_table(pa.table(contents), path)
    problems, _, warnings = load(path, prompt_column="q", answer_column="more.gold")
    assert [p.messages for p in problems] == [
        [{"role": "user", "content": "1+1=?"}],
        [{"role": "user", "content": "2+2=?"}],
    ]
    assert [p.gold for p in problems] == ["2", "4"] and warnings == []
    assert [p.data_source for p in problems] == ["mine", "mine"]


def test_text_beside_verls_golds(tmp_path):
    path = tmp_path / "x.parquet"
    golds = [{"ground_truth": "2"}]
    pq.write_table(pa.table({"prompt": ["a"], "data_source": ["s"], "reward_model": golds}), path)
    (problem,), _, warnings = load(path)
    assert (problem.data_source, problem.gold, warnings) == ("s", "2", [])
    assert problem.messages == [{"role": "user", "content": "a"}]


def test_without_golds_it_is_said(tmp_path):
    path = tmp_path / "mine.parquet"
    pq.write_table(pa.table({"prompt": ["1+1=?"]}), path)
    problems, _, (warning,) = load(path)
    assert problems[0].gold is None
    assert "no column reward_model.ground_truth" in warning and "not judged" in warning


@pytest.mark.parametrize(
    ("contents", "changed", "said"),
    [
        ({"q": ["a"]}, {}, "has no column prompt (found: q); name the column of prompts with"),
        ({"q": ["a", " "]}, {"prompt_column": "q"}, "a blank q: 1 row: 1 (the first row is 0)"),
        ({"q": [1]}, {"prompt_column": "q"}, "column q holds int64; name one of text"),
        (
            {"prompt": ["a"], "g": ["1"]},
            {"answer_column": "h"},
            "has no column h (found: prompt, g); name the column of gold answers",
        ),
        (
            {"prompt": ["a", "b"], "g": ["1", None]},
            {"answer_column": "g"},
            "g of row 1 cannot be used",
        ),
    ],
)
def test_bad_columns_are_named(tmp_path, contents, changed, said):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(contents), path)
    with pytest.raises(ValueError) as mistake:
        load(path, **changed)
    assert said in str(mistake.value) and str(path) in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_golds_may_be_anything_where_nobody_reads_them(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"prompt": ["a"], "g": [None]}), path)
    assert load(path, answer_column="g", own_verifier=False)[0][0].gold is None


def test_a_prompt_that_ends_with_an_answer_is_refused(tmp_path):
    bad = row("a")
    bad["prompt"].append({"role": "assistant", "content": "b"})
    path = write_data(tmp_path / "x.parquet", [row("c"), bad])
    with pytest.raises(ValueError, match="row 1 of opdvr-demo ends with a message of role 'assis"):
        load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="not found.*nowhere.parquet"):
        load(tmp_path / "nowhere.parquet", prompt_column="q")


def test_imports_are_light():
    code = (
        "import sys, opdvr.sft.rollout_command; "
        "heavy = {'torch', 'vllm', 'ray', 'transformers', 'verl'} & set(sys.modules); "
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
