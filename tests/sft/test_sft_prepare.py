"""Files of conversations as token files, and every row that cannot be learnt from named."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opdvr.demo.task import problems, solve
from opdvr.demo.tokenizer import save_tokenizer
from opdvr.sft.prepare import SCHEMA, Reading, prepare


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return str(folder)


def row(place, content=None):
    problem = problems("train")[place]
    answer = solve(problem) if content is None else content
    return {
        "messages": [
            {"role": "user", "content": problem.prompt},
            {"role": "assistant", "content": answer},
        ]
    }


def write(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def read(path):
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist()


def test_rows_become_tokens_in_order(tmp_path, tokenizer):
    files = [write(tmp_path / f"{name}.parquet", [row(name)]) for name in range(2)]
    target = tmp_path / "tokens.arrow"
    done = prepare(files, "data", target, Reading(tokenizer, max_length=64))
    found = read(target)
    assert done.rows == len(found) == 2 and set(found[0]) == set(SCHEMA.names)
    assert done.tokens == sum(len(r["input_ids"]) for r in found)
    # Prompts are 11 tokens: two markers and nine characters.
    assert done.loss_tokens == done.tokens - 2 * 11
    assert [sum(r["loss_mask"]) for r in found] == [len(r["input_ids"]) - 11 for r in found]
    assert done.longest == max(len(r["input_ids"]) for r in found)


def test_many_rows_are_read_by_several_processes_in_order(tmp_path, tokenizer):
    rows = [row(place) for place in range(2500)]
    file = write(tmp_path / "many.parquet", rows)
    done = prepare([file], "data", tmp_path / "many.arrow", Reading(tokenizer, max_length=64))
    assert done.rows == 2500
    assert [r["row"] for r in read(tmp_path / "many.arrow")] == list(range(2500))


def test_rows_over_the_limit_are_left_out_and_counted(tmp_path, tokenizer):
    # 11 tokens of prompt, then 1 + the end, or 30 + the end.
    file = write(tmp_path / "data.parquet", [row(0, "7"), row(1, "7" * 30), row(2, "8")])
    done = prepare([file], "data", tmp_path / "tokens.arrow", Reading(tokenizer, max_length=20))
    assert (done.rows, done.too_long, done.longest, done.longest_left_out) == (2, 1, 13, 42)
    assert [r["row"] for r in read(tmp_path / "tokens.arrow")] == [0, 2]
    assert any("left out 1 row" in line and "42 tokens" in line for line in done.lines("data"))


def test_where_nothing_is_short_enough_nothing_is_written(tmp_path, tokenizer):
    file = write(tmp_path / "data.parquet", [row(0)])
    with pytest.raises(ValueError, match=r"all 1 row .*MAX_LENGTH \(data.max_length\) = 12; raise"):
        prepare([file], "data", tmp_path / "tokens.arrow", Reading(tokenizer, max_length=12))
    assert not list(tmp_path.glob("*.arrow*"))


def test_each_row_says_whether_it_thinks(tmp_path, tokenizer):
    """The column decides where the option says nothing; a template that thinks shows it."""
    template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '1' if enable_thinking else '0' }}{% endif %}"
    )
    for path in (tmp_path / "chat",):
        save_tokenizer(path)
        (path / "chat_template.jinja").write_text(template)
    rows = [row(0) | {"enable_thinking": True}, row(0) | {"enable_thinking": False}]
    file = write(tmp_path / "data.parquet", rows)
    for thinking, expected in ((None, [8, 7]), (True, [8, 8]), (False, [7, 7])):
        reading = Reading(str(tmp_path / "chat"), max_length=64, thinking=thinking)
        prepare([file], "data", tmp_path / "tokens.arrow", reading)
        # The token behind the nine of the question: ids 7 and 8 are the digits 0 and 1.
        assert [r["input_ids"][9] for r in read(tmp_path / "tokens.arrow")] == expected


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(0), row(1, "")], "1 row cannot be learnt from, rows 1 .*is empty"),
        ([{"messages": [{"role": "user", "content": "1"}]}], "rows 0 .*not the assistant's"),
        ([{"messages": "347*8"}], "no list of messages"),
        ([{"text": "347*8"}], "no column 'messages' .*it has text.*opdvr sft rollout"),
    ],
)
def test_what_cannot_be_learnt_from_is_named(tmp_path, tokenizer, rows, message):
    file = write(tmp_path / "data.parquet", rows)
    with pytest.raises(ValueError, match=message) as caught:
        prepare([file], "TRAIN", tmp_path / "tokens.arrow", Reading(tokenizer, max_length=64))
    assert "TRAIN" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_and_remote_files(tmp_path, tokenizer):
    reading = Reading(tokenizer, max_length=64)
    with pytest.raises(ValueError, match="TRAIN: data file not found"):
        prepare([str(tmp_path / "none.parquet")], "TRAIN", tmp_path / "tokens.arrow", reading)
    with pytest.raises(ValueError, match="remote"):
        prepare(["hdfs://host/a.parquet"], "TRAIN", tmp_path / "tokens.arrow", reading)


def test_json_rows_are_read_too(tmp_path, tokenizer):
    file = tmp_path / "data.json"
    file.write_text("\n".join(json.dumps(row(place)) for place in range(3)))
    done = prepare(
        [str(file)], "data", tmp_path / "tokens.arrow", Reading(tokenizer, max_length=64)
    )
    assert done.rows == 3


def test_a_full_disk_is_one_line(tmp_path, tokenizer):
    file = write(tmp_path / "data.parquet", [row(0)])
    with pytest.raises(ValueError, match=r"cannot be written .*FINAL_CKPT_DIR"):
        prepare([file], "data", tmp_path / "none" / "tokens.arrow", Reading(tokenizer, 64))
