"""Files of JSON lines beside metrics.jsonl: whole lines only, and none of steps to be repeated."""

import pytest

from opdvr.report.run_folder import RunFolder
from opdvr.report.step_records import (
    ANATOMY_NAME,
    TOKEN_SAMPLES_NAME,
    append_record,
    keep_steps,
    read_records,
    require_keys,
)


def test_lines_come_back_and_a_missing_file_is_empty(tmp_path):
    path = tmp_path / "a.jsonl"
    assert read_records(path) == []
    append_record(path, {"step": 1, "text": "</script>\u2028é"})
    append_record(path, {"step": 2})
    assert read_records(path) == [{"step": 1, "text": "</script>\u2028é"}, {"step": 2}]


def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next(tmp_path):
    path = tmp_path / "a.jsonl"
    append_record(path, {"step": 1})
    with path.open("ab") as stream:
        stream.write(b'{"step": 2, "tok')
    assert read_records(path) == [{"step": 1}]
    append_record(path, {"step": 3})
    assert read_records(path) == [{"step": 1}, {"step": 3}]


def test_a_whole_last_line_without_its_newline_counts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    append_record(path, {"step": 3})
    assert [record["step"] for record in read_records(path)] == [1, 2, 3]


def test_a_damaged_line_before_the_last_is_an_error(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1}\noops\n{"step": 2}\n')
    with pytest.raises(ValueError, match="a.jsonl line 2 is not a JSON object"):
        read_records(path)


def test_no_number_that_json_has_no_form_for(tmp_path):
    with pytest.raises(ValueError):
        append_record(tmp_path / "a.jsonl", {"x": float("nan")})


def test_steps_after_the_last_are_dropped_and_a_header_stays(tmp_path):
    path = tmp_path / "a.jsonl"
    for record in ({"edges": [0]}, {"step": 1}, {"step": 2}, {"step": 3}):
        append_record(path, record)
    keep_steps(path, 2)
    assert read_records(path) == [{"edges": [0]}, {"step": 1}, {"step": 2}]
    keep_steps(tmp_path / "none.jsonl", 2)


def test_a_run_that_goes_back_drops_what_it_repeats(tmp_path):
    run = RunFolder(tmp_path).open({}, ["x"], None)
    for step in (1, 2, 3):
        run.append_metrics(step, {"a": step})
        run.append_record(TOKEN_SAMPLES_NAME, {"step": step})
    run.append_record(ANATOMY_NAME, {"step": 3})
    RunFolder(tmp_path).open({}, ["x"], 2)
    assert [r["step"] for r in read_records(tmp_path / TOKEN_SAMPLES_NAME)] == [1, 2]
    assert read_records(tmp_path / ANATOMY_NAME) == []
    RunFolder(tmp_path).open({}, ["x"], None)
    assert read_records(tmp_path / TOKEN_SAMPLES_NAME) == []


def test_a_line_that_lacks_what_is_shown_is_named(tmp_path):
    path = tmp_path / "validation.jsonl"
    path.write_text('{"step": 1, "n": 2}\n{"step": 2}\n')
    assert require_keys(path, {"step": int}) == [{"step": 1, "n": 2}, {"step": 2}]
    with pytest.raises(ValueError, match=r"validation.jsonl line 2 has no n \(int\)"):
        require_keys(path, {"step": int, "n": int})
