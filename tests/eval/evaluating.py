"""Problems, samples and data files in small, for the tests of the evaluation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from opdvr.eval.problems import Problem
from opdvr.eval.samples import Sample

ROOT = Path(__file__).parents[2]
STUDENT = ROOT / "opdvr" / "demo" / "models" / "student"
SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
    }
)


def row(question, gold, source="opdvr-demo"):
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": gold},
    }


def write_data(path, rows):
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    return path


def dry_run(script, *arguments, cwd=ROOT, **variables):
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "DRY_RUN": "1", **variables}
    return subprocess.run(
        ["bash", str(ROOT / script), *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )


def problem(number=0, gold="1", source="a", question="1*1=?"):
    messages = [{"role": "user", "content": question}]
    return Problem(f"{source}:d:{number}", number, source, messages, gold, {"index": number})


def sample(of, index, text, tokens=5, finish="stop"):
    return Sample(of.key, index, of.data_source, tokens, finish, 1, text)


def settings(**others):
    """Settings as run.json and results.json have them."""
    named = {"name": "x", "fingerprint": "1" * 32}
    return {
        **{"model": named, "data": named, "limit": None, "n": 4, "temperature": 1.0},
        **{"top-p": 1.0, "max-tokens": 9, "thinking": False},
        **others,
    }


def run_eval(*arguments, timeout=300):
    return subprocess.run(
        eval_command(*arguments),
        cwd=ROOT,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=timeout,
    )


def eval_command(*arguments):
    return [sys.executable, "-m", "opdvr", "eval", *map(str, arguments)]


def environment():
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
