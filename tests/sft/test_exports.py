"""What is written for verl and LlamaFactory: rows, their order, the split, the YAML."""

import json

import pyarrow.parquet as pq
import pytest
import yaml
from rolling import lines_of

from opdvr.eval.problems import Problem
from opdvr.sft import exports
from opdvr.sft.exports_llamafactory import choose_template, write_llamafactory
from opdvr.sft.rollout_attempts import Attempt
from opdvr.sft.rollout_options import read_rollout_options


def problem(number, question=None, system=None):
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": question or f"{number}+1=?"})
    return Problem(f"a:d:{number}", number, "a", messages, "1", None)


def attempt(of, slot=0, text="it is \\boxed{1}", made=0, tokens=7):
    return Attempt(of.key, slot, made, 5, tokens, "stop", None, text)


def options(*given):
    return read_rollout_options(
        ["--model", "the/teacher", "--data", "x.parquet", "--output", "o", *given]
    )


def test_rows_are_in_the_order_of_the_data(tmp_path):
    problems = [problem(n, system="Be brief.") for n in range(3)]
    written = [attempt(problems[2]), attempt(problems[0], 1, made=2), attempt(problems[0], 0)]
    rows = exports.rows_of(problems, written)
    assert [(row.problem.row, row.attempt.slot) for row in rows] == [(0, 0), (0, 1), (2, 0)]
    exports.write_verl(tmp_path, rows, [], thinking=True)
    table = pq.read_table(tmp_path / "sft.parquet")
    assert table.column_names == ["messages", "enable_thinking", "data_source", "extra_info"]
    first, second, _ = table.to_pylist()
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "0+1=?"},
        {"role": "assistant", "content": "it is \\boxed{1}"},
    ]
    assert first["enable_thinking"] is True and first["data_source"] == "a"
    expected = {"index": 0, "key": "a:d:0", "slot": 1, "attempt": 2, "tokens": 7}
    assert second["extra_info"] == expected


def test_blocks_of_thought_and_odd_characters_stay(tmp_path):
    text = "<think>\nhm\n</think>\n\n\\boxed{1}\n "
    one, other = problem(0), problem(1)
    rows = exports.rows_of([one, other], [attempt(one, text=text), attempt(other, text="\ud83d!")])
    assert rows[0].messages[-1]["content"] == text
    assert rows[1].messages[-1]["content"] == "?!"  # half a character is in no UTF-8
    exports.write_verl(tmp_path, rows, [], thinking=False)


@pytest.mark.parametrize(("fraction", "count"), [(0.05, 1), (0.1, 2), (0.26, 5), (0.99, 19)])
def test_the_split_is_by_prompt(fraction, count):
    # 20 prompts, three responses each; the first and the last ask the same
    problems = [problem(n) for n in range(20)] + [problem(20, "0+1=?")]
    written = [attempt(one, slot) for one in problems for slot in range(3)]
    rows = exports.rows_of(problems, written)
    train, val = exports.split(rows, fraction, seed=0)
    asked = [{row.messages[0]["content"] for row in part} for part in (train, val)]
    assert len(asked[1]) == count and len(asked[0]) == 20 - count
    assert not asked[0] & asked[1] and len(train) + len(val) == 63
    order = [rows.index(row) for row in train]
    assert order == sorted(order)
    # the same each time, and another with another seed
    assert exports.split(rows, fraction, seed=0) == (train, val)
    assert any(exports.split(rows, fraction, seed)[1] != val for seed in (1, 2, 3))


def test_nothing_is_set_apart_of_one_prompt_or_on_request():
    problems = [problem(0), problem(1)]
    rows = exports.rows_of(problems, map(attempt, problems))
    assert exports.split(rows[:1], 0.5, 0) == (rows[:1], [])
    assert exports.split(rows, 0.0, 0) == (rows, [])
    assert [len(part) for part in exports.split(rows, 0.01, 0)] == [1, 1]


def export(tmp_path, given=(), template=None, problems=None, val=True, text="\\boxed{1}"):
    problems = problems or [problem(0), problem(1)]
    rows = exports.rows_of(problems, [attempt(one, text=text) for one in problems])
    train, rest = (rows[:-1], rows[-1:]) if val else (rows, [])
    said = []
    lengths = {one.key: 10 + one.row for one in problems}
    write_llamafactory(tmp_path, train, rest, options(*given), template, lengths, said.append)
    return yaml.safe_load((tmp_path / "llamafactory" / "sft.yaml").read_text()), said


def test_for_llamafactory(tmp_path):
    found, said = export(tmp_path, ["--student", "my: student's #1"], "qwen3")
    folder = tmp_path / "llamafactory"
    assert said == []
    assert found["model_name_or_path"] == "my: student's #1" and found["template"] == "qwen3"
    assert (found["stage"], found["finetuning_type"], found["bf16"]) == ("sft", "full", True)
    assert (found["learning_rate"], found["lr_scheduler_type"]) == (1e-5, "cosine")
    assert (found["warmup_ratio"], found["num_train_epochs"]) == (0.1, 3.0)
    # 11 tokens of the longer prompt, 7 of the response, 16 for what a template adds
    assert found["cutoff_len"] == 34
    assert found["dataset_dir"] == "." and found["enable_thinking"] is False
    information = json.loads((folder / "dataset_info.json").read_text())
    assert set(information) == {found["dataset"], found["eval_dataset"]}
    for name in information:
        assert information[name]["formatting"] == "sharegpt"
        assert len(lines_of(folder / information[name]["file_name"])) == 1
    (line,) = lines_of(folder / "sft.jsonl")
    assert [message["role"] for message in line["messages"]] == ["user", "assistant"]


def test_without_validation_nothing_of_it_is_left(tmp_path):
    export(tmp_path)
    assert (tmp_path / "llamafactory" / "sft-val.jsonl").exists()
    found, _ = export(tmp_path, val=False)
    assert "eval_dataset" not in found and "eval_strategy" not in found
    assert not (tmp_path / "llamafactory" / "sft-val.jsonl").exists()
    assert found["model_name_or_path"] == "the/teacher" and "template" not in found


def test_thought_in_the_responses_switches_it_on(tmp_path):
    found, _ = export(tmp_path, text="<think>\nhm\n</think>\n\n\\boxed{1}")
    assert found["enable_thinking"] is True
    assert export(tmp_path, ["--thinking"])[0]["enable_thinking"] is True


def test_conversations_that_llamafactory_drops_are_said(tmp_path):
    odd = problem(1)
    odd.messages.insert(0, {"role": "user", "content": "hello"})
    _, said = export(tmp_path, problems=[problem(0), odd, problem(2)])
    assert said == [
        "llamafactory/sft.jsonl lacks 1 rows whose messages do not alternate between user and "
        "assistant, which LlamaFactory leaves out"
    ]
    assert len(lines_of(tmp_path / "llamafactory" / "sft.jsonl")) == 1


class Tokenizer:
    def __init__(self, chat_template):
        self.chat_template = chat_template


@pytest.mark.parametrize(
    ("kind", "chat_template", "name"),
    [
        ("qwen2", "<|im_start|>", "qwen"),
        ("qwen2", "<｜User｜><｜Assistant｜>", "deepseekr1"),
        ("qwen3", "<|im_start|> enable_thinking", "qwen3"),
        ("qwen3", "<|im_start|>", "qwen3_nothink"),
        ("llama", "<|start_header_id|>", "llama3"),
        ("llama", "[INST]", None),
        ("qwen3", "<|user|>", None),
    ],
)
def test_the_template_is_found_from_the_model(tmp_path, kind, chat_template, name):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    said = []
    found = choose_template(options(), tmp_path, Tokenizer(chat_template), said.append)
    assert found == name
    assert bool(said) == (name is None)
    named = options("--llamafactory-template", "mistral")
    assert choose_template(named, tmp_path, Tokenizer(chat_template), said.append) == "mistral"
    none = options("--llamafactory-template", "none")
    assert choose_template(none, tmp_path, Tokenizer(chat_template), said.append) is None
