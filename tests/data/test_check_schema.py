"""Files, columns and prompts that cannot be used, as `opdvr data check` finds them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opdvr.data.rows import ROW_SCHEMA
from opdvr.data.table import prompt_flaws, role_flaws
from opdvr.data.text import SUFFIX

PROMPT = ROW_SCHEMA.field("prompt").type


def test_raw_columns_are_one_line_with_the_remedy(found, tmp_path):
    raw = pa.table({"problem_idx": [1], "problem": ["p"], "answer": ["5"]})
    pq.write_table(raw, tmp_path / "raw.parquet")
    (line,) = found("raw.parquet")
    assert line.startswith("raw.parquet: schema: lacks the columns prompt, data_source, reward_mod")
    assert "(found: problem_idx, problem, answer)" in line
    assert "opdvr data prepare user --source raw.parquet" in line


@pytest.mark.parametrize("content", ["hello", ""])
def test_a_file_that_cannot_be_read(found, write, tmp_path, content):
    write("good.parquet", ["one"])
    (tmp_path / "bad.parquet").write_text(content)
    (line,) = found("bad.parquet", "good.parquet")
    assert line.startswith("bad.parquet: schema: is no parquet file")


def conversation(*messages):
    return [{"role": role, "content": content} for role, content in messages]


GOOD = conversation(("user", "q \\boxed{}"))
REMEDY = "leave such rows out: python -m opdvr data prepare user --source a.parquet --skip-bad"


def test_prompts_that_cannot_be_used_are_named_all_at_once(data, found, write, read):
    prompts = [
        conversation(("user", "one \\boxed{}")),
        [],
        None,
        conversation(("system", None), ("user", "q")),
        conversation(("developer", "x"), ("user", "q")),
        conversation(("user", "q"), ("assistant", "a")),
        conversation(("system", "q")),
        conversation(("user", " ")),
        conversation(("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "two")),
    ]
    write("a.parquet", [""] * 9, ["1"] * 8 + [""], prompt=prompts)
    ran = data("check", "a.parquet")
    assert ran.code == 1
    for finding in (
        "schema: 2 rows: 1, 2: a prompt without messages",
        "schema: 1 row: 3: a message without content",
        "schema: 1 row: 4: a role that is none of system, user, assistant, tool",
        "schema: 1 row: 5: the last message is not the user's",
        "schema: 1 row: 6: no message is the user's",
        "schema: 1 row: 7: the last message is blank",
    ):
        assert f"a.parquet: {finding}; {REMEDY} " in ran.out, finding
    # The rest is checked by its own row numbers, and the remedy helps.
    assert "a.parquet: gold: 1 row: 8: " in ran.out and ": note: 1 row: 8: " in ran.out
    remedy = ["--skip-bad", "--output", "new.parquet"]
    assert data("prepare", "user", "--source", "a.parquet", *remedy).code == 0
    assert len(read("new.parquet")) == 1 and found("new.parquet") == []


def test_a_file_in_which_every_prompt_is_bad(found, write):
    (line,) = found(write("a.parquet", ["", ""], prompt=[conversation(("user", None))] * 2))
    assert ": schema: 2 rows: 0, 1: a message without content; leave" in line


@pytest.mark.parametrize(
    "message", [{"role": ["user"], "content": "x"}, {"role": "u", "content": 5}]
)
def test_roles_and_contents_of_other_types(found, write, message):
    (line,) = found(write("a.parquet", [""], prompt=[[message]]))
    assert ": schema: has a column prompt of list<" in line


def test_messages_of_parts_are_taken(found, write):
    parts = [{"type": "text", "text": "x \\boxed{}"}]
    assert found(write("a.parquet", [""], prompt=[[{"role": "user", "content": parts}]])) == []


def test_rows_of_a_test_file_keep_their_numbers_past_bad_ones(found, write):
    write("train.parquet", ["own", "shared"])
    prompt = [[], conversation(("user", f"shared {SUFFIX}"))]
    write("test.parquet", ["", ""], prompt=prompt)
    lines = found("train.parquet", "--against", "test.parquet")
    assert lines[0].startswith("test.parquet: schema: 1 row: 0: a prompt without messages")
    assert "train.parquet: overlap, exact: 1 row: 1: the same problem as row 1 of" in lines[1]


def test_several_chunks_of_prompts():
    chunks = [[GOOD, [], GOOD], [GOOD, None], [conversation(("user", None))]]
    column = pa.chunked_array([pa.array(chunk, PROMPT) for chunk in chunks])
    assert prompt_flaws(column) == {
        "a prompt without messages": [1, 4],
        "a message without content": [5],
    }
    # A slice starts in the middle of the values of its chunk.
    assert prompt_flaws(column.slice(1)) == {
        "a prompt without messages": [0, 3],
        "a message without content": [4],
    }
    asked = conversation(("assistant", "a"), ("user", "b"))
    answered = asked[::-1]
    chunks = [[asked, answered, asked], [answered, answered[1:]]]
    column = pa.chunked_array([pa.array(chunk, PROMPT) for chunk in chunks])
    last, none = "the last message is not the user's", "no message is the user's"
    assert role_flaws(column) == {none: [4], last: [1, 3]}
    assert role_flaws(column.slice(1)) == {none: [3], last: [0, 2]}


def test_columns_and_rows_of_one_file_are_said_together(found, write, tmp_path):
    table = {"prompt": [GOOD, []], "reward_model": [{"ground_truth": "1"}] * 2}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    lines = found("a.parquet")
    assert lines[0].startswith("a.parquet: schema: lacks the column data_source (found: prompt, r")
    assert lines[0].endswith(
        "prepare user --source a.parquet --data-source NAME --output NEW.parquet"
    )
    assert lines[1].startswith("a.parquet: schema: 1 row: 1: a prompt without messages; leave")
    pq.write_table(pa.table({"prompt": ["q"], "answer": ["1"]}), tmp_path / "b.parquet")
    lines = found("b.parquet")
    assert "lacks the columns data_source, reward_model" in lines[0] and len(lines) == 2
    assert "has a column prompt of string, which must be a list of messages" in lines[1]
    assert all("--question-column …" in line for line in lines)
    pq.write_table(pa.table({"prompt": [GOOD], "data_source": ["s"]}), tmp_path / "c.parquet")
    (line,) = found("c.parquet")
    assert "add the gold answers" in line and "prepare" not in line


@pytest.mark.parametrize("name", ["a.csv", "a b.jsonl"])
def test_formats_that_verl_does_not_read(found, tmp_path, name):
    (tmp_path / name).write_text("x")
    (line,) = found(name)
    quoted = name if " " not in name else f"'{name}'"
    assert line == (
        f"{name}: schema: verl reads parquet and JSON rows (.parquet, .json); make a parquet: "
        f"python -m opdvr data prepare user --source {quoted} --question-column … "
        "--answer-column … --output NEW.parquet"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no rows; make it anew from a source that has some"),
        ("[]", "has no rows; make it anew from a source that has some"),
        ("[1]", "no JSON objects: 1 row: 0 (the first row is 0); correct them"),
        ("[{", "is no file of JSON rows (Expecting property"),
        ('{"a": 1}\n{oops\n', "is no file of JSON rows (JSON parse error"),
        ('[{"a": "1"}, {"a": 1}]', "is no file of JSON rows ("),
        (b'{"a": "\xe9"}', "is no file of JSON rows ('utf-8' codec"),
    ],
)
def test_json_that_cannot_be_read(found, tmp_path, content, said):
    (tmp_path / "a.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    (line,) = found("a.json")
    assert line.startswith(f"a.json: schema: {said}")
    assert "prepare" not in line or line.endswith("--source a.json --skip-bad --output NEW.parquet")


def test_a_file_without_rows_whose_columns_have_no_types(found, tmp_path):
    # As pandas writes an empty frame: every column of type null.
    empty = pa.table({name: pa.nulls(0) for name in ("prompt", "data_source", "reward_model")})
    pq.write_table(empty, tmp_path / "a.parquet")
    assert found("a.parquet") == [
        "a.parquet: schema: has no rows; make it anew from a source that has some"
    ]


def test_damaged_pages(found, write):
    path = write("a.parquet", [f"problem {i}" for i in range(200)])
    content = bytearray(path.read_bytes())
    content[40:240] = bytes(200)
    path.write_bytes(content)
    (line,) = found("a.parquet")
    assert line.startswith("a.parquet: schema: is no parquet file, or a damaged one (")
    assert line.endswith("; get or make it anew")
