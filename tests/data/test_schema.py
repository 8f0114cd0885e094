"""Each refusal from the smallest file that triggers it; joining as the loader itself does it."""

import itertools
import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opdvr.data.schema import check_files, overlap_warning
from opdvr.data.table import prompt_texts
from opdvr.data.text import INSTRUCTIONS, SUFFIX

OPTION = "TRAIN_DATASET (data.train_files)"
SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"


def rows(n=1, gold="5", **columns):
    table = {
        "prompt": [
            [{"role": "user", "content": f"What is {i}? Answer in \\boxed{{}}."}] for i in range(n)
        ],
        "data_source": ["AIME24"] * n,
        "reward_model": [{"ground_truth": gold, "style": "rule"}] * n,
    }
    return {**table, **columns}


def messages(texts):
    return [[{"role": "user", "content": text}] for text in texts]


@pytest.fixture
def write(tmp_path):
    def write(name="data.parquet", /, **columns):
        path = tmp_path / name
        pq.write_table(pa.table(columns), path)
        return str(path)

    return write


def refusal(files):
    with pytest.raises(ValueError) as error:
        check_files(files, OPTION)
    text = str(error.value)
    assert text.startswith(OPTION) and "\n" not in text
    return text


def test_good_file(write):
    report = check_files([write(**rows(3))], OPTION)
    assert (report.rows, report.distinct_prompts, report.warnings) == (3, 3, [])


def test_missing_file(tmp_path):
    assert "data file not found: " in refusal([str(tmp_path / "none.parquet")])


def test_not_parquet_inside(tmp_path):
    path = tmp_path / "fake.parquet"
    path.write_text("hello")
    assert "fake.parquet is no parquet file" in refusal([str(path)])


def test_other_suffix_is_what_verl_refuses(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("{}")
    text = refusal([str(path)])
    assert (
        "data.jsonl: verl reads parquet and JSON rows (.parquet, .json); make a parquet: " in text
    )
    assert text.endswith(
        f"python -m opdvr data prepare user --source {path} "
        "--question-column … --answer-column … --output NEW.parquet"
    )
    (tmp_path / "data.txt").write_text("")
    assert "prepare" not in refusal([str(tmp_path / "data.txt")])


@pytest.mark.parametrize("as_list", [False, True])
def test_json_rows(tmp_path, as_list):
    row = {key: value[0] for key, value in rows().items()}
    path = tmp_path / "data.json"
    path.write_text(json.dumps([row, row]) if as_list else f"{json.dumps(row)}\n" * 2)
    report = check_files([str(path)], OPTION)
    assert (report.rows, report.distinct_prompts) == (2, 1)


def test_broken_json(tmp_path):
    path = tmp_path / "data.json"
    path.write_text("[{")
    assert "is no file of JSON rows" in refusal([str(path)])


def test_missing_columns_are_listed_beside_those_found(write):
    text = refusal([write(problem=["q"], answer=["5"])])
    assert "lacks the columns prompt, data_source, reward_model" in text
    assert "found: problem, answer" in text


@pytest.mark.parametrize("reward_model", [["rule"], [{"style": "rule"}]])
def test_missing_ground_truth(write, reward_model):
    text = refusal([write(**rows(reward_model=reward_model))])
    assert "lacks the column reward_model.ground_truth" in text


def test_no_rows(tmp_path):
    path = tmp_path / "empty.parquet"
    pq.write_table(pa.table(rows(1)).slice(0, 0), path)
    assert "empty.parquet has no rows" in refusal([str(path)])


@pytest.mark.parametrize("prompt", [["What?"], [["What?"]], [[{"text": "What?"}]]])
def test_prompt_that_is_no_list_of_messages(write, prompt):
    text = refusal([write(**rows(prompt=prompt))])
    assert "has a column prompt of " in text
    assert "which must be a list of messages with role and content as text; python -m opdv" in text


@pytest.mark.parametrize("empty", [[], None])
def test_empty_prompt_by_row(write, empty):
    good = rows()["prompt"][0]
    text = refusal([write(**rows(3, prompt=[good, empty, good]))])
    assert "a prompt without messages: 1 row: 1 (the first row is 0); leave such rows out: " in text


def test_message_without_content(write):
    prompt = [[{"role": "user", "content": "q"}], [{"role": "user", "content": None}]]
    text = refusal([write(**rows(2, prompt=prompt))])
    assert "has a message without content: 1 row: 1 (the first row is 0)" in text


@pytest.mark.parametrize(
    ("gold", "reason"),
    [(None, "missing (None)"), ("", "empty text"), ("nan", "missing value as text ('nan')")],
)
def test_bad_gold_by_row(write, gold, reason):
    golds = [{"ground_truth": g, "style": "rule"} for g in ("5", gold, "7", gold)]
    text = refusal([write(**rows(4, reward_model=golds))])
    assert "has a reward_model.ground_truth that cannot be used" in text and reason in text
    assert ": 2 rows: 1, 3 (the first row is 0); leave such rows out: " in text


def test_prompts_and_golds_are_refused_in_one_message(write):
    prompts = [*rows(3)["prompt"], [], [{"role": "user", "content": None}]]
    golds = [{"ground_truth": g} for g in ("5", "", None, "7", "nan")]
    text = refusal([write(**rows(5, prompt=prompts, reward_model=golds))])
    for flaw in (
        "a prompt without messages: 1 row: 3",
        "a message without content: 1 row: 4",
        "cannot be used, empty text: 1 row: 1",
        "cannot be used, missing (None): 1 row: 2",
        "cannot be used, a missing value as text ('nan'): 1 row: 4",
    ):
        assert flaw in text
    assert text.count("--skip-bad") == 1


def test_of_many_reasons_five_are_said(write):
    golds = [{"ground_truth": "\\frac{" + str(i)} for i in range(7)]
    text = refusal([write(**rows(7, reward_model=golds))])
    assert text.count("cannot be used") == 5 and "; and 2 other reasons; leave" in text


def test_many_bad_rows_are_counted(write):
    text = refusal([write(**rows(12, gold=""))])
    assert ": 12 rows: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 … (the" in text


@pytest.mark.parametrize("gold", [5, 5.0, ["3", "5"]])
def test_golds_that_are_no_text(write, gold):
    assert check_files([write(**rows(2, gold=gold))], OPTION).rows == 2


def test_duplicates_are_counted_over_all_files(write):
    first, second = write("a.parquet", **rows(3)), write("b.parquet", **rows(2))
    # Prompts 0, 1, 2 and 0, 1 again: 5 rows, 3 distinct.
    report = check_files([first, second], OPTION)
    assert (report.rows, report.distinct_prompts) == (5, 3)
    assert "5 rows hold 3 distinct prompts" in report.warnings[0]


def test_prompts_of_several_messages_differ_in_any(write):
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    prompts = [[system, user], [user], [system, user], [user, system]]
    assert check_files([write(**rows(4, prompt=prompts))], OPTION).distinct_prompts == 3


def test_prompts_for_another_form_of_answer_are_warned_about(write):
    prompts = [[{"role": "user", "content": f"Q{i}. Answer: $Answer"}] for i in range(2)]
    (warning,) = check_files([write(**rows(2, prompt=prompts))], OPTION).warnings
    assert "2 of 2 prompts ask for 'Answer:' and not for \\boxed{}" in warning
    assert check_files([write(**rows(2, prompt=prompts))], OPTION, boxes_only=False).warnings == []


def test_rows_without_a_source_are_warned_about(write):
    (warning,) = check_files([write(**rows(2, data_source=["A", None]))], OPTION).warnings
    assert "1 row without data_source" in warning


def test_missing_default_file_names_the_command_that_makes_it(tmp_path):
    text = refusal([str(tmp_path / "deepmath-level6-train.parquet")])
    assert text.endswith("; make it with: python -m opdvr data prepare deepmath")
    assert "prepare valid" in refusal([str(tmp_path / "valid_final_unique.parquet")])
    assert "make it" not in refusal([str(tmp_path / "mine.parquet")])


def test_test_problems_in_the_training_data_are_warned_about(write):
    suffix = f" {SUFFIX}"
    problems = ["one", f"two{suffix}", f"three{suffix}", f"three{suffix}"]
    train_file = write("train.parquet", **rows(4, prompt=messages(problems)))
    tested = messages([f"one{suffix}", "x", f"{INSTRUCTIONS[1]}\n\nthree\n\n{INSTRUCTIONS[2]}"])
    test_file = write("test.parquet", **rows(3, prompt=tested))
    train, test = (check_files([file], OPTION) for file in (train_file, test_file))
    # Of the 3 distinct training prompts "one" and "three" are tested, with other words around.
    text = overlap_warning(train, OPTION, test)
    assert "2 of 3 distinct prompts are in the test data too" in text
    assert f"python -m opdvr data check {train_file} {test_file}" in text
    other = check_files([write("c.parquet", **rows(1, prompt=messages(["two, but"])))], OPTION)
    assert overlap_warning(train, OPTION, other) is None


def test_the_warning_about_repeats_names_the_command(write):
    file = write(**rows(2, prompt=messages(["a", "a"])))
    (warning,) = check_files([file], OPTION).warnings
    assert warning.endswith(f"for every row: python -m opdvr data check {file}")


def test_remote_file_is_left_alone():
    (warning,) = check_files(["hdfs://host/data.parquet"], OPTION).warnings
    assert "hdfs://host/data.parquet is remote" in warning


def test_other_column_names(write):
    columns = rows()
    path = write(question=columns["prompt"], source=["x"], reward_model=columns["reward_model"])
    assert check_files([path], OPTION, prompt_key="question", reward_fn_key="source").rows == 1
    assert "lacks the columns prompt, data_source" in refusal([path])


def test_unjoinable_files_name_the_column(write):
    one = write("a.parquet", **rows(extra_info=[{"index": 1}]))
    other = write("b.parquet", **rows(extra_info=[{"index": "a"}]))
    text = refusal([one, other])
    assert "column extra_info.index is int64 in" in text and "and string in" in text
    assert "a.parquet" in text and "b.parquet" in text


def test_raw_file_beside_a_good_one_is_refused(write):
    # The loader would fill its missing columns with None, silently.
    assert "lacks the columns" in refusal([write("a.parquet", **rows()), write("b.parquet", x=[1])])


def test_joinable_exactly_where_the_loader_can_join(write):
    datasets = pytest.importorskip("datasets")
    struct = pa.struct
    variants = {
        "int": pa.array([{"index": 1}]),
        "int32": pa.array([{"index": 1}], struct([("index", pa.int32())])),
        "text": pa.array([{"index": "a"}]),
        "large": pa.array([{"index": "a"}], struct([("index", pa.large_string())])),
        "split": pa.array([{"index": "a", "split": "test"}]),
        "null field": pa.array([{"index": None}]),
        "null": pa.nulls(1),
        "flat": pa.array(["a"]),
        "list": pa.array([["a"]]),
        "list of int": pa.array([[1]]),
    }
    files = {name: write(f"{name}.parquet", **rows(extra_info=v)) for name, v in variants.items()}
    loaded = {
        name: datasets.Dataset(pq.read_table(file), fingerprint=name.replace(" ", ""))
        for name, file in files.items()
    }
    for one, other in itertools.permutations(variants, 2):
        try:
            datasets.concatenate_datasets([loaded[one], loaded[other]])
            joins = True
        except (ValueError, AttributeError):
            joins = False
        if joins:
            check_files([files[one], files[other]], OPTION)
        else:
            assert "cannot be joined: column extra_info" in refusal([files[one], files[other]])


def test_slices_keep_their_prompts():
    # A slice's offsets start in the middle of the values.
    column = pa.table(rows(5))["prompt"]
    texts = prompt_texts(column.slice(3)).to_pylist()
    assert texts == [f"What is {i}? Answer in \\boxed{{}}." for i in (3, 4)]


def test_several_row_groups(tmp_path):
    path = tmp_path / "groups.parquet"
    pq.write_table(pa.table(rows(10)), path, row_group_size=3)
    assert check_files([str(path)], OPTION).distinct_prompts == 10


def test_twenty_thousand_rows_in_a_second(write):
    n = 20_000
    golds = [{"ground_truth": str(i), "style": "rule"} for i in range(n)]
    path = write(**rows(n, reward_model=golds))
    started = time.perf_counter()
    report = check_files([path], OPTION)
    assert report.distinct_prompts == n
    assert f"{n} of {n}" in overlap_warning(report, OPTION, report)
    assert time.perf_counter() - started < 1.0


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the collected data sets are not here")
def test_collected_data_sets():
    raw = {"BRUMO25", "CMIMC25", "HMMT25"}
    for path in sorted(SHARED_DATA.glob("*/*.parquet")):
        if path.stem in raw:
            assert "found: problem_idx, problem, answer, problem_type" in refusal([str(path)])
        else:
            # Columns and prompts are what is asked here; golds are the verifier's business.
            assert check_files([str(path)], OPTION, own_verifier=False).rows > 0
    train = SHARED_DATA / "train"
    files = [str(train / f"{name}.parquet") for name in ("dapo-math-17k", "DeepMath_deduped")]
    with pytest.raises(ValueError, match=r"column extra_info\.index is string in .* and int64 in"):
        check_files(files, OPTION, own_verifier=False)
