"""Rows of files and benchmarks as problems, and the prompts made of them."""

import json
import logging
import shutil
from collections import Counter

import pytest
from evaluating import ROOT, STUDENT, row, write_data

from opdvr.eval import problems as pb


def load(*data, limit=None):
    return pb.load_problems([str(item) for item in data], limit, own_verifier=True)


def test_keys_last_and_tell_rows_apart(tmp_path):
    rows = [row("1+1=?", "2"), row("1+1=?", "2"), row("2+2=?", "4", "other")]
    one = write_data(tmp_path / "one.parquet", rows)
    found, files, warnings = load(one)
    assert [p.row for p in found] == [0, 1, 2]
    assert len({p.key for p in found}) == 3
    assert found[0].key.split(":")[:2] == found[1].key.split(":")[:2]
    assert [p.data_source for p in found] == ["opdvr-demo", "opdvr-demo", "other"]
    assert found[2].question == "2+2=?" and found[2].gold == "4"
    assert len(files) == 1 and len(files[0].sha256) == 64
    assert any("distinct" in warning for warning in warnings)
    # the same file elsewhere, and with a further one: the same keys
    copy = shutil.copy(one, tmp_path / "copy.parquet")
    two = write_data(tmp_path / "two.parquet", [row("9*9=?", "81")])
    assert [p.key for p in load(two, copy)[0]][1:] == [p.key for p in found]


def test_json_rows_are_read_too(tmp_path):
    rows = [row("1+1=?", "2"), row("2+2=?", "4")]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, rows)))
    parquet = load(write_data(tmp_path / "x.parquet", rows))[0]
    assert load(tmp_path / "list.json")[0] == load(tmp_path / "lines.json")[0]
    assert [p.key for p in load(tmp_path / "list.json")[0]] == [p.key for p in parquet]


def test_limit_takes_the_first_of_each_benchmark(tmp_path):
    rows = [row(f"{i}+1=?", str(i + 1), "ab"[i % 2]) for i in range(10)]
    found = load(write_data(tmp_path / "x.parquet", rows), limit=2)[0]
    assert [p.row for p in found] == [0, 1, 2, 3]


def test_one_file_by_two_paths_is_refused(tmp_path):
    file = write_data(tmp_path / "x.parquet", [row("1+1=?", "2")])
    with pytest.raises(ValueError, match="rows come twice"):
        load(file, tmp_path / "." / ".." / tmp_path.name / "x.parquet")


def test_benchmarks_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pb, "REPO_ROOT", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="opdvr data prepare valid"):
        load("AIME24")
    (tmp_path / "datasets").mkdir()
    rows = [row("1+1=?", "2", "AIME24"), row("3+1=?", "4", "AMC23"), row("5+1=?", "6", "AIME24")]
    write_data(tmp_path / pb.BENCHMARK_FILE, rows)
    assert [p.row for p in load("aime24")[0]] == [0, 2]
    assert [p.row for p in load("AMC23", "AIME24")[0]] == [0, 1, 2]
    # the same problem has the same key by name and by file
    assert load("AMC23")[0][0] in load(pb.BENCHMARK_FILE)[0]
    with pytest.raises(ValueError, match="no rows of this data_source"):
        load("Minerva")


SHARED = ROOT.parent / "shared" / "data" / "benchmarks"
SIZES = {
    **{"AIME24": 30, "AIME25": 30, "AMC23": 83, "MATH-500": 500},
    **{"Minerva": 272, "Olympiad-Bench": 675},
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmarks are not at hand")
def test_the_benchmarks_as_they_are():
    found = load(*(SHARED / f"{name}.parquet" for name in SIZES))[0]
    assert Counter(problem.data_source for problem in found) == SIZES
    assert len({problem.key for problem in found}) == sum(SIZES.values())
    assert set(SIZES) == set(pb.BENCHMARKS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [([row("1+1=?", "")], "ground_truth"), ([], "no rows")],
)
def test_files_that_cannot_be_used(tmp_path, rows, message):
    file = write_data(tmp_path / "x.parquet", rows)
    with pytest.raises(ValueError, match=message):
        load(file)
    with pytest.raises(ValueError, match="not found"):
        load(tmp_path / "none.parquet")


def test_prompts_are_trainings(tmp_path):
    pytest.importorskip("transformers")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(STUDENT)
    found = load(write_data(tmp_path / "x.parquet", [row("12*3+4=?", "40")]))[0]
    (ids,) = pb.prompt_ids(found, tokenizer, thinking=False, context=256)
    assert tokenizer.decode(ids).replace(" ", "") == "<|user|>12*3+4=?<|assistant|>"
    with pytest.raises(ValueError, match=r"row 0 of opdvr-demo .* context of 10"):
        pb.prompt_ids(found, tokenizer, thinking=False, context=len(ids))
    seen = {}

    class Recorder:
        chat_template = "x"

        def apply_chat_template(self, messages, **options):
            seen.update(options, messages=messages)
            return [1]

    pb.prompt_ids(found, Recorder(), thinking=True, context=None)
    assert seen == {
        "messages": [{"role": "user", "content": "12*3+4=?"}],
        "add_generation_prompt": True,
        "tokenize": True,
        "enable_thinking": True,
        "tokenizer_kwargs": {"verbose": False},
    }
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        pb.prompt_ids(found, tokenizer, thinking=False, context=None)


def test_a_prompt_beyond_the_tokenizers_own_limit_is_no_warning(tmp_path):
    pytest.importorskip("transformers")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(STUDENT, model_max_length=2)
    found = load(write_data(tmp_path / "x.parquet", [row("12*3+4=?", "40")]))[0]
    said = []
    handler = logging.Handler()
    handler.emit = said.append
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        assert len(pb.prompt_ids(found, tokenizer, thinking=False, context=256)[0]) > 2
    finally:
        logger.removeHandler(handler)
    assert said == []


def test_what_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="--data AIME99: no such file, nor .* are AIME24, AIME25"):
        load("AIME99")
    with pytest.raises(ValueError, match="is a folder; name the parquet files in it"):
        load(tmp_path)
