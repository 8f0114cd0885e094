"""The benchmarks run, write what docs/benchmarks.md says, and compute what they name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("verl")

from benchmarks import measure, memory  # noqa: E402
from benchmarks.run import parse  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {
    "case": str,
    "metric": str,
    "value": float,
    "unit": str,
    "peer": (str, type(None)),
    "ratio": (float, type(None)),
    "low": float,
    "high": float,
    "ratio_low": (float, type(None)),
    "ratio_high": (float, type(None)),
}


def run_quick(name, folder):
    output = folder / "results.json"
    command = [sys.executable, "-m", "benchmarks.run", name, "--quick", "--json", str(output)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-2000:]
    results = json.loads(output.read_text())
    for result in results:
        assert result.keys() == FIELDS.keys()
        for key, kind in FIELDS.items():
            assert isinstance(result[key], kind), (key, result)
        assert result["low"] <= result["value"] <= result["high"]
        assert result["case"] in child.stdout  # the table has it too
        if result["ratio"] is not None:
            assert result["peer"] and result["ratio_low"] <= result["ratio"] <= result["ratio_high"]
    return results


def find(results, metric, **fields):
    found = [
        result
        for result in results
        if result["metric"] == metric and fields.items() <= result.items()
    ]
    assert found, (metric, fields)
    return found


@pytest.mark.slow
def test_teacher_quick(tmp_path):
    results = run_quick("teacher", tmp_path)
    # 64 tokens in chunks of 16: dense holds at least 4 times the logits, twice over
    for result in find(results, "peak memory", peer="dense"):
        assert result["ratio"] > 1
    for metric in ("largest log-prob difference", "largest entropy difference"):
        for result in find(results, metric):
            assert 0 <= result["value"] < 1e-4
    peers = {result["peer"] for result in find(results, "time")}
    assert peers == {"dense", "chunked cross_entropy", "plain transformers", None}


@pytest.mark.slow
def test_step_quick(tmp_path):
    results = run_quick("step", tmp_path)
    (difference,) = find(results, "largest gradient norm difference")
    assert difference["value"] == 0.0
    norms = {result["case"]: result["value"] for result in find(results, "gradient norm")}
    # distillation and GRPO are two objectives; verl's engine and ours compute the same GRPO
    assert norms["OPDVR, single forward"] == norms["OPDVR, recompute"]
    assert norms["GRPO, single forward"] > 0
    assert norms["GRPO, single forward"] == pytest.approx(norms["verl's GRPO, float32"], rel=1e-4)
    assert norms["GRPO, single forward"] != pytest.approx(norms["OPDVR, recompute"], rel=1e-2)
    for case in norms:
        phases = find(results, "update", case=case) + find(results, "step", case=case)
        assert all(result["value"] > 0 for result in phases)


@pytest.mark.slow
def test_observe_quick(tmp_path):
    results = run_quick("observe", tmp_path)
    (step,) = find(results, "step", case="observed", peer="not observed")
    (written,) = find(results, "metrics and files", case="observed")
    assert 0 < written["value"] < step["value"]
    assert step["ratio"] > 0


@pytest.mark.slow
def test_topk_quick(tmp_path):
    results = run_quick("topk", tmp_path)
    sampled = find(results, "step", case="K=0")[0]
    assert sampled["peer"] is None
    for case in ("K=4 only_tch", "K=64 union"):
        (step,) = find(results, "step", case=case, peer="K=0")
        parts = [
            find(results, phase, case=case)[0]["value"] for phase in ("scoring passes", "update")
        ]
        assert step["value"] == pytest.approx(sum(parts), rel=0.2)  # medians of two rounds


@pytest.mark.slow
@pytest.mark.slow
def test_engine_quick(tmp_path):
    results = run_quick("engine", tmp_path)
    found = {(result["case"], result["metric"], result["peer"]): result for result in results}
    for (_, metric, _), result in found.items():
        if "difference" in metric:
            assert result["value"] < 1e-4
    hidden = [
        r["value"] for (_, metric, _), r in found.items() if metric == "share of scoring hidden"
    ]
    assert len(hidden) == 1 and 0 < hidden[0] <= 1
    speeds = [r for (_, metric, _), r in found.items() if metric == "scored"]
    assert speeds and all(r["value"] > 0 and r["ratio"] > 0 for r in speeds)


def test_verifier_quick(tmp_path):
    results = run_quick("verifier", tmp_path)
    # 60 rows of each case, every second one right
    assert {r["value"] for r in find(results, "judged right by ours")} == {0.5}
    assert all(r["value"] > 0 for r in find(results, "verdicts"))


@pytest.mark.slow
def test_hostile_quick(tmp_path):
    results = {result["metric"]: result["value"] for result in run_quick("hostile", tmp_path)}
    assert results["answers"] > 15
    assert results["code executed"] == 0
    # 0.3 s a verdict, half a second's grace, and a worker's start on a loaded machine
    assert results["slowest verdict"] < 10.0


def test_ratio_is_the_median_over_rounds_of_peer_over_ours():
    ours = [{"total": 1.0, "CPU": 1.0}, {"total": 2.0, "CPU": 1.0}, {"total": 4.0, "CPU": 1.0}]
    peer = [{"total": 4.0, "CPU": 3.0}, {"total": 2.0, "CPU": 3.0}, {"total": 4.0, "CPU": 3.0}]
    wall, cpu = measure.time_results("case", "time", ours, {"peer": peer})
    assert (wall.metric, wall.peer, wall.unit) == ("time", "peer", "s")
    assert (wall.value, wall.low, wall.high) == (2.0, 1.0, 4.0)
    # 4/1, 2/2, 4/4: the median is 1, while the ratio of the medians would be 4/2
    assert (wall.ratio, wall.ratio_low, wall.ratio_high) == (1.0, 1.0, 4.0)
    assert (cpu.metric, cpu.value, cpu.ratio) == ("time, CPU", 1.0, 3.0)
    alone, _ = measure.time_results("case", "time", ours)
    assert (alone.peer, alone.ratio, alone.value) == (None, None, 2.0)


def test_rounds_interleave_and_rotate_and_warm_up_is_dropped():
    order = []

    def side(name):
        order.append(name)
        return {"total": float(len(order))}

    sides = {name: lambda name=name: side(name) for name in "abc"}
    seconds = measure.interleaved(sides, rounds=2, warm_up=1)
    assert "".join(order) == "abc" + "bca" + "cab"
    assert measure.phase_of(seconds["a"]) == [6.0, 8.0]


def test_stopwatch_adds_phases_and_spans_them():
    watch = measure.Stopwatch()
    for name in ("one", "two", "one"):
        with watch.phase(name):
            pass
    assert set(watch.seconds) == {"one", "two", measure.TOTAL, measure.CPU}
    assert watch.seconds["total"] >= watch.seconds["one"] + watch.seconds["two"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="process memory is measured on CPUs")
def test_peak_counts_what_a_call_frees_again():
    # 32 Mi float32 numbers are 128 MiB, gone when the call ends; nothing else is made
    peak = memory.measure(lambda: torch.ones(32 * 1024 * 1024).sum())
    assert 120 < peak / memory.MEBIBYTE < 144


def test_a_failing_probe_says_so():
    with pytest.raises(RuntimeError, match="prepare.*failed"):
        memory.peak_mebibytes("benchmarks.teacher:prepare", side="nobody")


def test_rounds_must_be_positive(capsys):
    with pytest.raises(SystemExit):
        parse(["step", "--rounds", "0"])
    assert "--rounds must be at least 1" in capsys.readouterr().err
