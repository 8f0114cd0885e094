"""Checkpoints: complete or not gone on from, removed in the right order, of the same data."""

import os
import shutil

import pytest
from omegaconf import OmegaConf

from opdvr.integration import checkpoints
from opdvr.integration.checkpoints import COMPLETE, TRACKER


@pytest.fixture
def config(tmp_path):
    data = tmp_path / "rows.parquet"
    data.write_bytes(b"rows")
    config = OmegaConf.create(
        {
            "data": {
                "train_files": str(data),
                "train_batch_size": 4,
                "shuffle": False,
                "seed": None,
                "train_max_samples": -1,
                "max_prompt_length": 8,
                "filter_overlong_prompts": True,
            },
            "trainer": {"resume_mode": "auto", "resume_from_path": None},
        }
    )
    OmegaConf.set_struct(config, True)
    return config


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def write(folder, step, config=None):
    """A checkpoint of two files; complete where a configuration is given."""
    actor = folder / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    (actor / "model.pt").write_text("weights")
    if config is not None:
        checkpoints.mark_complete(folder, step, checkpoints.data_fingerprint(config))


def steps_on_disk(folder):
    return sorted(int(path.name.split("_")[-1]) for path in folder.glob("global_step_*"))


def test_complete_and_half_written(folder, config):
    assert checkpoints.complete_steps(folder) == [] and checkpoints.half_written(folder) == []
    for step in (2, 10, 9):
        write(folder, step, config)
    write(folder, 11)
    assert checkpoints.complete_steps(folder) == [2, 9, 10]  # by number, not by name
    assert [path.name for path in checkpoints.half_written(folder)] == ["global_step_11"]


def test_the_newest_complete_one_is_chosen_and_the_half_written_named(folder, config, capsys):
    write(folder, 5, config)
    write(folder, 10)
    assert (
        checkpoints.choose_resume(folder, config, checkpoints.data_fingerprint(config))
        == folder / "global_step_5"
    )
    assert "global_step_10 is half-written" in capsys.readouterr().out
    assert config.trainer.resume_mode == "resume_path"
    assert config.trainer.resume_from_path == str(folder / "global_step_5")


def test_nothing_complete_starts_anew(folder, config):
    write(folder, 10)
    assert checkpoints.choose_resume(folder, config, checkpoints.data_fingerprint(config)) is None
    assert config.trainer.resume_mode == "disable"


def test_resuming_can_be_switched_off(folder, config):
    write(folder, 5, config)
    config.trainer.resume_mode = "disable"
    assert checkpoints.choose_resume(folder, config, checkpoints.data_fingerprint(config)) is None


def test_a_checkpoint_named_by_hand(folder, config):
    write(folder, 5, config)
    write(folder, 10, config)
    write(folder, 15)
    config.trainer.resume_mode = "resume_path"
    config.trainer.resume_from_path = str(folder / "global_step_5")
    assert (
        checkpoints.choose_resume(folder, config, checkpoints.data_fingerprint(config))
        == folder / "global_step_5"
    )
    config.trainer.resume_from_path = str(folder / "global_step_15")
    with pytest.raises(ValueError, match=r"global_step_15 is not a complete .*no complete\.json"):
        checkpoints.choose_resume(folder, config, checkpoints.data_fingerprint(config))


CHANGES = {
    "train_batch_size": 8,
    "shuffle": True,
    "seed": 1,
    "train_max_samples": 100,
    "max_prompt_length": 16,
    "filter_overlong_prompts": False,
}


@pytest.mark.parametrize("option", CHANGES)
def test_a_change_of_the_data_is_refused_by_name(folder, config, option):
    write(folder, 5, config)
    checkpoints.check_same_data(folder / "global_step_5", checkpoints.data_fingerprint(config))
    config.data[option] = CHANGES[option]
    with pytest.raises(ValueError, match=rf"data\.{option} changed since .* EXPERIMENT_NAME"):
        checkpoints.choose_resume(folder, config, checkpoints.data_fingerprint(config))


def test_all_changes_are_named_together(folder, config):
    write(folder, 5, config)
    config.data.seed, config.data.shuffle = 1, True
    with pytest.raises(ValueError, match=r": data\.seed, data\.shuffle changed"):
        checkpoints.check_same_data(folder / "global_step_5", checkpoints.data_fingerprint(config))


def test_files_are_told_apart_by_content(folder, config, tmp_path):
    write(folder, 5, config)
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(b"rows")
    config.data.train_files = [str(copy)]  # one file as a list, elsewhere: the same rows
    checkpoints.check_same_data(folder / "global_step_5", checkpoints.data_fingerprint(config))
    copy.write_bytes(b"other rows")
    with pytest.raises(ValueError, match=r"data\.train_files changed"):
        checkpoints.check_same_data(folder / "global_step_5", checkpoints.data_fingerprint(config))


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4]), (None, [1, 2, 3, 4])]
)
def test_the_last_ones_are_kept(folder, config, keep, left):
    for step in (1, 2, 3, 4):
        write(folder, step, config)
    write(folder, 5)
    checkpoints.remove_old(folder, keep)
    assert checkpoints.complete_steps(folder) == left
    assert steps_on_disk(folder) == [*left, 5], "what is being written is not counted or touched"


def test_a_kill_during_removal_leaves_nothing_that_looks_complete(folder, config, monkeypatch):
    write(folder, 1, config)
    write(folder, 2, config)

    def killed(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.remove_old(folder, 1)
    assert (folder / "global_step_1" / "actor" / "model.pt").exists()
    assert checkpoints.complete_steps(folder) == [2]


def test_the_tracker_names_the_last_complete_step(folder, config):
    write(folder, 5, config)
    assert (folder / TRACKER).read_text() == "5"
    (folder / TRACKER).write_text("10")  # verl writes it before the checkpoint is known to be whole
    write(folder, 10)
    assert (
        checkpoints.choose_resume(folder, config, checkpoints.data_fingerprint(config))
        == folder / "global_step_5"
    )


@pytest.mark.parametrize("name", [TRACKER, COMPLETE])
def test_a_kill_while_writing_leaves_the_old_text(folder, config, monkeypatch, name):
    write(folder, 5, config)
    path = folder / name if name == TRACKER else folder / "global_step_5" / name
    before = path.read_text()

    def killed(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write_atomically(path, "torn")
    assert path.read_text() == before


def test_a_reader_never_sees_a_text_half_written(tmp_path):
    path = tmp_path / TRACKER
    checkpoints.write_atomically(path, "5")
    with open(path) as reader:
        checkpoints.write_atomically(path, "10")
        assert reader.read() == "5"
    assert path.read_text() == "10"
    assert os.listdir(tmp_path) == [TRACKER]


@pytest.mark.parametrize("torn", ["", "\0\0"])
def test_a_torn_tracker_does_not_keep_a_run_from_going_on(folder, config, torn):
    # verl writes it in place, and reads it also where the checkpoint is named by its path.
    pytest.importorskip("verl")
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    write(folder, 5, config)
    (folder / TRACKER).write_text(torn)
    assert (
        checkpoints.choose_resume(folder, config, checkpoints.data_fingerprint(config))
        == folder / "global_step_5"
    )
    find_latest_ckpt_path(str(folder))


def test_a_run_that_goes_back_sets_later_checkpoints_aside(folder, config, capsys):
    for step in (3, 6, 9):
        write(folder, step, config)
    config.trainer.resume_mode = "resume_path"
    config.trainer.resume_from_path = str(folder / "global_step_3")
    assert (
        checkpoints.choose_resume(folder, config, checkpoints.data_fingerprint(config))
        == folder / "global_step_3"
    )
    assert checkpoints.complete_steps(folder) == [3]
    moved = sorted(path.name.split(".")[0] for path in (folder / "set_aside").iterdir())
    assert moved == ["global_step_6", "global_step_9"]  # kept, out of the way
    assert "global_step_9 is later than step 3" in capsys.readouterr().out


@pytest.mark.parametrize("keep", [-1, 0, None])
def test_keeping_all(folder, config, keep):
    write(folder, 2, config)
    checkpoints.remove_old(folder, keep)
    assert checkpoints.complete_steps(folder) == [2]


def test_a_step_being_written_again_is_half_written(folder, config):
    write(folder, 2, config)
    checkpoints.begin(folder, 2)
    assert checkpoints.complete_steps(folder) == []


def test_remote_data_is_known_by_its_address(config):
    config.data.train_files = "hdfs://host/rows.parquet"
    assert checkpoints.data_fingerprint(config)["train_files"] == ["hdfs://host/rows.parquet"]
