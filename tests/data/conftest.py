"""Small data files and the command line, run in the test's own process and folder."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opdvr.data.command import main
from opdvr.data.text import SUFFIX, prompt_of


@pytest.fixture
def data(capsys, monkeypatch, tmp_path):
    """data("check", ...): exit code, stdout and stderr of a command run in tmp_path."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return SimpleNamespace(code=code, out=said.out, err=said.err)

    return run


@pytest.fixture
def refused(data):
    """refused(...): the one line on stderr of a command that ends with 2."""

    def run(*arguments):
        ran = data(*arguments)
        assert ran.code == 2, ran.out
        assert ran.err.startswith("opdvr data: ") and ran.err.count("\n") == 1, ran.err
        return ran.err

    return run


@pytest.fixture
def found(data):
    """found(...): the lines of `check` with findings, without the closing one."""

    def run(*arguments):
        ran = data("check", *arguments)
        lines = ran.out.splitlines()
        assert ran.code == (1 if lines[:-1] else 0), ran
        return lines[:-1]

    return run


@pytest.fixture
def write(tmp_path):
    """write("a.parquet", problems): a file in verl's form with our suffix on each problem."""

    def write(name, problems, golds=None, **columns):
        n = len(problems)
        rows = {
            "prompt": [[{"role": "user", "content": prompt_of(p)}] for p in problems],
            "data_source": ["source"] * n,
            "reward_model": [{"ground_truth": g, "style": "rule"} for g in golds or ["5"] * n],
            **columns,
        }
        pq.write_table(pa.table(rows), tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def write_jsonl(tmp_path):
    def write(name, rows):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def read():
    """read(path): the rows of a parquet file as dictionaries."""
    return lambda path: pq.read_table(path).to_pylist()


@pytest.fixture
def prepare(data, read):
    """prepare(source, ...): the rows that `prepare user` makes of a file."""

    def run(source, *options):
        ran = data("prepare", "user", "--source", source, "--output", "out.parquet", *options)
        assert ran.code == 0, ran.err
        return read("out.parquet")

    return run


@pytest.fixture
def pairs():
    """pairs(rows): problem and gold answer of each."""

    def run(rows):
        return [
            (
                row["prompt"][-1]["content"].removesuffix(f" {SUFFIX}"),
                row["reward_model"]["ground_truth"],
            )
            for row in rows
        ]

    return run
