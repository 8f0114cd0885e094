"""samples.jsonl after kills, folders held twice, and resumes with other settings."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from evaluating import settings

from opdvr.eval import samples as sm
from opdvr.eval.jsonl import LineWriter, Unwritable, read_lines, write_lines

# What run.json has besides its settings.
DETAILS = {
    **{"data": [], "verifier": None, "answer_forms": None},
    **{"trainer_validation": {}, "command": ["x"]},
}


def line(key="a:1:0", sample=0, text="\\boxed{1}"):
    return {
        "key": key,
        "sample": sample,
        "data_source": "a",
        "tokens": 3,
        "finish": "stop",
        "seed": 5,
        "text": text,
    }


def read(path, **options):
    return list(sm.read_samples(path, **options))


def places(samples):
    return {(s.key, s.sample) for s in samples}


def write(path, *lines):
    with LineWriter(path) as file:
        for content in lines:
            file.append(content)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / sm.SAMPLES
    awkward = 'two\nlines\r, "quotes", \u2028, \x00, half a character \ud83d, 数'
    write(path, line(text=awkward), line(sample=1))
    assert [s.text for s in read(path)] == [awkward, "\\boxed{1}"]
    assert read(tmp_path / "none") == []


def test_a_torn_last_line_is_set_aside_and_made_again(tmp_path):
    path = tmp_path / sm.SAMPLES
    write(path, line(), line(sample=1))
    whole = path.read_bytes()
    for length in range(1, len(whole) + 1):  # a kill at any byte
        path.write_bytes(whole[:length])
        found = read(path, repair=True)
        assert len(found) == whole[:length].count(b"\n")
        write(path, *(line(sample=i) for _, i in sm.missing_samples(["a:1:0"], 2, places(found))))
        assert sorted(s.sample for s in read(path)) == [0, 1]
    assert len((tmp_path / "samples.torn.jsonl").read_bytes()) > 0


def test_reading_alone_changes_nothing(tmp_path):
    path = tmp_path / sm.SAMPLES
    path.write_bytes(b'{"key": ')
    assert read(path) == []
    assert path.read_bytes() == b'{"key": '


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{broken\n", "line 2 is damaged"),
        (b"[1]\n", "no JSON object"),
        (b'{"key": "a"}\n', "line 2 is damaged .no sample.*; take the line out"),
        (json.dumps(line() | {"text": None, "tokens": "3"}).encode() + b"\n", "tokens, text of a"),
        (json.dumps(line()).encode() + b"\n", "sample 0 of a:1:0 twice"),
    ],
)
def test_damage_elsewhere_is_an_error(tmp_path, content, message):
    path = tmp_path / sm.SAMPLES
    write(path, line())
    with open(path, "ab") as file:
        file.write(content)
    with pytest.raises(ValueError, match=message):
        read(path)


def _write_until_killed(path):
    with LineWriter(path) as file:
        for number in range(10**9):
            file.append(line(sample=number, text="x" * 5000))


def test_kill_in_the_middle_of_writing_loses_and_doubles_nothing(tmp_path):
    path = tmp_path / sm.SAMPLES
    for _ in range(3):
        process = multiprocessing.get_context("fork").Process(
            target=_write_until_killed, args=(path,)
        )
        process.start()
        while not path.exists() or path.stat().st_size < 100_000:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        numbers = [s.sample for s in read(path, repair=True)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > 10
        path.unlink()


def test_missing_samples_go_problem_by_problem():
    done = {("b", 0), ("a", 1)}
    assert sm.missing_samples(["a", "b"], 2, done) == [(0, 0), (1, 1)]


def test_seeds_are_lasting_and_different():
    assert sm.sample_seed(0, "a:1:0", 0) == sm.sample_seed(0, "a:1:0", 0)
    places = [(seed, key, i) for seed in range(3) for key in "abc" for i in range(20)]
    seeds = {sm.sample_seed(*place) for place in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_a_folder_is_held_by_one_process(tmp_path):
    held = sm.hold(tmp_path / "out")
    with pytest.raises(ValueError, match="another process"):
        sm.hold(tmp_path / "out")
    held.close()
    sm.hold(tmp_path / "out").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="--output"):
        sm.hold(tmp_path / "file")


def test_resuming_with_other_settings_is_refused(tmp_path):
    model = {"name": "student", "fingerprint": "1" * 32}
    begun = settings(model=model)
    assert sm.check_settings(tmp_path, begun) is False
    sm.write_run(tmp_path, begun, DETAILS)
    assert sm.check_settings(tmp_path, begun) is True
    # the same weights by another path are the same model
    assert sm.check_settings(tmp_path, {**begun, "model": {**model, "name": "./student"}})
    with pytest.raises(ValueError, match="begun with n 4, not 8; choose another --output"):
        sm.check_settings(tmp_path, {**begun, "n": 8})
    # all that differ are named; what is not known yet is not compared
    with pytest.raises(ValueError, match=r"with n 4, not 8; top-p 1.0, not 0.5; choose"):
        sm.check_settings(tmp_path, {"n": 8, "top-p": 0.5})
    other = {"name": "student", "fingerprint": "2" * 32}
    with pytest.raises(ValueError, match=r"model student \(11111111\), not student \(22222222\)"):
        sm.check_settings(tmp_path, {**begun, "model": other})


def test_samples_without_a_record_are_not_taken_over(tmp_path):
    write(tmp_path / sm.SAMPLES, line())
    with pytest.raises(ValueError, match="no run.json"):
        sm.check_settings(tmp_path, {})
    with pytest.raises(ValueError, match="holds no evaluation"):
        sm.read_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{\n"settings": {', "line 2 is damaged"),
        ("[]", "no JSON object"),
        ("{}", "lacks settings, data"),
        (json.dumps({"settings": {"n": 4}, **DETAILS}), "settings are not whole"),
        (json.dumps({"settings": settings(model="m"), **DETAILS}), "settings are not whole"),
    ],
)
def test_a_damaged_run_is_named_with_the_remedy(tmp_path, content, message):
    (tmp_path / sm.RUN).write_text(content)
    with pytest.raises(ValueError, match=rf"run\.json.*{message}.*; restore it, or choose another"):
        sm.read_run(tmp_path)


def test_samples_of_another_evaluation_are_refused(tmp_path):
    path = tmp_path / sm.SAMPLES
    write(path, line(), line(sample=1))
    assert len(read(path, expected=({"a:1:0"}, 2))) == 2
    for expected in (({"a:1:0"}, 1), ({"b"}, 2)):
        with pytest.raises(
            ValueError, match="line [12] is damaged .*is not of this evaluation.*; take"
        ):
            read(path, expected=expected)


def test_a_full_disk_is_one_line_that_names_the_file():
    with LineWriter(Path("/dev/full")) as file, pytest.raises(Unwritable) as raised:
        file.append(line())
    assert str(raised.value) == (
        "/dev/full cannot be written (No space left on device); free space (or make it writable) "
        "and run the same command again"
    )


def test_files_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "x.jsonl.tmp").mkdir()
    with pytest.raises(Unwritable, match=r"x\.jsonl cannot be written .*; free space"):
        write_lines(tmp_path / "x.jsonl", [{"a": 1}])
    with pytest.raises(Unwritable, match="cannot be written"):
        LineWriter(tmp_path)


def test_whole_files_of_lines(tmp_path):
    write_lines(tmp_path / "x.jsonl", [{"a": 1}, {"a": 2}])
    assert list(read_lines(tmp_path / "x.jsonl")) == [(1, {"a": 1}), (2, {"a": 2})]
