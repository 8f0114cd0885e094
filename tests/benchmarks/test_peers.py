"""The `peers` benchmark: its gate, its arithmetic, what it refuses, and how it finds its peer."""

import argparse
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("verl")

from benchmarks import peers, peers_environment  # noqa: E402
from benchmarks.peers_gate import digest  # noqa: E402
from benchmarks.peers_sides import Side, check_same_prompts, environment  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = digest([[3, 4]])
# A side that counts its steps, prints where the gate's lines would be lost, and says when it stops.
COUNTING = """
    import subprocess, sys
    from pathlib import Path
    from benchmarks.peers_gate import Gate, Stopped, digest

    gate, report = Gate(), {}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        for number in range(100):
            gate.wait(report)
            print("noise on stdout")
            report = {"tokens": number, "rows": 2, "prompts": digest([[3, 4]]),
                      "phases": {"generation": 0.5}}
    except Stopped:
        Path(sys.argv[1]).write_text(f"stopped before step {number + 1}")
        child.terminate()
"""


def side_of(folder, program, *arguments):
    path = folder / "side.py"
    path.write_text(textwrap.dedent(program))
    command = [sys.executable, str(path), *map(str, arguments)]
    return Side("counting", command, folder / "side.log", environment(threads=1))


# ---- the gate ------------------------------------------------------------------------------------


def test_a_side_does_one_step_each_time_and_stops_when_its_pipe_closes(tmp_path):
    side = side_of(tmp_path, COUNTING, tmp_path / "end")
    side.start()
    try:
        seconds = [side.step() for _ in range(3)]
        memory = side.memory()
        side.reset_peak()
    finally:
        side.close()
    assert [report["tokens"] for report in side.reports] == [0, 1, 2]
    for measured in seconds:
        assert measured["generation"] == 0.5
        assert 0 < measured["total"] < 60 and measured["CPU"] >= 0
    assert memory["processes"] == 2  # its child counts
    assert memory["peak"] >= memory["held"] > 1
    assert (tmp_path / "end").read_text() == "stopped before step 4"
    assert side.log.read_text().count("noise on stdout") == 3


def test_a_side_that_ends_is_named_with_its_last_words(tmp_path):
    side = side_of(tmp_path, "raise SystemExit('no such model')")
    with pytest.raises(RuntimeError, match="counting ended.*\nno such model"):
        side.start()
    side.close()


def test_a_side_that_never_started_can_be_closed(tmp_path):
    side_of(tmp_path, COUNTING).close()


def test_sides_are_free_of_gpus_and_of_the_network():
    names = environment(threads=2)
    assert names["CUDA_VISIBLE_DEVICES"] == "" and names["HF_HUB_OFFLINE"] == "1"
    assert names["OMP_NUM_THREADS"] == "2"
    assert names["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


# ---- the same prompts ----------------------------------------------------------------------------


def test_a_digest_knows_prompts_by_their_tokens_whatever_order_and_copies():
    assert digest([[1, 2], [3]]) == digest([[3], [1, 2], [3]])
    assert digest([[1, 2], [3]]) != digest([[1], [2, 3]])
    assert digest([[1, 2]]) != digest([[2, 1]])


@pytest.mark.parametrize("what, value", [("prompts", digest([[4, 3]])), ("rows", 3)])
def test_sides_that_began_from_something_else_are_refused(tmp_path, what, value):
    same = {"prompts": PROMPTS, "rows": 2}
    first, second = side_of(tmp_path, ""), side_of(tmp_path, "")
    second.name = "other"
    first.reports, second.reports = [same, same], [same, same]
    check_same_prompts([first, second])
    second.reports = [same, same | {what: value}]
    with pytest.raises(RuntimeError, match=f"step 2: other and counting differ in their {what}"):
        check_same_prompts([first, second])


# ---- figures -------------------------------------------------------------------------------------


def test_the_table_has_every_figure_and_ratios_are_peer_over_ours():
    seconds = {
        peers.OURS: [
            {"total": 2.0, "CPU": 3.0, "generation": 0.5, "update": 1.0},
            {"total": 4.0, "CPU": 5.0, "generation": 1.0, "update": 2.0},
        ],
        "TRL A": [
            {"total": 1.0, "CPU": 1.5, "generation": 0.75},
            {"total": 8.0, "CPU": 2.5, "generation": 0.5},
        ],
    }
    tokens = {peers.OURS: [1000, 1000], "TRL A": [500, 1000]}
    memory = {
        peers.OURS: {"processes": 13, "peak": 4000.0, "held": 3000.0},
        "TRL A": {"processes": 1, "peak": 1000.0, "held": 600.0},
    }
    results = list(peers.summarise("case", seconds, tokens, memory))
    found = {(result.case, result.metric): result for result in results}
    ours = f"case: {peers.OURS}"
    step = found[ours, "step"]
    # by round 1/2 and 8/4, so 0.5 and 2 with the median 1.25; the value is that of 2 and 4 seconds
    assert (step.value, step.ratio, step.ratio_low, step.ratio_high) == (3.0, 1.25, 0.5, 2.0)
    assert step.peer == "TRL A"
    # 1000 * 2 / 1000 and 4; the peer's 1000 * 1 / 500 = 2 and 8: ratios 1 and 2
    assert found[ours, "1,000 response tokens"].ratio == 1.5
    # 2 - 0.5 and 4 - 1; the peer's 1 - 0.75 and 8 - 0.5: ratios 1/6 and 2.5
    rest = found[ours, peers.REST]
    assert (rest.low, rest.high) == (1.5, 3.0)
    assert (rest.ratio_low, rest.ratio_high) == (pytest.approx(1 / 6), 2.5)
    # 1000 / 2 and 1000 / 4; the peer's 500 / 1 and 1000 / 8. More is better, so no ratio is given
    rate, theirs = found[ours, "throughput"], found["case: TRL A", "throughput"]
    assert (rate.low, rate.high, rate.ratio) == (250.0, 500.0, None)
    assert (theirs.low, theirs.high) == (125.0, 500.0)
    assert found[ours, "peak memory"].ratio == 0.25
    assert found[ours, "update"].value == 1.5
    assert ("case: TRL A", "step") in found and found["case: TRL A", "step"].ratio is None


# ---- options and the environment -----------------------------------------------------------------


def test_knobs_are_pairs():
    assert peers.parse_knobs(["A=1", "B=x=y"]) == {"A": "1", "B": "x=y"}
    for wrong in ("A", "=1"):
        with pytest.raises(ValueError, match=f"--knob {wrong} is not of the form NAME=VALUE"):
            peers.parse_knobs([wrong])


def test_options_have_the_launchers_settings():
    parser = argparse.ArgumentParser()
    peers.add_options(parser)
    options = parser.parse_args(["--cases", "embedded", "--threads", "2"])
    assert options.cases == ["embedded"] and options.threads == 2
    assert options.trainers == list(peers.TRAINERS)


def test_our_side_is_what_the_launcher_would_run(tmp_path):
    from benchmarks import peers_cases

    parquet, lines = peers_cases.write_problems(tmp_path)
    question, solution = json.loads(lines.read_text().splitlines()[0])
    assert question.endswith("=?") and "\\boxed{" in solution
    arguments = peers_cases.launcher_arguments(
        peers_cases.embedded(4, 2), parquet, tmp_path / "run", {"FULL_VOCABULARY": "reverse_kl"}
    )
    for expected in (
        "platform=cpu",
        "opdvr.correctness_gated=True",
        "opdvr.full_vocabulary=reverse_kl",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.val_before_train=False",
    ):
        assert expected in arguments
    with pytest.raises(RuntimeError, match="opdvr.sh: .*N_RESPONSES"):
        peers_cases.launcher_arguments(
            peers_cases.embedded(4, 2), parquet, tmp_path / "run", {"N_RESPONSES": "two"}
        )


def test_the_environment_is_known_by_its_requirements_and_only_when_finished(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    requirements = tmp_path / "trl.txt"
    requirements.write_text("trl==1.0\n")
    folder = peers_environment.folder_of(requirements)
    assert folder.parent == tmp_path / "opdvr" and folder.name.startswith("peers-")
    assert peers_environment.python_of(requirements) is None
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert peers_environment.python_of(requirements) is None  # interrupted before its end
    (folder / "complete").touch()
    assert peers_environment.prepare(requirements) == python
    requirements.write_text("trl==2.0\n")
    assert peers_environment.folder_of(requirements) != folder
    with pytest.raises(ValueError, match=r"needs Python 3\.11 or newer"):
        peers_environment.prepare(requirements, version=(3, 10))


@pytest.mark.slow
def test_what_cannot_be_installed_is_said_with_the_tools_words(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("UV_OFFLINE", "UV_NO_INDEX", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    requirements = tmp_path / "trl.txt"
    requirements.write_text("opdvr-has-no-such-peer==1.0\n")
    with pytest.raises(RuntimeError, match="could not be made.*registry[\\s\\S]*no-such-peer"):
        peers_environment.prepare(requirements)
    assert peers_environment.python_of(requirements) is None


def test_requirements_are_pinned_and_name_no_address():
    lines = peers_environment.REQUIREMENTS.read_text().splitlines()
    assert all("==" in line for line in lines)
    assert not any(word in line for line in lines for word in ("://", "@", "--"))


@pytest.mark.slow
def test_the_quick_form_runs_both_sides(tmp_path):
    if peers_environment.python_of(peers_environment.REQUIREMENTS) is None:
        pytest.skip("no environment of the peer: python -m benchmarks.run peers makes it")
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.run", "peers", "--quick", "--json", str(output)]
    child = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert child.returncode == 0, child.stderr[-2000:]
    results = json.loads(output.read_text())
    for peer in ("TRL DistillationTrainer", "TRL IWOPDTrainer"):
        ratios = [r["ratio"] for r in results if r["metric"] == "step" and r["peer"] == peer]
        assert len(ratios) == 1 and ratios[0] > 0
    rates = [r["value"] for r in results if r["metric"] == "throughput"]
    assert len(rates) == 3 and min(rates) > 0
