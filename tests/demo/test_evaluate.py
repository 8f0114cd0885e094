"""Evaluation: it counts what the verifier says, repeats with its seed and names user mistakes."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from opdvr import demo
from opdvr.demo import evaluate as module
from opdvr.demo.evaluate import evaluate, main
from opdvr.demo.task import write_parquet

MODELS = Path(demo.__file__).parent / "models"


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("data"))[1]


def test_counts_by_hand(held_out, monkeypatch):
    prompts = [r["prompt"][0]["content"] for r in pq.read_table(held_out).to_pylist()[:4]]
    answers = [r["reward_model"]["ground_truth"] for r in pq.read_table(held_out).to_pylist()[:4]]

    def canned(model, tokenizer, texts, temperature):
        # Problem by problem, two samples each when sampling: right and wrong, right twice, never,
        # never. Greedy: the first alone is right.
        assert [t.split("<|assistant|>")[0] for t in texts] == [
            f"<|user|>{p}" for p in prompts for _ in range(len(texts) // 4)
        ]
        right = [1, 0, 1, 1, 0, 0, 0, 0] if temperature else [1, 0, 0, 0]
        each = len(texts) // 4
        return [rf"\boxed{{{answers[i // each] if ok else 7}}}" for i, ok in enumerate(right)]

    monkeypatch.setattr(module, "_generate", canned)
    result = evaluate(MODELS / "student", held_out, n_samples=2, limit=4)
    # Per problem .5, 1, 0, 0: mean 3/8, variance (.125^2 + .625^2 + 2*.375^2)/4 = .171875,
    # standard error sqrt(.171875/4) = .2072890.
    assert result["sampled_accuracy"] == 0.375
    assert result["sampled_stderr"] == pytest.approx(0.2072890, abs=1e-6)
    assert result["greedy_accuracy"] == 0.25
    assert (result["problems"], result["n_samples"]) == (4, 2)


def test_repeats_with_its_seed_and_leaves_the_generator_alone(held_out):
    def run(seed):
        kept = evaluate(MODELS / "student", held_out, n_samples=2, seed=seed, limit=32)
        return {k: v for k, v in kept.items() if k not in ("seconds", "seed")}

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = run(1)
    assert torch.equal(torch.rand(3), expected)
    assert run(1) == first
    assert any(run(seed)["sampled_accuracy"] != first["sampled_accuracy"] for seed in (2, 3))


def test_low_temperature_approaches_greedy(held_out):
    result = evaluate(MODELS / "student", held_out, temperature=0.05, limit=32)
    assert abs(result["sampled_accuracy"] - result["greedy_accuracy"]) <= 2 / 32
    assert result["sampled_accuracy"] > 0.9


def test_greedy_can_be_left_out(held_out):
    result = evaluate(MODELS / "teacher-good", held_out, limit=4, greedy=False)
    assert result["greedy_accuracy"] is None and result["sampled_accuracy"] >= 0.5


def test_prompts_of_unequal_length_do_not_disturb_each_other(held_out, tmp_path):
    """A longer chat in the batch pads the others on the left; their answers stay the same."""
    table = pq.read_table(held_out).slice(0, 16)
    rows = table.to_pylist()
    rows[0]["prompt"] = [{"role": "user", "content": rows[0]["prompt"][0]["content"] + "   "}]
    pq.write_table(table.from_pylist(rows, schema=table.schema), tmp_path / "mixed.parquet")
    mixed = evaluate(MODELS / "teacher-good", tmp_path / "mixed.parquet")["greedy_accuracy"]
    even = evaluate(MODELS / "teacher-good", held_out, limit=16)["greedy_accuracy"]
    # Only the tampered row may change.
    assert abs(mixed - even) <= 1 / 16


def test_command_line_table_and_json(held_out, tmp_path, capsys):
    spaced = tmp_path / "my model"
    shutil.copytree(MODELS / "teacher-good", spaced)
    arguments = [str(spaced), "--data", str(held_out), "--n", "1", "--limit", "8"]
    main(arguments)
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["model", "sampled", "stderr", "greedy", "problems", "samples"]
    assert line.startswith(str(spaced)) and line.split()[-2:] == ["8", "1"]
    main([*arguments, "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    assert result["model"] == str(spaced) and 0 <= result["sampled_accuracy"] <= 1


def test_user_mistakes_are_one_line(held_out, tmp_path):
    with pytest.raises(ValueError, match="temperature=0"):
        evaluate(MODELS / "student", held_out, temperature=0)
    with pytest.raises(ValueError, match="limit=0"):
        evaluate(MODELS / "student", held_out, limit=0)
    with pytest.raises(ValueError, match="no model in .*nowhere"):
        evaluate(tmp_path / "nowhere", held_out)
    with pytest.raises(ValueError, match="no data file"):
        evaluate(MODELS / "student", tmp_path / "none.parquet")
    empty = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(held_out).slice(0, 0), empty)
    with pytest.raises(ValueError, match="has no rows"):
        evaluate(MODELS / "student", empty)


def test_command_line_names_a_missing_model(held_out, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path / "nowhere"), "--data", str(held_out)])
    assert stopped.value.code == 2
    assert "no model in" in capsys.readouterr().err.splitlines()[-1]
