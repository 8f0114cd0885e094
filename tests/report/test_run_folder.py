"""The run folder: what each start writes, and a metrics.jsonl that survives crashes and resumes."""

import json
import math

import numpy as np
import pytest
import torch
import yaml

from opdvr.report.run_folder import RunFolder, read_metrics


def open_run(path, config=None, resumed_step=None):
    return RunFolder(path).open(config or {"lr": 1e-6}, ["train.py"], resumed_step)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_of(path):
    return [record["step"] for record in read_metrics(path)]


def test_open_writes_config_versions_and_git(tmp_path):
    config = {
        "actor": {"lr": 1e-6, "betas": [0.9, 0.999], "name": "1e-6", "none": None},
        "on": True,
    }
    path = tmp_path / "a run" / "nested"
    RunFolder(path).open(config, ["-m", "opdvr", "data.x='a b'"], None)
    assert yaml.safe_load((path / "config.yaml").read_text()) == config
    versions = json.loads((path / "versions.json").read_text())
    assert versions["torch"] == torch.__version__.split("+")[0]
    assert versions["numpy"] == np.__version__
    assert versions["cores"] >= 1
    assert versions["command"] == ["-m", "opdvr", "data.x='a b'"]
    assert (path / "git.json").exists()
    assert not list(path.glob(".*.tmp"))


def test_config_keeps_unusual_values_readable(tmp_path):
    config = {"n": np.int64(3), "path": tmp_path, "list": (1, np.float32(0.5))}
    open_run(tmp_path, config)
    expected = {"n": 3, "path": str(tmp_path), "list": [1, 0.5]}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == expected


def test_earlier_configs_are_numbered_and_kept(tmp_path):
    for start in (1, 2, 3):
        open_run(tmp_path, {"start": start}, resumed_step=0)
    configs = {
        name: yaml.safe_load((tmp_path / name).read_text())["start"]
        for name in ("config.1.yaml", "config.2.yaml", "config.yaml")
    }
    assert configs == {"config.1.yaml": 1, "config.2.yaml": 2, "config.yaml": 3}
    assert (tmp_path / "versions.2.json").exists()
    assert (tmp_path / "git.2.json").exists()


def test_start_that_died_between_rename_and_write_loses_nothing(tmp_path):
    open_run(tmp_path, {"start": 1})
    (tmp_path / "config.yaml").rename(tmp_path / "config.1.yaml")
    open_run(tmp_path, {"start": 3}, resumed_step=0)
    assert yaml.safe_load((tmp_path / "config.1.yaml").read_text()) == {"start": 1}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"start": 3}


def test_a_checkpoint_folder_without_a_run_is_taken_up(tmp_path):
    (tmp_path / "global_step_5").mkdir()
    open_run(tmp_path, resumed_step=5).append_metrics(6, {"a": 1})
    assert steps_of(tmp_path) == [6]
    assert (tmp_path / "global_step_5").is_dir()


def test_a_file_in_the_way_and_a_negative_step_are_refused(tmp_path):
    (tmp_path / "taken").write_text("x")
    with pytest.raises(ValueError, match="is a file.*EXPERIMENT_NAME"):
        open_run(tmp_path / "taken")
    with pytest.raises(ValueError, match="resumed_step is -1"):
        open_run(tmp_path / "new", resumed_step=-1)


def test_scalars_of_every_kind_become_numbers_and_the_rest_is_left_out(tmp_path):
    run = open_run(tmp_path)
    run.append_metrics(
        1,
        {
            "float": 0.5,
            "int": 3,
            "numpy": np.float32(0.25),
            "numpy_int": np.int64(7),
            "numpy_one": np.array([2.0]),
            "torch": torch.tensor(1.5),
            "torch_one": torch.tensor([4], dtype=torch.int64),
            "torch_bf16": torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True),
            "text": "no",
            "list": [1.0],
            "array": np.ones(2),
            "empty": np.ones(0),
            "none": None,
        },
    )
    (record,) = lines_of(tmp_path / "metrics.jsonl")
    assert isinstance(record.pop("time"), float)
    assert record == {
        "step": 1,
        "float": 0.5,
        "int": 3,
        "numpy": 0.25,
        "numpy_int": 7,
        "numpy_one": 2.0,
        "torch": 1.5,
        "torch_one": 4,
        "torch_bf16": 0.5,
    }


def test_non_finite_values_are_null_and_named(tmp_path):
    run = open_run(tmp_path)
    run.append_metrics(
        1, {"a": math.nan, "b": np.float32("inf"), "c": torch.tensor(-math.inf), "d": 1.0}
    )
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    (record,) = read_metrics(tmp_path)
    assert (record["a"], record["b"], record["c"], record["d"]) == (None, None, None, 1.0)
    assert record["non_finite"] == ["a", "b", "c"]


def test_a_metric_may_not_take_the_lines_own_names(tmp_path):
    run = open_run(tmp_path)
    with pytest.raises(ValueError, match='metric "time"'):
        run.append_metrics(1, {"time": 3.0})


def test_a_step_logged_twice_is_one_line(tmp_path):
    run = open_run(tmp_path)
    run.append_metrics(0, {"val": 0.1})
    run.append_metrics(1, {"loss": math.nan, "kept": math.nan, "old": 1})
    run.append_metrics(1, {"loss": 0.5, "val": 0.2})
    run.append_metrics(2, {"loss": 0.4})
    records = lines_of(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == [0, 1, 2]
    middle = records[1]
    assert middle.pop("time") >= records[0]["time"]
    assert middle == {
        "step": 1,
        "loss": 0.5,
        "kept": None,
        "old": 1,
        "val": 0.2,
        "non_finite": ["kept"],
    }


def test_a_step_logged_twice_by_another_process_is_one_line(tmp_path):
    open_run(tmp_path).append_metrics(3, {"a": 1})
    RunFolder(tmp_path).append_metrics(3, {"b": 2})
    (record,) = read_metrics(tmp_path)
    assert (record["a"], record["b"]) == (1, 2)


def test_steps_may_not_go_back_without_saying_so(tmp_path):
    run = open_run(tmp_path)
    run.append_metrics(5, {"a": 1})
    with pytest.raises(ValueError, match="is at step 5 and cannot take step 3.*resumed_step=2"):
        run.append_metrics(3, {"a": 1})
    assert steps_of(tmp_path) == [5]


@pytest.mark.parametrize("torn", ['{"step": 2, "a": 0.', "{", '{"step": 2}\x00\x00', "\udce4"])
def test_a_torn_last_line_is_repaired(tmp_path, torn):
    open_run(tmp_path).append_metrics(1, {"a": 1})
    file = tmp_path / "metrics.jsonl"
    with file.open("ab") as stream:
        stream.write(torn.encode(errors="surrogateescape"))
    assert steps_of(tmp_path) == [1]  # A reader leaves the torn line out ...
    open_run(tmp_path, resumed_step=1).append_metrics(2, {"a": 2})  # ... and a start mends it.
    assert [record["step"] for record in lines_of(file)] == [1, 2]
    (kept,) = lines_of(tmp_path / "metrics.discarded.jsonl")
    assert kept["torn"] == torn.encode(errors="surrogateescape").decode(errors="replace")


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path):
    open_run(tmp_path).append_metrics(1, {"a": 1})
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    RunFolder(tmp_path).append_metrics(2, {"a": 2})
    assert [record["step"] for record in lines_of(file)] == [1, 2]
    assert not (tmp_path / "metrics.discarded.jsonl").exists()


def test_every_cut_of_the_file_leaves_the_whole_lines(tmp_path):
    run = open_run(tmp_path)
    for step in (1, 2, 3):
        run.append_metrics(step, {"a": step})
    content = (tmp_path / "metrics.jsonl").read_bytes()
    ends = [index for index, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        (tmp_path / "metrics.jsonl").write_bytes(content[:cut])
        # A line counts as soon as its closing brace, just before its newline, is there.
        whole = sum(end <= cut for end in ends)
        RunFolder(tmp_path).append_metrics(9, {"a": 9})
        assert steps_of(tmp_path) == [*[1, 2, 3][:whole], 9]


def test_damage_before_the_last_line_is_an_error_that_names_it(tmp_path):
    open_run(tmp_path).append_metrics(1, {"a": 1})
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"broken\n" + file.read_bytes())
    with pytest.raises(ValueError, match=r"metrics\.jsonl line 1 is not a metrics object"):
        read_metrics(tmp_path)
    with pytest.raises(ValueError, match="line 1"):
        open_run(tmp_path, resumed_step=1)


def test_resume_moves_the_steps_it_repeats_out(tmp_path):
    run = open_run(tmp_path)
    for step in range(6):
        run.append_metrics(step, {"a": step})
    run = open_run(tmp_path, resumed_step=3)
    assert steps_of(tmp_path) == [0, 1, 2, 3]
    run.append_metrics(3, {"val": 0.5})  # verl validates before it trains on.
    run.append_metrics(4, {"a": 40})
    run = open_run(tmp_path, resumed_step=2)
    records = read_metrics(tmp_path)
    assert [record["a"] for record in records] == [0, 1, 2]
    discarded = lines_of(tmp_path / "metrics.discarded.jsonl")
    assert [record["a"] for record in discarded] == [4, 5, 3, 40]
    assert discarded[2]["val"] == 0.5


def test_a_fresh_run_in_an_old_folder_starts_from_nothing(tmp_path):
    run = open_run(tmp_path)
    for step in range(3):
        run.append_metrics(step, {"a": step})
    open_run(tmp_path, resumed_step=None).append_metrics(0, {"a": 9})
    assert [(record["step"], record["a"]) for record in read_metrics(tmp_path)] == [(0, 9)]
    assert len(lines_of(tmp_path / "metrics.discarded.jsonl")) == 3


def test_an_append_that_the_disk_cut_short_is_mended_by_the_next(tmp_path, monkeypatch):
    run = open_run(tmp_path)
    run.append_metrics(1, {"a": 1})

    def full_disk(file, content):
        with file.open("ab") as stream:
            stream.write(content[:8])
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("opdvr.report.run_folder.append_bytes", full_disk)
        with pytest.raises(OSError, match="No space left"):
            run.append_metrics(2, {"a": 2})
    run.append_metrics(3, {"a": 3})
    assert steps_of(tmp_path) == [1, 3]


def test_reading_takes_the_file_or_the_folder(tmp_path):
    open_run(tmp_path).append_metrics(1, {"a": 1})
    assert read_metrics(tmp_path) == read_metrics(str(tmp_path / "metrics.jsonl"))
    with pytest.raises(ValueError, match="does not exist"):
        read_metrics(tmp_path / "nothing")
