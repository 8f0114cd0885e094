"""`opdvr sft rollout` with stand-in engines: retries, files, resuming, refusals."""

import json
import os
import random
import signal
import time

import pyarrow.parquet as pq
import pytest
from rolling import TEACHER, Engines, answer, attempts_of, lines_of, row, write_data

from opdvr.sft import rollout_command, rollout_run
from opdvr.sft.rollout_attempts import attempt_seed, read_written

PROMPTS = 12


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data.parquet", [row(f"{n}*3+4=?") for n in range(PROMPTS)])


@pytest.fixture
def arguments(tmp_path, data):
    return [
        *("--model", str(TEACHER), "--data", str(data), "--output", str(tmp_path / "out")),
        *("--n", "2", "--device", "cpu", "--max-tokens", "9"),
    ]


@pytest.fixture
def engines(monkeypatch):
    engines = Engines()
    monkeypatch.setattr(rollout_run, "generate", engines.generate)
    return engines


def run(arguments):
    return rollout_command.main(arguments)


def expected(keys, n=2, attempts=3, seed=0):
    """{(key, slot, attempt): reason} worked out from the seeds alone."""
    reasons = (None, "incorrect", "no_box", "truncated")
    found = {}
    for key in keys:
        for slot in range(n):
            for attempt in range(attempts):
                reason = reasons[attempt_seed(seed, key, slot, attempt) % 4]
                found[key, slot, attempt] = reason
                if reason is None:
                    break
    return found


def test_rejected_slots_are_sampled_anew(engines, arguments, tmp_path, capfd):
    assert run(arguments) == 0
    out = tmp_path / "out"
    made = attempts_of(out)
    keys = {key for key, _, _ in made}
    assert len(keys) == PROMPTS
    assert {name: line["reason"] for name, line in made.items()} == expected(keys)
    for (key, slot, attempt), line in made.items():
        assert line["seed"] == attempt_seed(0, key, slot, attempt)
        assert (line["text"], line["finish"]) == answer(line["seed"])
        assert line["tokens"] == 3
    # one request for each, in the order of prompts and slots to begin with
    assert len(engines.asked) == len(made)
    first = [(r.prompt, r.sample) for r in engines.asked[:4]]
    assert first == [(0, 0), (0, 1), (1, 0), (1, 1)]
    counts = json.loads((out / "counts.json").read_text())
    reasons = [line["reason"] for line in made.values()]
    assert counts["slots"] == 2 * PROMPTS and counts["attempts"] == len(made)
    assert counts["accepted"] == reasons.count(None) > 0
    assert counts["exhausted"] == 2 * PROMPTS - counts["accepted"] > 0
    assert counts["rejected"]["truncated"] == reasons.count("truncated") > 0
    assert counts["tokens"] == 3 * len(made) and counts["judged"] == PROMPTS
    assert {path.name for path in out.iterdir()} >= {
        *("run.json", "rollouts.jsonl", "rejected.jsonl", "counts.json", "engine.log"),
        *("sft.parquet", "sft-val.parquet", "llamafactory", "seconds.json"),
    }
    printed = capfd.readouterr()
    assert "| given up" in printed.out and "| repeated_block |" in printed.out
    progress = f"{counts['accepted']}/24 accepted | {len(made) - counts['accepted']} rejected | "
    assert progress in printed.err


def test_several_engines_share_the_retries(engines, arguments, tmp_path):
    assert run([*arguments, "--engines", "3"]) == 0
    made = attempts_of(tmp_path / "out")
    assert {n: line["reason"] for n, line in made.items()} == expected({k for k, _, _ in made})


def test_keep_all_keeps_all(engines, arguments, tmp_path):
    assert run([*arguments, "--keep-all"]) == 0
    made = attempts_of(tmp_path / "out")
    assert len(made) == 2 * PROMPTS and not any(line["reason"] for line in made.values())


def test_greedy_attempts_are_made_once(engines, arguments, tmp_path, capsys):
    assert run([*arguments, "--temperature", "0", "--n", "1"]) == 0
    assert "another attempt would be a copy" in capsys.readouterr().err
    assert {line["seed"] for line in lines_of(tmp_path / "out" / "rollouts.jsonl")} == {None}
    assert len(engines.asked) == PROMPTS


def test_interrupted_and_gone_on_with(engines, arguments, tmp_path, capsys):
    engines.stop_after = 7
    assert run(arguments) == 130
    said = capsys.readouterr().err
    assert "of 24 responses accepted" in said
    assert "go on with: python -m opdvr sft rollout --model" in said
    out = tmp_path / "out"
    before = attempts_of(out)
    assert 0 < len(before) <= 7
    with open(out / "rejected.jsonl", "ab") as file:
        file.write(b'{"key": "opdvr')  # and killed
    engines.stop_after = None
    assert run(arguments) == 0
    made = attempts_of(out)
    assert before.items() <= made.items()
    assert {n: line["reason"] for n, line in made.items()} == expected({k for k, _, _ in made})
    assert (out / "rejected.torn.jsonl").read_text() == '{"key": "opdvr\n'
    # at its end: only what follows from the attempts is written again
    asked = len(engines.asked)
    (out / "sft.parquet").unlink()
    assert run(arguments) == 0
    assert len(engines.asked) == asked and (out / "sft.parquet").exists()


def test_killed_three_times_nothing_is_lost_or_doubled(arguments, data, tmp_path, monkeypatch):
    """The kernel kills the process at any moment, and the set of attempts is the same."""
    write_data(data, [row(f"{n}*3+4=?") for n in range(200)])
    out = tmp_path / "out"
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(rollout_run, "generate", Engines(seconds=0.005).generate)
    for _ in range(3):
        before = size(out)
        child = in_a_child(arguments)
        deadline = time.monotonic() + 60
        while size(out) <= before and time.monotonic() < deadline:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.3))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    killed = len(whole_lines(out))
    assert run(arguments) == 0
    made = attempts_of(out)
    keys = {key for key, _, _ in made}
    assert len(keys) == 200 and 0 < killed < len(made)
    assert {n: line["reason"] for n, line in made.items()} == expected(keys)
    assert pq.read_metadata(out / "sft.parquet").num_rows > 200


def in_a_child(arguments):
    """The id of a child process that runs the command."""
    child = os.fork()
    if child:
        return child
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    code = 1
    try:
        code = run(arguments)
    finally:
        os._exit(code)


def whole_lines(out):
    return [
        line
        for name in ("rollouts.jsonl", "rejected.jsonl")
        for line in (out / name).read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def size(out):
    files = [out / name for name in ("rollouts.jsonl", "rejected.jsonl")]
    return sum(file.stat().st_size for file in files if file.exists())


def test_other_settings_are_refused(engines, arguments, data, tmp_path, capsys):
    assert run(arguments) == 0
    for given, said in [
        (["--attempts", "4"], "attempts 3, not 4"),
        (["--line-times", "6"], "rejection line-times 5, not 6"),
        (["--temperature", "0.5"], "temperature 0.7, not 0.5"),
        (["--answer-forms", "any"], 'answer-forms "boxed", not "any"'),
    ]:
        assert run([*arguments, *given]) == 2
        error = capsys.readouterr().err
        assert said in error and "choose another --output" in error
    write_data(data, [row("1+1=?", "2")])
    assert run(arguments) == 2
    assert "begun with data" in capsys.readouterr().err
    # another share of validation is no other rollout
    (tmp_path / "out" / "run.json").unlink()
    assert run(arguments) == 2
    assert "has rollouts.jsonl but no run.json" in capsys.readouterr().err


def test_damaged_seconds_are_named(engines, arguments, tmp_path, capsys):
    assert run(arguments) == 0
    (tmp_path / "out" / "seconds.json").write_text('{"seconds": "x"}')
    assert run(arguments) == 2
    assert "seconds.json is damaged (no number of seconds); take it away" in capsys.readouterr().err


def test_a_folder_in_use_is_refused(engines, arguments, tmp_path, capsys):
    from opdvr.sft.rollout_prepare import _hold

    with _hold(tmp_path / "out"):
        assert run(arguments) == 2
    assert "another process is rolling out into" in capsys.readouterr().err


def test_damaged_lines_are_named(engines, arguments, tmp_path, capsys):
    assert run(arguments) == 0
    out = tmp_path / "out"
    whole = (out / "rejected.jsonl").read_text()
    lines = whole.splitlines(keepends=True)
    content = json.loads(lines[0])
    for changed, said in [
        ({"slot": 2}, "is not of this rollout"),
        ({"tokens": "3"}, "tokens of a wrong type"),
        ({"reason": None}, "reason None does not belong here"),
        (json.loads(lines[1]), "twice"),
    ]:
        other = json.dumps({**content, **changed}) + "\n"
        (out / "rejected.jsonl").write_text(other + "".join(lines[1:]))
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert said in error and "rejected.jsonl, line" in error, error
    # a first attempt whose second is there
    second = next(line for line in map(json.loads, lines) if line["attempt"] == 1)
    first = {**second, "attempt": 0}
    rest = [line for line in lines if not is_attempt(json.loads(line), first)]
    (out / "rejected.jsonl").write_text("".join(rest))
    with pytest.raises(ValueError, match="of which some are missing"):
        read_written(out, {line["key"] for line in map(json.loads, lines)} | keys_of(out), 2, 3)


def is_attempt(line, other):
    return all(line[name] == other[name] for name in ("key", "slot", "attempt"))


def keys_of(out):
    return {line["key"] for line in lines_of(out / "rollouts.jsonl")}


def test_a_verifier_that_fails_ends_with_the_way_on(engines, arguments, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("def f(**_row):\n    raise KeyError('no')\n")
    mine = [*arguments, "--verifier", f"{path}:f"]
    assert run(mine) == 2
    error = capsys.readouterr().err
    assert "KeyError" in error and "mend it and go on with: python -m opdvr sft rollout" in error
    assert "mine.py" in (tmp_path / "out" / "verifier.log").read_text()
    path.write_text("def f(solution_str, **_row):\n    return float('41' in solution_str)\n")
    assert run(mine) == 0
    texts = {line["text"] for line in lines_of(tmp_path / "out" / "rollouts.jsonl")}
    assert texts == {"\\boxed{41}"}


def test_nothing_accepted_is_said(engines, arguments, tmp_path, capsys, data):
    write_data(data, [row("1+1=?", "7")])
    assert run(arguments) == 1
    assert "no response was accepted" in capsys.readouterr().err
    assert not (tmp_path / "out" / "sft.parquet").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--model", "nowhere/at/all"], "--model: model folder not found"),
        (["--data", "nowhere.parquet"], "--data: data file not found: nowhere.parquet"),
        (["--output", "/dev/null/x"], "--output /dev/null/x cannot be written"),
        (["--tensor-parallel", "2"], "--tensor-parallel above 1 needs GPUs"),
        (["--verifier", "mine"], "mine"),
    ],
)
def test_mistakes_end_with_one_line_before_an_engine_starts(
    engines, arguments, given, said, capsys
):
    assert run([*arguments, *given]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) <= 2, error
    assert engines.asked == []
