"""Every kind of finding from the smallest file that has it."""

import json
import re
from pathlib import Path

import pytest

from opdvr.data.check import ENABLE_THINKING, MAX_PROMPT_LENGTH
from opdvr.data.text import SUFFIX

ROOT = Path(__file__).parents[2]
STUDENT = ROOT / "opdvr" / "demo" / "models" / "student"


def test_nothing_found(data, write):
    ran = data("check", write("a.parquet", ["one", "two"]))
    assert (ran.code, ran.out, ran.err) == (0, "1 file checked: nothing found\n", "")


def test_golds_are_grouped_by_reason(found, write):
    golds = ["5", "", "7", None, ""]
    lines = found(write("a.parquet", [f"p{i}" for i in range(5)], golds))
    assert len(lines) == 2
    assert lines[0].startswith(lines[0].split(": gold: ")[0] + ": gold: 2 rows: 1, 4: ")
    assert "empty text" in lines[0] and "--skip-bad" in lines[0]
    assert ": gold: 1 row: 3: " in lines[1] and "missing (None)" in lines[1]


@pytest.mark.parametrize("gold", ["\u200b", "\\boxed{}", "{}", "\\text{}"])
def test_golds_that_are_empty_in_effect(found, write, gold):
    lines = found(write("a.parquet", ["one", "two", "three"], ["5", gold, gold]))
    assert len(lines) == 1 and ": gold: 2 rows: 1, 2: the gold answer cannot be" in lines[0]


@pytest.mark.parametrize("golds", [[5, 7], [5.5, 7.0], [["3", "5"], ["7"]], ["np.int64(5)", "7"]])
def test_golds_that_are_no_text_are_fine(found, write, golds):
    assert found(write("a.parquet", ["one", "two"], golds)) == []


@pytest.mark.parametrize("mixed", [[5, "5"], [["5"], None], [5, 5.5], [{"a": 1}, "5"]])
def test_golds_of_several_types_in_json(data, tmp_path, mixed):
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{i} \\boxed{{}}"}],
            "data_source": "s",
            "reward_model": {"ground_truth": gold},
        }
        for i, gold in enumerate(mixed)
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    ran = data("check", "a.json")
    assert ran.code == (0 if mixed == [5, 5.5] else 1)
    assert ran.err == "" and ran.out.count("\n") == (1 if ran.code == 0 else 2)


def test_rows_without_a_source(found, write):
    (line,) = found(write("a.parquet", ["one", "two", "three"], data_source=["s", None, ""]))
    assert ": data_source: 2 rows: 1, 2: " in line and "--data-source NAME" in line


def test_prompts_that_ask_for_another_form(found, write):
    prompts = ["One. Answer: $Answer", f"Two. Answer: {SUFFIX}"]
    prompt = [[{"role": "user", "content": text}] for text in prompts]
    (line,) = found(write("a.parquet", ["", ""], prompt=prompt))
    assert ": answer form: 1 row: 0: " in line
    assert found("a.parquet", "--answer-forms", "any") == []


def test_prompts_that_ask_for_nothing_are_a_note(data, write):
    path = write("a.parquet", [""], prompt=[[{"role": "user", "content": "1+1=?"}]])
    ran = data("check", path)
    assert ran.code == 0 and ": note: 1 row: 0: " in ran.out
    assert ran.out.endswith("\n1 file checked: no findings, 1 note (the first row is 0)\n")


def test_repeats_and_contradictions(found, write):
    problems = ["Find $x$.", "find \\(x\\)", "other", "FIND X", "other"]
    lines = found(write("a.parquet", problems, ["1/2", "0.5", "3", "4", "3"]))
    assert ": duplicate: 2 rows: 1, 4: " in lines[0] and "2 distinct in 5" in lines[0]
    assert ": conflict: 1 row: 3: " in lines[1]


def test_other_messages_before_it_make_another_prompt(found, write):
    def prompt(system):
        return [{"role": "system", "content": system}, {"role": "user", "content": f"x {SUFFIX}"}]

    assert found(write("a.parquet", ["", ""], prompt=[prompt("a"), prompt("b")])) == []
    (line,) = found(write("b.parquet", ["", ""], prompt=[prompt("a"), prompt("a")]))
    assert ": duplicate: 1 row: 1: " in line


def test_train_and_test_that_overlap(found, write):
    passage = " ".join(f"w{i}" for i in range(30))
    write("train.parquet", ["own one", "Shared!", f"{passage} now", "own two"])
    write("test.parquet", ["another", "other", "shared!", f"{passage} then"][1:])
    for files in (("train.parquet", "test.parquet"), ("test.parquet", "train.parquet")):
        lines = found(*files)
        assert lines[0].startswith("train.parquet: overlap, exact: 1 row: 1: the same problem as")
        assert "the same problem as row 1 of test.parquet" in lines[0]
        assert lines[1].startswith("train.parquet: overlap, n-gram: 1 row: 2: ")
        assert "prepare user --source train.parquet --against test.parquet" in lines[1]
        assert len(lines) == 2


def test_against_several_test_files(found, write):
    write("train.parquet", ["one", "two", "three"])
    write("a.parquet", ["two", "two"])  # repeats of the test file are its own business
    write("b.parquet", ["zero", "three"])
    lines = found("train.parquet", "--against", "a.parquet", "b.parquet")
    assert len(lines) == 2
    assert "exact: 1 row: 1: the same problem as row 0 of a.parquet" in lines[0]
    assert "exact: 1 row: 2: the same problem as row 1 of b.parquet" in lines[1]


def test_files_that_cannot_be_trained_on_together(found, write):
    write("a.parquet", ["one"], extra_info=[{"index": 1}])
    write("b.parquet", ["two"], extra_info=[{"index": "a"}])
    (line,) = found("a.parquet", "b.parquet")
    assert line.startswith("a.parquet: mixed schemas: column extra_info.index is int64 here and")
    assert "string in b.parquet" in line and "opdvr data prepare user" in line
    # A test file is never joined with a training file.
    assert found("a.parquet", "--against", "b.parquet") == []


def test_long_lists_of_rows_are_cut_unless_asked(found, write):
    path = write("a.parquet", ["same"] * 14)
    (line,) = found(path)
    assert ": duplicate: 13 rows: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 …: " in line
    (line,) = found(path, "--all-rows")
    assert "9, 10, 11, 12, 13: " in line


# Lengths


def test_prompts_over_the_limit_by_the_template_of_training(found, write):
    pytest.importorskip("transformers")
    # <|user|>347*8+9=?<|assistant|>: 9 characters and 2 role tokens are 11; with 2*8+9=? 9.
    prompt = [[{"role": "user", "content": text}] for text in ("347*8+9=?", "2*8+9=?")]
    path = write("a.parquet", ["", ""], prompt=prompt)
    lines = found_with_notes(found, path, "--tokenizer", STUDENT, "--max-prompt-length", 10)
    (line,) = lines
    assert ": overlong: 1 row: 0: the prompt is over 10 tokens (the longest has 11)" in line
    assert found_with_notes(found, path, "--tokenizer", STUDENT, "--max-prompt-length", 11) == []


def found_with_notes(found, *arguments):
    try:
        lines = found(*arguments)
    except AssertionError as error:  # notes alone end with 0
        if "no findings" not in str(error):
            raise
        return []
    return [line for line in lines if ": note: " not in line]


@pytest.mark.parametrize(("thinking", "over"), [("false", True), ("true", False)])
def test_the_template_option_reaches_the_template(data, write, tmp_path, thinking, over):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "think": 1}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.chat_template = (
        "{{ messages[0]['content'] }}{% if not enable_thinking %} think think{% endif %}"
    )
    fast.save_pretrained(tmp_path / "tokenizer")
    path = write("a.parquet", [""], prompt=[[{"role": "user", "content": "a \\boxed{} c"}]])
    options = ["--tokenizer", "tokenizer", "--max-prompt-length", 4, "--enable-thinking", thinking]
    ran = data("check", path, *options)
    # Three words, and two more where the template closes the thinking: 5 over 4.
    assert ("over 4 tokens (the longest has 5)" in ran.out) is over
    assert ran.code == int(over)
    fast.chat_template = None
    fast.save_pretrained(tmp_path / "plain")
    assert "has no chat template" in data("check", path, "--tokenizer", "plain").err


def test_a_tokenizer_that_is_not_there_is_said_first(data, write, tmp_path):
    ran = data("check", write("a.parquet", ["x"], [""]), "--tokenizer", "./none")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "opdvr data: --tokenizer ./none: tokenizer folder not found\n"
    pytest.importorskip("transformers")
    (tmp_path / "empty").mkdir()
    ran = data("check", "a.parquet", "--tokenizer", "empty")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "opdvr data: --tokenizer empty has no tokenizer; give a model folder\n"
    (tmp_path / "empty" / "tokenizer.json").write_text("{")
    ran = data("check", "a.parquet", "--tokenizer", "empty")
    assert (ran.code, ran.out) == (2, "") and "--tokenizer empty cannot be loaded (" in ran.err


def test_the_defaults_are_those_of_training():
    configuration = (ROOT / "opdvr/integration/conf/opdvr_trainer.yaml").read_text()
    assert re.search(rf"max_prompt_length: {MAX_PROMPT_LENGTH}\b", configuration)
    assert re.search(rf"enable_thinking: {str(ENABLE_THINKING).lower()}\b", configuration)


def test_a_missing_file(refused):
    assert refused("check", "none.parquet").endswith("file not found: none.parquet\n")


@pytest.mark.parametrize("arguments", [("a", "./a"), ("a", "--against", "a")])
def test_a_file_given_twice(refused, write, arguments):
    write("a.parquet", ["one"])
    names = [name if name[0] == "-" else f"{name}.parquet" for name in arguments]
    assert f"{names[-1]} is given twice" in refused("check", *names)


def test_a_folder_is_no_file(refused, tmp_path):
    (tmp_path / "folder").mkdir()
    assert "folder is a folder; name its files" in refused("check", "folder")
