"""The command line around it: usage, show, what is imported, the manifest."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from opdvr.data import manifest
from opdvr.data.products import PRODUCTS
from opdvr.data.sources import BENCHMARKS
from opdvr.data.wording import escaped

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "COMMAND"),
        (["prepare"], "WHAT"),
        (["prepare", "nothing"], "'nothing'"),
        (["prepare", "user"], "--source"),
        (["check"], "FILE"),
        (["check", "a", "--max-prompt-length", "many"], "'many' is no number"),
        (["show", "a", "--rows", "-1"], "--rows"),
        (["show", "a", "--rows", "0"], "--rows: '0' is no number of 1 or more"),
        (["check", "a", "--max-prompt-length", "0"], "'0' is no number of 1 or more"),
        (["check", "a", "--no-such"], "--no-such"),
    ],
)
def test_usage_mistakes_are_one_line(refused, arguments, named):
    assert named in refused(*arguments)


def test_help(capsys):
    from opdvr.data.command import main

    with pytest.raises(SystemExit) as ended:
        main(["prepare", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("valid", "deepmath", "dapo", "user", "demo"))


def test_every_option_has_a_help_text(capsys):
    from opdvr.data.command import main

    for command in (["prepare", "user"], ["prepare", "valid"], ["prepare", "demo"], ["check"]):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        said = capsys.readouterr().out
        # An option without a text is followed by the next one, or by the end.
        entries = re.split(r"\n  (?=-|FILE)", said.partition("options:")[2])[1:]
        assert len(entries) >= 2
        assert all(re.search(r"(  |\n +)[^-\s].+", entry) for entry in entries), said
    assert re.search(r"\n  FILE +data files as training reads them", said)


def test_what_the_operating_system_refuses_names_the_file_and_a_remedy(refused, write, tmp_path):
    (tmp_path / "file").write_text("")
    path = write("a.parquet", ["x"])
    text = refused("prepare", "user", "--source", path, "--output", "file/out.parquet")
    assert text.startswith("opdvr data: file/out.parquet cannot be written (")
    assert "prepare" not in text and "writable" in text and "--output" in text
    text = refused("prepare", "demo", "--output", "file")
    assert text.startswith("opdvr data: file cannot be written (")


def test_a_full_disk_is_said_of_the_final_file(refused, write, monkeypatch, tmp_path):
    def full(table, path, **options):
        raise OSError(errno.ENOSPC, f"[Errno 28] Error writing bytes to {path}")

    path = write("a.parquet", ["x"])
    monkeypatch.setattr("opdvr.data.files.pq.write_table", full)
    text = refused("prepare", "user", "--source", path, "--output", "out.parquet")
    assert text.startswith("opdvr data: out.parquet cannot be written (No space left on device);")
    assert "free space" in text and os.listdir(tmp_path) == ["a.parquet"]


def test_an_output_that_is_a_folder(refused, write, tmp_path):
    (tmp_path / "out.parquet").mkdir()
    path = write("a.parquet", ["x"])
    text = refused("prepare", "user", "--source", path, "--output", "out.parquet", "--force")
    assert "--output out.parquet is a folder; name a file in it" in text


def test_what_a_file_holds_is_never_sent_to_the_terminal(data, refused, write_jsonl):
    path = write_jsonl("a.jsonl", [{"q\x1b": "a\x1b[31m\x00\u202e", "role\x07": ["\x1b"]}])
    out = data("show", path).out
    assert "q\\x1b: a\\x1b[31m\\x00\\u202e" in out and "\x1b" not in out and "\x07" not in out
    columns = ["--question-column", "x", "--answer-column", "y"]
    text = refused("prepare", "user", "--source", path, "--output", "o.parquet", *columns)
    assert "(found: q\\x1b, role\\x07)" in text


def test_other_scripts_are_shown_as_they_are():
    assert escaped("数学\u3000é\ta\nb") == "数学\u3000é\ta\nb"
    assert escaped("a\r\u200b") == "a\\r\\u200b"


def test_an_empty_prompt_is_shown(data, write_jsonl):
    assert "    prompt: []\n" in data("show", write_jsonl("a.jsonl", [{"prompt": []}])).out


def test_show_of_a_file_without_rows(refused, tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    assert refused("show", "a.jsonl") == "opdvr data: a.jsonl has no rows\n"


def test_show(data, write):
    ran = data("show", write("a.parquet", ["one " * 300, "two\nlines"], ["5", "7"]), "--rows", 1)
    assert ran.code == 0
    assert ran.out.startswith("row 0\n") and "row 1" not in ran.out
    assert "ground_truth: 5" in ran.out and "characters)" in ran.out
    ran = data("show", "a.parquet", "--start", 1, "--full")
    assert ran.out.startswith("row 1\n") and "        two\n        lines " in ran.out


def test_show_any_file(data, refused, write_jsonl):
    path = write_jsonl("a.jsonl", [{"prompt": ["odd"], "n": 5, "nested": {"x": None}}])
    out = data("show", path).out
    assert "prompt: ['odd']" in out and "n: 5" in out and "x: None" in out
    assert "has no row 1" in refused("show", path, "--start", 1)


def test_nothing_heavy_is_imported():
    heavy = ("torch", "transformers", "verl", "vllm", "ray", "datasets", "huggingface_hub", "sympy")
    code = f"import sys, opdvr.data.command; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_package_runs_it(write):
    path = write("a.parquet", ["same", "same"])
    ran = subprocess.run(
        [sys.executable, "-m", "opdvr", "data", "show", str(path)], capture_output=True, text=True
    )
    assert ran.returncode == 0 and ran.stdout.startswith("row 0\n"), ran.stderr


# Manifest


def entry(**changes):
    base = {"rows": 3, "sha256": "a", "content_sha256": "c", "pyarrow": "21.0.0"}
    return {**base, **changes}


def test_differences_from_the_manifest():
    compare = manifest.compare
    assert compare(entry(), "x.parquet", None) == "the manifest has no x.parquet"
    assert compare(entry(), "x.parquet", entry()) == "equal to the manifest's x.parquet"
    other = compare(entry(sha256="b", pyarrow="22.0.0"), "x.parquet", entry())
    assert other.startswith("the rows of the manifest's x.parquet, in other bytes (written by py")
    differs = compare(entry(rows=4, sha256="b", content_sha256="d"), "x.parquet", entry())
    assert differs == "differs from the manifest's x.parquet: rows 4, there 3; sha256 b, there a"


def test_updating_keeps_the_others(tmp_path):
    path = tmp_path / "manifest.json"
    manifest.update_manifest("b.parquet", entry(), path)
    manifest.update_manifest("a.parquet", entry(rows=4), path)
    manifest.update_manifest("b.parquet", entry(rows=5), path)
    assert {k: v["rows"] for k, v in manifest.read_manifest(path).items()} == {
        "a.parquet": 4,
        "b.parquet": 5,
    }


def test_the_manifest_and_its_readme_say_the_same():
    recorded = manifest.read_manifest()
    readme = (ROOT / "datasets" / "README.md").read_text()
    assert set(PRODUCTS) | {"demo-train.parquet", "demo-test.parquet"} == set(recorded)
    for name, made in recorded.items():
        (line,) = [line for line in readme.splitlines() if line.startswith(f"| `{name}`")]
        assert f"{made['rows']:,}" in line and made["sha256"] in line and made["command"] in line


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    """The products made from the collected data sets, with the manifest entry of each."""
    if not (SHARED / "benchmarks").is_dir():
        pytest.skip("the collected data sets are not here")
    from opdvr.data.command import main

    folder = tmp_path_factory.mktemp("products")
    entries = {}
    for name, kind in PRODUCTS.items():
        source = SHARED / ("benchmarks" if kind == "valid" else "train")
        against = (
            [] if kind == "valid" else ["--against", str(folder / "valid_final_unique.parquet")]
        )
        output = folder / name
        command = ["prepare", kind, "--source", str(source), "--output", str(output), *against]
        assert main(command) == 0
        record = json.loads(Path(f"{output}.sources.json").read_text())
        assert record.pop("file") == name
        entries[name] = record
    return folder, entries


def test_valid_is_what_the_manifest_says(products):
    _, entries = products
    name = "valid_final_unique.parquet"
    assert entries[name]["rows"] == 1590
    recorded = manifest.read_manifest()[name]
    assert manifest.compare(entries[name], name, recorded) == f"equal to the manifest's {name}"


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_rows_are_what_the_manifest_says(products, name):
    recorded = manifest.read_manifest()[name]
    assert products[1][name]["content_sha256"] == recorded["content_sha256"]
    assert products[1][name]["removed"] == recorded["removed"]


def test_valid_has_the_prompts_of_its_sources(products, read):
    made = read(products[0] / "valid_final_unique.parquet")
    given = [row for s in BENCHMARKS for row in read(SHARED / "benchmarks" / f"{s.name}.parquet")]
    assert [row["prompt"][0]["content"] for row in made] == [
        row["prompt"][0]["content"] for row in given
    ]
    for column in ("data_source", "reward_model", "extra_info"):
        assert [row[column] for row in made] == [row[column] for row in given]


def test_the_raw_file_of_another_benchmark(data, read):
    raw = SHARED / "benchmarks" / "BRUMO25.parquet"
    if not raw.is_file():
        pytest.skip("the collected data sets are not here")
    ran = data("check", raw)
    assert ran.code == 1 and "lacks the columns prompt, data_source, reward_model" in ran.out
    columns = ["--question-column", "problem", "--answer-column", "answer"]
    ran = data("prepare", "user", "--source", raw, "--output", "brumo.parquet", *columns)
    assert ran.code == 0 and len(read("brumo.parquet")) == 30
    assert data("check", "brumo.parquet").code == 0
