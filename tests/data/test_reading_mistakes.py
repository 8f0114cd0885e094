"""What cannot be read of a user's own files: named all at once, or left out with `--skip-bad`."""

import json

import pytest

COLUMNS = ["--question-column", "question", "--answer-column", "answer"]


def test_bad_golds_are_refused_by_row_or_left_out(prepare, refused, write_jsonl, pairs):
    golds = ["1", "", None, "nan", "\\frac{1}{2", [], "2"]
    rows = [{"question": f"{i}?", "answer": gold} for i, gold in enumerate(golds)]
    path = write_jsonl("mine.jsonl", rows)
    text = refused("prepare", "user", "--source", path, "--output", "out.parquet", *COLUMNS)
    assert "mine.jsonl: 5 of 7 rows cannot be used: gold: empty text: 1 row: 1; gold: mis" in text
    for reason in (
        "missing (None): 1 row: 2",
        "text: 1 row: 3 ('nan')",
        "unbalanced braces: 1 row",
    ):
        assert reason in text
    assert "empty list: 1 row: 5; leave them out with --skip-bad" in text
    assert pairs(prepare(path, *COLUMNS, "--skip-bad")) == [("0?", "1"), ("6?", "2")]
    lines = [json.loads(line) for line in open("out.parquet.removed.jsonl")]
    assert [line["row"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["reason"].startswith("gold: ") for line in lines)


# Of 11 rows the first is good; the others are bad in eight ways, two of these twice.
BAD_LINES = [
    '{"question": "good?", "answer": "1"}',
    "{oops",
    '{"answer": "1"}',
    '{"question": "no answer?"}',
    '{"question": null, "answer": "1"}',
    '{"question": " ", "answer": "1"}',
    '{"question": "no gold?", "answer": ""}',
    "[1]",
    "oops}",
    '{"question": "again?", "answer": ""}',
    '{"question": "one", "question": "two", "answer": "1"}',
]


def test_all_bad_rows_are_named_by_reason_in_one_message(refused, tmp_path):
    (tmp_path / "mine.jsonl").write_text("\n".join(BAD_LINES))
    command = ["prepare", "user", "--source", "mine.jsonl", "--output", "out.parquet", *COLUMNS]
    text = refused(*command)
    assert "mine.jsonl: 10 of 11 rows cannot be used: " in text
    for reason in (
        "no JSON: 2 lines: 2, 9 (",
        "lacks the column question: 1 row: 2 (found: answer)",
        "lacks the column answer: 1 row: 3 (found: question)",
        "the problem is null: 1 row: 4",
        "the problem is empty: 1 row: 5",
        "gold: empty text: 2 rows: 6, 9",
        "no JSON object: 1 line: 8",
        "one key twice in an object: 1 line: 11 ('question')",
    ):
        assert f" {reason}" in text, reason
    assert text.count("--skip-bad") == 1 and "--question-column" not in text


def test_all_bad_rows_can_be_left_out_and_stand_beside_it(prepare, tmp_path, pairs):
    (tmp_path / "mine.jsonl").write_text("\n".join(BAD_LINES))
    rows = prepare("mine.jsonl", *COLUMNS, "--skip-bad")
    assert pairs(rows) == [("good?", "1")] and rows[0]["extra_info"]["index"] == "mine-0"
    lines = {line["row"]: line for line in map(json.loads, open("out.parquet.removed.jsonl"))}
    assert sorted(lines) == list(range(1, 11))
    assert lines[1]["reason"] == "no JSON" and lines[1]["content"] == "{oops"
    assert lines[3]["content"] == {"question": "no answer?"}
    record = json.load(open("out.parquet.sources.json"))
    assert record["sources"][0]["rows"] == 11 and record["rows"] == 1


def test_ten_rows_of_a_reason_are_named(refused, write_jsonl):
    rows = [{"question": "q", "answer": "\\frac{" + str(i)} for i in range(12)]
    path = write_jsonl("mine.jsonl", rows)
    text = refused("prepare", "user", "--source", path, "--output", "out.parquet", *COLUMNS)
    named = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 …"
    assert f"12 of 12 rows cannot be used: gold: unbalanced braces: 12 rows: {named} (" in text


@pytest.mark.parametrize("skip", [[], ["--skip-bad"]])
@pytest.mark.parametrize("name", ["mine.jsonl", "mine.csv"])
def test_a_column_of_no_row_asks_for_another_name(refused, tmp_path, name, skip):
    rows = ["{oops", '{"problem": "p", "answer": "1"}', '{"problem": "q", "answer": "1"}']
    csv = ["problem,answer", "p,1", "q,1"]
    (tmp_path / name).write_text("\n".join(csv if name == "mine.csv" else rows))
    command = ["prepare", "user", "--source", name, "--output", "out.parquet", *COLUMNS]
    text = refused(*command, *skip)
    assert f"{name} lacks the column question (found: problem, answer); name others with" in text


def test_bad_rows_of_csv_and_of_verls_form_are_left_out(prepare, tmp_path, write, pairs):
    (tmp_path / "mine.csv").write_text("question,answer\na?,1\nb?\nc?,1,2\n\nd?,4\n")
    assert pairs(prepare("mine.csv", *COLUMNS, "--skip-bad")) == [("a?", "1"), ("d?", "4")]
    lines = [json.loads(line) for line in open("out.parquet.removed.jsonl")]
    assert [line["content"] for line in lines] == [["b?"], ["c?", "1", "2"]]
    good = [{"role": "user", "content": "good?"}]
    prompts = [good, [], None, [{"role": "user", "content": None}], [{"role": "x", "content": "y"}]]
    path = write("mine.parquet", ["x"] * 5, prompt=prompts)
    assert pairs(prepare(path, "--skip-bad")) == [("good?", "5")]


@pytest.fixture
def refused_file(refused, tmp_path):
    def run(name, content, *options):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        columns = options or COLUMNS
        return refused("prepare", "user", "--source", name, "--output", "out.parquet", *columns)

    return run


GOOD = '{"question": "q", "answer": "1"}\n'


def test_a_bad_line_of_json_lines_is_named(refused_file):
    text = refused_file("mine.jsonl", f"{GOOD}\n{{oops\n{GOOD}")
    assert "mine.jsonl: 1 of 3 rows cannot be used: no JSON: 1 line: 3 (Expecting" in text
    assert "no JSON object: 1 line: 2" in refused_file("mine.jsonl", f"{GOOD}[1]\n")


def test_a_row_that_lacks_a_column_is_named(refused_file):
    text = refused_file("mine.jsonl", GOOD + '{"question": "q", "gold": "1"}\n')
    assert (
        "1 of 2 rows cannot be used: lacks the column answer: 1 row: 1 (found: question, gold)"
        in text
    )
    assert "--question-column" not in text and "--skip-bad" in text


def test_a_missing_column_lists_those_found(refused_file):
    text = refused_file("mine.csv", "problem,solution\np,1\n")
    assert "mine.csv lacks the column question (found: problem, solution)" in text
    assert "--question-column" in text


def test_a_line_of_csv_with_other_cells_is_named(refused_file):
    text = refused_file("a.csv", "question,answer\nq,1\nq,1,2\n")
    assert "cells: 1 line: 3 (3, where the first line has 2)" in text
    text = refused_file("a.csv", "question,answer\nq\n")
    assert "cells: 1 line: 2 (1, where the first line has 2)" in text
    assert "is no CSV" in refused_file("a.csv", 'question,answer\n"q" x,1\n')


def test_other_unreadable_files(refused_file, refused):
    assert "is no JSON" in refused_file("a.json", "[{")
    assert "no JSON object: 1 row: 0" in refused_file("a.json", "[1]")
    assert "is no parquet file" in refused_file("a.parquet", "hello")
    assert "is not UTF-8" in refused_file("a.csv", b"question,answer\nd\xe9j\xe0,1\n")
    assert "must end in one of .parquet, .jsonl" in refused_file("a.txt", "hello")
    text = refused("prepare", "user", "--source", "none.csv", "--output", "o.parquet", *COLUMNS)
    assert "file not found: none.csv" in text


def test_the_separator_and_the_names_of_csv(refused_file):
    for separator in (";", "\t"):
        text = refused_file("a.csv", f"question{separator}answer\nq{separator}1\n")
        assert f"commas between its cells, but one column {f'question{separator}answer'!r}" in text
    assert "has the column 'answer' twice" in refused_file("a.csv", "answer,question,answer\n")


def test_a_key_that_stands_twice_is_named(refused_file):
    inner = '{"question": "q", "answer": {"a": 1, "a": 2}}'
    assert "object: 1 line: 2 ('a')" in refused_file("a.jsonl", f"{GOOD}{inner}\n")
    assert "object: 1 row: 1 ('a')" in refused_file("a.json", f"[{GOOD}, {inner}]")
    deep = '{"question": "q", "answer": "1", "more": [{"b": 1, "b": 1}]}'
    assert "object: 1 line: 1 ('b')" in refused_file("a.jsonl", deep)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_half_a_character_is_named_and_left_out(data, refused_file, read, name):
    # \\ud83d\\ude00 is a whole one, in two halves.
    rows = [
        '{"question": "\\ud83d\\ude00", "answer": "1"}',
        '{"question": "q", "answer": "\\ud83d"}',
    ]
    text = f"[{','.join(rows)}]" if name == "a.json" else "\n".join(rows)
    where = "1 row: 1" if name == "a.json" else "1 line: 2"
    assert f"cannot be used: half a character: {where} (\\ud83d); " in refused_file(name, text)
    command = ["prepare", "user", "--source", name, "--output", "out.parquet", *COLUMNS]
    assert data(*command, "--skip-bad").code == 0
    (row,) = read("out.parquet")
    assert row["prompt"][0]["content"].startswith("\U0001f600 ")


def test_a_folder_is_no_file(refused, tmp_path):
    (tmp_path / "folder").mkdir()
    text = refused("prepare", "user", "--source", "folder", "--output", "o.parquet", *COLUMNS)
    assert text == "opdvr data: folder is a folder; give one file\n"


def test_damaged_pages_are_said_of_the_file(refused, write):
    path = write("a.parquet", [f"problem {i}" for i in range(200)])
    content = bytearray(path.read_bytes())
    content[40:240] = bytes(200)
    path.write_bytes(content)
    text = refused("prepare", "user", "--source", path, "--output", "out.parquet")
    assert "a.parquet is no parquet file, or a damaged one (" in text


def test_no_rows(refused_file):
    assert refused_file("a.csv", "question,answer\n") == "opdvr data: --source a.csv has no rows\n"
    text = refused_file("a.csv", "question,answer\nq,\n", *COLUMNS, "--skip-bad")
    assert "out.parquet is not written, since no row is left: 1 row: gold: empty text" in text


@pytest.mark.parametrize(
    ("problem", "flaw"),
    [
        ("", "empty: 1 row: 1"),
        ("  ", "empty: 1 row: 1"),
        (5, "no text: 1 row: 1 (5)"),
        (None, "null"),
    ],
)
def test_a_problem_that_is_no_text(refused_file, problem, flaw):
    text = refused_file("a.jsonl", GOOD + json.dumps({"question": problem, "answer": "1"}))
    assert f"a.jsonl: 1 of 2 rows cannot be used: the problem is {flaw}" in text


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
