"""A user's own files, through `opdvr data prepare user`: every format and its mistakes."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opdvr.data.text import SUFFIX

COLUMNS = ["--question-column", "question", "--answer-column", "answer"]


@pytest.fixture
def prepare(data, read):
    """prepare(source, ...): the rows that `prepare user` makes of a file."""

    def run(source, *options):
        ran = data("prepare", "user", "--source", source, "--output", "out.parquet", *options)
        assert ran.code == 0, ran.err
        return read("out.parquet")

    return run


def pairs(rows):
    return [
        (
            row["prompt"][-1]["content"].removesuffix(f" {SUFFIX}"),
            row["reward_model"]["ground_truth"],
        )
        for row in rows
    ]


def test_json_lines(prepare, write_jsonl):
    path = write_jsonl(
        "mine.jsonl", [{"question": "one?", "answer": "1"}, {"question": "two?", "answer": 2}]
    )
    rows = prepare(path, *COLUMNS)
    assert pairs(rows) == [("one?", "1"), ("two?", "2")]
    assert rows[1]["data_source"] == "mine"
    assert rows[1]["extra_info"] == {"index": "mine-1", "split": "train"}


def test_names_and_split(prepare, write_jsonl):
    path = write_jsonl("mine.jsonl", [{"question": "one?", "answer": "1"}])
    (row,) = prepare(path, *COLUMNS, "--data-source", "Mine", "--split", "test")
    assert row["data_source"] == "Mine" and row["extra_info"] == {
        "index": "Mine-0",
        "split": "test",
    }


@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_csv_with_quotes_commas_and_line_breaks(prepare, tmp_path, bom):
    text = f'{bom}question,answer,note\r\n"What is\n""1,000"" + 1?",1001,x\r\nTwo?,"1,000",\r\n'
    (tmp_path / "mine.csv").write_bytes(text.encode())
    assert pairs(prepare("mine.csv", *COLUMNS)) == [
        ('What is\n"1,000" + 1?', "1001"),
        ("Two?", "1,000"),
    ]


@pytest.mark.parametrize("as_list", [True, False])
def test_json(prepare, tmp_path, as_list):
    rows = [{"question": f"{i}?", "answer": i} for i in range(3)]
    text = json.dumps(rows) if as_list else "\n".join(map(json.dumps, rows))
    (tmp_path / "mine.json").write_text(text)
    assert pairs(prepare("mine.json", *COLUMNS)) == [("0?", "0"), ("1?", "1"), ("2?", "2")]


def test_parquet_with_nested_columns(prepare, tmp_path):
    table = pa.table(
        {"task": [{"text": "one?", "solution": {"value": 1.5}}], "a.b": ["ignored"]},
    )
    pq.write_table(table, tmp_path / "mine.parquet")
    nested = ["--question-column", "task.text", "--answer-column", "task.solution.value"]
    assert pairs(prepare("mine.parquet", *nested)) == [("one?", "1.5")]


def test_a_dot_in_a_name_is_no_path(prepare, write_jsonl):
    path = write_jsonl("mine.jsonl", [{"a.b": "dotted?", "a": {"b": "nested"}, "answer": "1"}])
    rows = prepare(path, "--question-column", "a.b", "--answer-column", "answer")
    assert pairs(rows) == [("dotted?", "1")]


def test_verls_form_with_a_system_message_and_its_own_names(prepare, write):
    prompt = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one?"}]]
    path = write("mine.parquet", [""], prompt=prompt, extra_info=[{"index": 7}])
    (row,) = prepare(path)
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == f"one? {SUFFIX}"
    assert row["data_source"] == "source" and row["extra_info"]["index"] == "7"


def test_files_of_two_schemas_join_once_rewritten(data, write, tmp_path):
    files = [
        write("a.parquet", ["one"], extra_info=[{"index": 1}]),
        write("b.parquet", ["two"], extra_info=[{"index": "b"}]),
    ]
    assert data("check", *files).code == 1
    for number, file in enumerate(files):
        assert data("prepare", "user", "--source", file, "--output", f"{number}.parquet").code == 0
    assert data("check", "0.parquet", "1.parquet").code == 0


def test_deduplicate_and_against(prepare, write, write_jsonl):
    test = write("test.parquet", ["two?"])
    rows = [{"question": q, "answer": "1"} for q in ("one?", "One", "two", "three?")]
    path = write_jsonl("mine.jsonl", rows)
    assert len(prepare(path, *COLUMNS)) == 4
    kept = prepare(path, *COLUMNS, "--deduplicate", "--against", test)
    assert pairs(kept) == [("one?", "1"), ("three?", "1")]


# Mistakes


def test_bad_golds_are_refused_by_row_or_left_out(prepare, refused, write_jsonl):
    golds = ["1", "", None, "nan", "\\frac{1}{2", [], "2"]
    rows = [{"question": f"{i}?", "answer": gold} for i, gold in enumerate(golds)]
    path = write_jsonl("mine.jsonl", rows)
    text = refused("prepare", "user", "--source", path, "--output", "out.parquet", *COLUMNS)
    assert "mine.jsonl: 5 gold answers cannot be used" in text and "rows 1, 2, 3, 4, 5 " in text
    assert pairs(prepare(path, *COLUMNS, "--skip-bad")) == [("0?", "1"), ("6?", "2")]
    lines = [json.loads(line) for line in open("out.parquet.removed.jsonl")]
    assert [line["row"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["reason"].startswith("gold: ") for line in lines)


@pytest.fixture
def refused_file(refused, tmp_path):
    def run(name, content, *options):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        columns = options or COLUMNS
        return refused("prepare", "user", "--source", name, "--output", "out.parquet", *columns)

    return run


GOOD = '{"question": "q", "answer": "1"}\n'


def test_a_bad_line_of_json_lines_is_named(refused_file):
    assert "mine.jsonl: line 3 is no JSON" in refused_file("mine.jsonl", f"{GOOD}\n{{oops\n{GOOD}")
    assert "line 2 is no JSON object" in refused_file("mine.jsonl", f"{GOOD}[1]\n")


def test_a_row_that_lacks_a_column_is_named(refused_file):
    text = refused_file("mine.jsonl", GOOD + '{"question": "q", "gold": "1"}\n')
    assert "mine.jsonl: row 1 lacks the column answer (found: question, gold)" in text


def test_a_missing_column_lists_those_found(refused_file):
    text = refused_file("mine.csv", "problem,solution\np,1\n")
    assert "mine.csv lacks the column question (found: problem, solution)" in text
    assert "--question-column" in text


def test_a_line_of_csv_with_other_cells_is_named(refused_file):
    assert "line 3 has not the 2 cells" in refused_file("a.csv", "question,answer\nq,1\nq,1,2\n")
    assert "line 2 has not the 2 cells" in refused_file("a.csv", "question,answer\nq\n")
    assert "is no CSV" in refused_file("a.csv", 'question,answer\n"q" x,1\n')


def test_other_unreadable_files(refused_file, refused):
    assert "is no JSON" in refused_file("a.json", "[{")
    assert "row 0 is no JSON object" in refused_file("a.json", "[1]")
    assert "is no parquet file" in refused_file("a.parquet", "hello")
    assert "is not UTF-8" in refused_file("a.csv", b"question,answer\nd\xe9j\xe0,1\n")
    assert "must end in one of .parquet, .jsonl" in refused_file("a.txt", "hello")
    text = refused("prepare", "user", "--source", "none.csv", "--output", "o.parquet", *COLUMNS)
    assert "file not found: none.csv" in text


def test_no_rows(refused_file):
    assert "no row is left" in refused_file("a.csv", "question,answer\n")


@pytest.mark.parametrize("problem", ["", "  ", 5, None])
def test_a_problem_that_is_no_text(refused_file, problem):
    text = refused_file("a.jsonl", GOOD + json.dumps({"question": problem, "answer": "1"}))
    assert "a.jsonl: row 1 (the first row is 0): the problem is no text" in text


def test_prompts_that_are_no_messages(refused_file):
    for prompt, reason in (
        ("text", "is no list of messages"),
        ([], "is no list of messages"),
        ([{"role": "assistant", "content": "x"}], "last message of prompt is not the user's"),
    ):
        row = {"prompt": prompt, "reward_model": {"ground_truth": "1"}}
        assert reason in refused_file("a.jsonl", json.dumps(row), "--split", "train")


def test_one_column_option_alone(refused, write_jsonl):
    path = write_jsonl("a.jsonl", [{"question": "q", "answer": "1"}])
    command = ["prepare", "user", "--source", path, "--output", "o.parquet"]
    assert "go together" in refused(*command, "--answer-column", "answer")
