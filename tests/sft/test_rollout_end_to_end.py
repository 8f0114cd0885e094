"""`opdvr sft rollout` with vLLM, on the embedded teacher."""

import json
import subprocess

import pytest
from rolling import TEACHER, attempts_of, command, environment, lines_of, row, write_data


@pytest.mark.slow
def test_with_vllm(tmp_path):
    pytest.importorskip("vllm")
    rows = [row(f"{n}*3+4=?", str(n * 3 + 4)) for n in range(100, 140)]
    data = write_data(tmp_path / "data.parquet", rows)
    asked = [*("--model", TEACHER, "--data", data, "--output", tmp_path / "out", "--n", "2")]
    asked += ["--max-tokens", "36", "--temperature", "1"]
    done = subprocess.run(command(*asked), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads((tmp_path / "out" / "counts.json").read_text())
    # the embedded teacher is right in 97 of 100
    assert counts["accepted"] >= 70
    made = attempts_of(tmp_path / "out")
    assert len({line["seed"] for line in made.values()}) == len(made)
    assert all("\\boxed{" in r["text"] for r in lines_of(tmp_path / "out" / "rollouts.jsonl"))
