"""Products from small sources: what goes in, what is left out and where it is said."""

import dataclasses
import json
import os

import pyarrow.parquet as pq
import pytest

from opdvr.data import sources
from opdvr.data.files import whole_file
from opdvr.data.rows import ROW_SCHEMA, gold_text
from opdvr.data.sources import BENCHMARKS, DEEPMATH
from opdvr.data.text import SUFFIX

TEST_FILE = "datasets/valid_final_unique.parquet"


@pytest.fixture
def benchmarks(write_jsonl, tmp_path):
    """A folder with the six, as the hub has them: other columns, problem and answer."""
    for source in BENCHMARKS:
        rows = [
            {source.columns.question: f"{source.name} problem {i}?", source.columns.answer: i}
            for i in range(source.rows)
        ]
        write_jsonl(f"six/{source.name}.jsonl", rows)
    (tmp_path / "six" / "BRUMO25.csv").write_text("problem_idx,problem\n1,x\n")
    return tmp_path / "six"


@pytest.fixture
def valid(data, benchmarks):
    ran = data("prepare", "valid", "--source", benchmarks)
    assert ran.code == 0, ran.err
    return ran


def removed_lines(path):
    return [json.loads(line) for line in open(f"{path}.removed.jsonl")]


# valid


def test_the_six_in_order_with_our_schema(valid, read):
    rows = read(TEST_FILE)
    assert len(rows) == 30 + 30 + 83 + 500 + 272 + 675 == 1590
    assert pq.read_schema(TEST_FILE).equals(ROW_SCHEMA, check_metadata=True)
    names = list(dict.fromkeys(row["data_source"] for row in rows))
    assert names == ["AIME24", "AIME25", "AMC23", "MATH-500", "Minerva", "Olympiad-Bench"]
    assert rows[31] == {
        "data_source": "AIME25",
        "prompt": [{"role": "user", "content": f"AIME25 problem 1? {SUFFIX}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1"},
        "extra_info": {"index": "AIME25-1", "split": "test"},
    }


def test_twice_the_same_bytes(data, valid, benchmarks):
    data("prepare", "valid", "--source", benchmarks, "--output", "again/other.parquet")
    assert open(TEST_FILE, "rb").read() == open("again/other.parquet", "rb").read()


def test_what_it_was_made_from_stands_beside_it(valid):
    record = json.load(open(f"{TEST_FILE}.sources.json"))
    assert record["rows"] == 1590 and record["sha256"] in valid.out
    assert [source["name"] for source in record["sources"]] == [s.name for s in BENCHMARKS]
    assert record["sources"][2]["files"][0]["file"] == "AMC23.jsonl"
    assert record["sources"][2]["rows"] == 83


def test_another_number_of_rows_is_refused(refused, benchmarks, write_jsonl):
    write_jsonl("six/AMC23.jsonl", [{"problem": "p", "answer": 5}] * 40)
    text = refused("prepare", "valid", "--source", benchmarks)
    assert "AMC23 has 40 rows, not 83" in text and "--source" in text
    assert not os.path.exists(TEST_FILE)


def test_a_missing_benchmark_is_named(refused, benchmarks):
    (benchmarks / "Minerva.jsonl").unlink()
    text = refused("prepare", "valid", "--source", benchmarks)
    assert "nothing for Minerva" in text and "AIME24.jsonl" in text


def test_two_files_for_one_benchmark_are_refused(refused, benchmarks, write_jsonl):
    write_jsonl("six/aime_2024.jsonl", [{"problem": "p", "answer": 5}])
    assert "AIME24.jsonl and aime_2024.jsonl" in refused("prepare", "valid", "--source", benchmarks)


def test_a_folder_of_shards_is_one_source(data, benchmarks, write_jsonl, read):
    (benchmarks / "AIME24.jsonl").unlink()
    for shard, (start, end) in enumerate(((0, 20), (20, 30))):
        rows = [{"problem": f"shard {i}", "answer": 1} for i in range(start, end)]
        write_jsonl(f"six/AIME24/test-{shard}.jsonl", rows)
    assert data("prepare", "valid", "--source", benchmarks).code == 0
    assert read(TEST_FILE)[29]["prompt"][0]["content"] == f"shard 29 {SUFFIX}"


def test_a_gold_that_cannot_be_used_stops_valid_by_row(refused, benchmarks, write_jsonl):
    rows = [{"problem": f"p{i}", "answer": "" if i in (3, 17) else "5"} for i in range(30)]
    write_jsonl("six/AIME25.jsonl", rows)
    text = refused("prepare", "valid", "--source", benchmarks)
    assert "AIME25.jsonl: 2 of 30 rows cannot be used: gold: empty text: 2 rows: 3, 17" in text


# Training sets


def deepmath_rows():
    def row(question, answer, difficulty):
        return {"question": question, "final_answer": answer, "difficulty": difficulty}

    return [
        row("Hard one: find $x$.", "1/2", 6.0),
        row("Easy one", "1", 5.5),
        row("hard one: find \\(x\\)", "0.5", 9),  # the first again, with an equal answer
        row("Contradicted", "3", 7),
        row("contradicted.", "4", 7),
        row("AIME24 problem 7?", "7", 8),  # a test problem
        row("No gold", None, 8),
        row("Another hard one", "\\frac{2}{3}", 6),
        row("No difficulty", "1", None),
    ]


def test_a_training_set_leaves_out_and_says_so(data, valid, write_jsonl, read):
    source = write_jsonl("raw/DeepMath-103K.jsonl", deepmath_rows())
    ran = data("prepare", "deepmath", "--source", source.parent)
    assert ran.code == 0, ran.err
    output = "datasets/deepmath-level6-train.parquet"
    rows = read(output)
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["1/2", "\\frac{2}{3}"]
    assert rows[1]["extra_info"] == {"index": "DeepMath-103K-7", "split": "train"}
    assert pq.read_schema(output).equals(ROW_SCHEMA)
    assert "2 rows below difficulty 6" in ran.out
    for line in ("2 rows: conflict", "1 row: duplicate", "1 row: overlap: exact", "1 row: gold"):
        assert f"left out {line}" in ran.out
    by_reason = {line["reason"]: line for line in removed_lines(output)}
    overlap = by_reason["overlap: exact"]
    assert (overlap["row"], overlap["match"]["row"]) == (5, 7)
    assert overlap["match"]["problem"] == "AIME24 problem 7?"
    assert overlap["content"]["reward_model"]["ground_truth"] == "7"
    assert by_reason["duplicate"]["match"]["row"] == 0 and by_reason["duplicate"]["rows"] == [2]
    assert by_reason["gold: missing (None)"]["row"] == 6
    # Product and test file have nothing in common and nothing to complain about.
    assert data("check", output, TEST_FILE).code == 0


def test_without_a_difficulty_rows_are_taken_as_filtered(data, valid, write, read):
    source = write("DeepMath_deduped.parquet", ["one", "two"], extra_info=[{"index": 27136}] * 2)
    ran = data("prepare", "deepmath", "--source", source)
    assert "no column difficulty: its rows are taken as already of difficulty 6" in ran.out
    rows = read("datasets/deepmath-level6-train.parquet")
    assert [row["extra_info"]["index"] for row in rows] == ["27136", "27136"]


def test_missing_test_problems_name_the_command(refused, write):
    source = write("DeepMath.parquet", ["one"])
    text = refused("prepare", "deepmath", "--source", source)
    assert "opdvr data prepare valid" in text and "--keep-overlap" in text


def test_a_product_is_compared_by_kind_whatever_its_name(data, valid, benchmarks, monkeypatch):
    name = os.path.basename(TEST_FILE)
    assert f"{TEST_FILE}: differs from the manifest's {name}: sha256 " in valid.out
    record = json.load(open(f"{TEST_FILE}.sources.json"))
    monkeypatch.setattr("opdvr.data.manifest.read_manifest", lambda: {name: record})
    ran = data("prepare", "valid", "--source", benchmarks, "--output", "other.parquet")
    assert f"other.parquet: equal to the manifest's {name}\n" in ran.out


def test_kept_overlap_is_not_compared(data, write):
    ran = data("prepare", "dapo", "--source", write("math_dapo.parquet", ["x"]), "--keep-overlap")
    assert ran.code == 0 and "differs" not in ran.out
    assert "not the manifest's dapo-math-17k-train.parquet, which is made without --keep" in ran.out


def test_overlap_can_be_kept_or_compared_with_other_files(data, write, read):
    source, other = write("DeepMath.parquet", ["one", "two"]), write("test.parquet", ["two"])
    output = "datasets/deepmath-level6-train.parquet"
    assert data("prepare", "deepmath", "--source", source, "--keep-overlap").code == 0
    assert len(read(output)) == 2 and not os.path.exists(f"{output}.removed.jsonl")
    assert data("prepare", "deepmath", "--source", source, "--against", other).code == 0
    assert len(read(output)) == 1 and len(removed_lines(output)) == 1
    assert data("prepare", "deepmath", "--source", source, "--keep-overlap").code == 0
    assert not os.path.exists(f"{output}.removed.jsonl"), "it would speak of rows that are back"


def test_dapos_prompts_are_rewritten_and_repeats_taken_out(data, valid, write, read):
    before = (
        "Solve the following math problem step by step. The last line of your response should be "
        "of the form Answer: $Answer (without quotes) where $Answer is the answer to the "
        "problem.\n\n"
    )
    after = '\n\nRemember to put your answer on its own line after "Answer:".'
    contents = [f"{before}Find {name}.{after}" for name in "xyxyzz"]
    source = write(
        "dapo-math-17k.parquet",
        ["ignored"] * 6,
        ["1", "2", "1", "2", "3", "4"],
        prompt=[[{"role": "user", "content": content}] for content in contents],
        data_source=["math_dapo"] * 6,
        extra_info=[{"index": f"id-{i}"} for i in range(6)],
    )
    ran = data("prepare", "dapo", "--source", source)
    rows = read("datasets/dapo-math-17k-train.parquet")
    assert [row["prompt"][0]["content"] for row in rows] == [f"Find {n}. {SUFFIX}" for n in "xy"]
    assert [row["extra_info"]["index"] for row in rows] == ["id-0", "id-1"]
    assert rows[0]["data_source"] == "math_dapo"
    assert "2 prompts rewritten" in ran.out
    assert "left out 2 rows: conflict" in ran.out and "left out 2 rows: duplicate" in ran.out
    assert data("check", "datasets/dapo-math-17k-train.parquet").code == 0


# The hub, by a local folder


@pytest.fixture
def hub(monkeypatch, tmp_path, write_jsonl):
    """A folder that stands for DeepMath on the hub, at the commit that is asked for."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    write_jsonl("hub/train.jsonl", [{**row, "topic": "t"} for row in deepmath_rows()])
    asked = []

    def resolve(hub, revision):
        asked.append(revision)
        return revision or "c0ffee"

    monkeypatch.setattr(sources, "resolve_commit", resolve)
    stand_in = dataclasses.replace(DEEPMATH, hub=str(tmp_path / "hub"))
    monkeypatch.setattr("opdvr.data.command._SOURCES", {"deepmath": (stand_in,)})
    return asked


def test_the_hub_gives_the_same_rows_and_its_commit_stays(data, hub, read):
    output = "datasets/deepmath-level6-train.parquet"
    ran = data("prepare", "deepmath", "--keep-overlap")
    assert ran.code == 0, ran.err
    assert "at commit c0ffee" in ran.out and "2 rows below difficulty 6" in ran.out
    golds = [row["reward_model"]["ground_truth"] for row in read(output)]
    assert golds == ["1/2", "7", "\\frac{2}{3}"]
    record = json.load(open(f"{output}.sources.json"))
    assert record["sources"][0]["commit"] == "c0ffee" and record["sources"][0]["rows"] == 9
    data("prepare", "deepmath", "--keep-overlap")
    data("prepare", "deepmath", "--keep-overlap", "--revision", "beef")
    data("prepare", "deepmath", "--keep-overlap")
    assert hub == [None, "c0ffee", "beef", "beef"]


def test_without_network_local_files_are_the_remedy(refused, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    text = refused("prepare", "valid")
    assert "HuggingFaceH4/aime_2024 cannot be read from the hub" in text and "--source" in text


@pytest.mark.parametrize(
    ("kind", "revision"), [("valid", "c0ffee"), ("valid", "AMC=c0ffee"), ("dapo", "math_dapo=")]
)
def test_a_revision_names_its_source(refused, kind, revision):
    assert "is not NAME=COMMIT with one of" in refused("prepare", kind, "--revision", revision)


def test_a_revision_of_local_files_is_refused(refused, benchmarks):
    text = refused("prepare", "valid", "--source", benchmarks, "--revision", "AIME24=c0ffee")
    assert "--revision is for the hub" in text


# Output files


def test_a_source_is_never_written_to(refused, write):
    source = write("mine.parquet", ["one"])
    before = source.read_bytes()
    text = refused("prepare", "user", "--source", source, "--output", source, "--force")
    assert "is a source of this command" in text
    text = refused("prepare", "valid", "--source", source.parent, "--output", source, "--force")
    assert "is a source of this command" in text
    assert source.read_bytes() == before


def test_a_strangers_file_is_kept_unless_forced(data, refused, write, read):
    source, other = write("a.parquet", ["one"]), write("b.parquet", ["two", "three"])
    command = ["prepare", "user", "--source", source, "--output", other]
    assert "exists and does not say that this command made it" in refused(*command)
    assert len(read(other)) == 2
    assert data(*command, "--force").code == 0 and len(read(other)) == 1
    assert data(*command).code == 0, "now it is ours"


def test_output_is_parquet(refused, write):
    text = refused("prepare", "user", "--source", write("a.parquet", ["x"]), "--output", "b.json")
    assert "must end in .parquet" in text


def test_a_failing_write_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("earlier")
    with pytest.raises(RuntimeError), whole_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "earlier" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        (5, "5"),
        (5.0, "5.0"),
        ("025", "025"),
        (["3"], "3"),
        (["3", 5], "['3', '5']"),
        (["\\frac12"], "\\frac12"),
    ],
)
def test_golds_as_text(gold, text):
    assert gold_text(gold) == text


def test_a_list_as_text_means_any_of_it():
    from opdvr.verifier import compute_score

    text = gold_text(["\\frac{1}{2}", "3"])
    scores = [compute_score("", f"\\boxed{{{answer}}}", text) for answer in ("0.5", "3", "4")]
    assert [score["acc"] for score in scores] == [1, 1, 0]


def test_the_demo_files(data, read):
    ran = data("prepare", "demo", "--output", "demo")
    assert ran.code == 0
    train, test = "demo/demo-train.parquet", "demo/demo-test.parquet"
    assert (len(read(train)), len(read(test))) == (4096, 256)
    ran = data("check", train, test)
    assert ran.code == 0 and "asks for no \\boxed{}" in ran.out
