"""A user's own files, through `opdvr data prepare user`: every format and its mistakes."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opdvr.data.text import SUFFIX

COLUMNS = ["--question-column", "question", "--answer-column", "answer"]


def test_json_lines(prepare, write_jsonl, pairs):
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
def test_csv_with_quotes_commas_and_line_breaks(prepare, tmp_path, bom, pairs):
    text = f'{bom}question,answer,note\r\n"What is\n""1,000"" + 1?",1001,x\r\nTwo?,"1,000",\r\n'
    (tmp_path / "mine.csv").write_bytes(text.encode())
    assert pairs(prepare("mine.csv", *COLUMNS)) == [
        ('What is\n"1,000" + 1?', "1001"),
        ("Two?", "1,000"),
    ]


@pytest.mark.parametrize("before", ["", "\n  "])
@pytest.mark.parametrize("as_list", [True, False])
def test_json(prepare, tmp_path, as_list, before, pairs):
    rows = [{"question": f"{i}?", "answer": i} for i in range(3)]
    text = json.dumps(rows) if as_list else "\n".join(map(json.dumps, rows))
    (tmp_path / "mine.json").write_text(before + text)
    assert pairs(prepare("mine.json", *COLUMNS)) == [("0?", "0"), ("1?", "1"), ("2?", "2")]


def test_parquet_with_nested_columns(prepare, tmp_path, pairs):
    table = pa.table(
        {"task": [{"text": "one?", "solution": {"value": 1.5}}], "a.b": ["ignored"]},
    )
    pq.write_table(table, tmp_path / "mine.parquet")
    nested = ["--question-column", "task.text", "--answer-column", "task.solution.value"]
    assert pairs(prepare("mine.parquet", *nested)) == [("one?", "1.5")]


def test_a_dot_in_a_name_is_no_path(prepare, write_jsonl, pairs):
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


def test_names_with_dots_are_reached_through_structs(prepare, write_jsonl, pairs):
    row = {"a": {"x": 1}, "a.b": {"c.d": "deep?"}, "e": {"f": {"g": "5"}}}
    path = write_jsonl("mine.jsonl", [row, {"a.b": {"c.d": "two?"}, "e": {"f": {"g": "7"}}}])
    rows = prepare(path, "--question-column", "a.b.c.d", "--answer-column", "e.f.g")
    assert pairs(rows) == [("deep?", "5"), ("two?", "7")]


def test_names_of_data_that_are_numbers(prepare, write_jsonl):
    message = {"role": "user", "content": "one?"}
    row = {"prompt": [message], "data_source": 5, "reward_model": {"ground_truth": "1"}}
    assert prepare(write_jsonl("mine.jsonl", [row]))[0]["data_source"] == "5"


def test_true_and_false_become_text_and_a_line_says_so(data, read, write_jsonl, pairs):
    rows = [{"question": f"{i}?", "answer": gold} for i, gold in enumerate((True, False, "1"))]
    command = ["prepare", "user", "--source", write_jsonl("mine.jsonl", rows), *COLUMNS]
    ran = data(*command, "--output", "out.parquet")
    assert pairs(read("out.parquet")) == [("0?", "True"), ("1?", "False"), ("2?", "1")]
    assert "2 gold answers true or false: written as the text True or False\n" in ran.out


def test_deduplicate_and_against(prepare, write, write_jsonl, pairs):
    test = write("test.parquet", ["two?"])
    rows = [{"question": q, "answer": "1"} for q in ("one?", "One", "two", "three?")]
    path = write_jsonl("mine.jsonl", rows)
    assert len(prepare(path, *COLUMNS)) == 4
    kept = prepare(path, *COLUMNS, "--deduplicate", "--against", test)
    assert pairs(kept) == [("one?", "1"), ("three?", "1")]
