"""Data on its way into training: long prompts, repeats, uneven batches, the row to go on from."""

import re
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from torch.utils.data import SequentialSampler

pytest.importorskip("verl")

from case_setup import (  # noqa: E402
    Letters,
    Server,
    generate,
    make_trainer,
    make_worker,
    questions,
)
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn  # noqa: E402

from opdvr.data.schema import check_files  # noqa: E402
from opdvr.integration.checkpoints import COMPLETE, complete_steps  # noqa: E402
from opdvr.integration.preflight.configuration import check_batches  # noqa: E402

LIMIT = 8  # tokens of a prompt; a token of `Letters` is a character
EPOCHS = 2


@pytest.fixture
def files(tmp_path, monkeypatch):
    """files(texts): a data file with these prompts; the loader's own cache goes to the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def write(texts, name="data.parquet"):
        rows = {
            "prompt": [[{"role": "user", "content": text}] for text in texts],
            "data_source": ["AIME24"] * len(texts),
            "reward_model": [{"ground_truth": "5", "style": "rule"}] * len(texts),
            "extra_info": [{"index": row} for row in range(len(texts))],
        }
        pq.write_table(pa.table(rows), tmp_path / name)
        return str(tmp_path / name)

    return write


def data_config(file, filtered=True):
    return OmegaConf.create(
        {
            "train_files": file,
            "val_files": file,
            "train_batch_size": 2,
            "val_batch_size": None,
            "shuffle": False,
            "validation_shuffle": False,
            "seed": None,
            "train_max_samples": -1,
            "max_prompt_length": LIMIT,
            "filter_overlong_prompts": filtered,
            "filter_overlong_prompts_workers": None,
            "dataloader_num_workers": 0,
            "apply_chat_template_kwargs": {"enable_thinking": False},
        }
    )


def load(config, tokenizer=None):
    return RLHFDataset(config.train_files, tokenizer or Letters(), config)


def contents(rows):
    return [row["raw_prompt"][0]["content"] for row in rows]


def test_a_prompt_over_the_limit_is_left_out_at_load_with_a_count(files, capsys):
    # 8 and 9 tokens under a limit of 8.
    dataset = load(data_config(files(["12345678", "123456789", "1"])))
    assert contents(dataset[i] for i in range(len(dataset))) == ["12345678", "1"]
    said = capsys.readouterr().out
    assert "dataset len: 3" in said and "filter dataset len: 2" in said


def test_lengths_are_counted_with_the_rollouts_template_options(files):
    tokenizer = Letters()
    config = data_config(files(["12"]))
    load(config, tokenizer)
    (at_load,) = tokenizer.template_options
    worker = make_worker([Server(lambda prompt: prompt)])
    worker.config.data = config
    generate(worker, questions(["12"]))
    (at_rollout,) = worker.tokenizer.template_options
    assert at_load["enable_thinking"] is False
    assert {**at_load, "tokenize": True} == at_rollout


def make_loaders(trainer, config):
    dataset = load(config)
    trainer.config.merge_with(
        {"data": config, "trainer": {"total_epochs": EPOCHS, "total_training_steps": None}}
    )
    trainer._create_dataloader(dataset, dataset, collate_fn, SequentialSampler(dataset))


def test_without_the_filter_a_long_prompt_is_refused_at_load(files):
    config = data_config(files(["12", "34", "123456789", "1"]), filtered=False)
    with pytest.raises(ValueError, match="data.train_files.*row 2.*9 tokens.*MAX_PROMPT_LENGTH"):
        make_loaders(make_trainer(), config)


def test_rows_that_repeat_every_prompt_are_counted(files):
    report = check_files([files(["a", "b", "c"] * 100)], "TEST_DATASET (data.val_files)")
    assert (report.rows, report.distinct_prompts) == (300, 3)
    (warning,) = report.warnings
    assert warning.startswith("TEST_DATASET (data.val_files): 300 rows hold 3 distinct prompts")


def batch_config(prompts, responses, gpus, agents):
    return OmegaConf.create(
        {
            "data": {"train_batch_size": prompts},
            "actor_rollout_ref": {
                "actor": {"ppo_mini_batch_size": prompts, "ulysses_sequence_parallel_size": 1},
                "rollout": {"n": responses, "agent": {"num_workers": agents}},
            },
            "trainer": {"n_gpus_per_node": gpus, "nnodes": 1},
        }
    )


def test_a_batch_that_does_not_divide_is_refused_with_the_numbers():
    (over_ranks,) = check_batches(batch_config(124, 1, gpus=15, agents=1))
    assert re.search("train_batch_size=124: .*124 responses.* over 15 data-par", str(over_ranks))
    (over_agents,) = check_batches(batch_config(124, 1, gpus=4, agents=15))
    assert re.search("train_batch_size=124: .*num_workers=15", str(over_agents))
    assert {over_ranks.level, over_agents.level} == {"error"}
    fits = batch_config(124, 15, gpus=15, agents=15)  # 1,860 = 124 * 15
    assert not list(check_batches(fits))


class Workers:
    """Stands for the student's workers: a checkpoint is an empty folder."""

    def save_checkpoint(self, path, *_, **__):
        Path(path).mkdir(parents=True)

    def load_checkpoint(self, path, **_):
        self.loaded = path


def start(folder, config, **trainer_options):
    """A trainer in a run folder, as `fit` finds it: loaders made, the checkpoint loaded."""
    trainer = make_trainer()
    trainer.config.merge_with(
        {
            "trainer": {
                "default_local_dir": str(folder),
                "default_hdfs_dir": None,
                "resume_mode": "auto",
                "resume_from_path": None,
                "max_actor_ckpt_to_keep": 2,
                "max_critic_ckpt_to_keep": None,
                "del_local_ckpt_after_load": False,
                **trainer_options,
            },
            "actor_rollout_ref": {"actor": {"checkpoint": {"async_save": False}}},
        }
    )
    make_loaders(trainer, config)
    trainer.run_folder, trainer.use_critic = folder, False
    trainer.actor_rollout_wg, trainer.resumed_from = Workers(), None
    trainer.global_steps = 0
    trainer._load_checkpoint()
    return trainer


def train(trainer, until):
    """fit's two loops with nothing inside: the prompts of each step; saves after the last."""
    seen = {}
    for _ in range(trainer.global_steps // len(trainer.train_dataloader), EPOCHS):
        for batch in trainer.train_dataloader:
            trainer.global_steps += 1
            seen[trainer.global_steps] = [
                messages[0]["content"] for messages in batch["raw_prompt"]
            ]
            if trainer.global_steps == until:
                trainer._save_checkpoint()
                return seen
    raise AssertionError("the epochs ended first")


@pytest.mark.parametrize("stopped", [3, 5])
def test_a_run_goes_on_with_the_next_row_also_over_the_end_of_an_epoch(files, tmp_path, stopped):
    # 10 rows, 2 a step: step 4 sees rows 7 and 8; after step 5 the next epoch starts at row 1.
    config = data_config(files([f"row {row}" for row in range(1, 11)]))
    folder = tmp_path / "run"
    first = train(start(folder, config), until=stopped)
    resumed = start(folder, config)
    assert resumed.resumed_from == stopped
    assert resumed.actor_rollout_wg.loaded == str(folder / f"global_step_{stopped}" / "actor")
    seen = first | train(resumed, until=8)
    assert sorted(seen) == list(range(1, 9))
    for step, prompts in seen.items():
        at = (step - 1) * 2 % 10
        assert prompts == [f"row {at + 1}", f"row {at + 2}"]


@pytest.mark.parametrize("changed", ["train_batch_size", "train_files"])
def test_other_data_is_refused_at_the_resume(files, tmp_path, changed):
    config = data_config(files([f"row {row}" for row in range(1, 11)]))
    train(start(tmp_path / "run", config), until=3)
    other = files([f"row {row}" for row in range(2, 12)], "other.parquet")
    config[changed] = other if changed == "train_files" else 5
    with pytest.raises(ValueError, match=f"cannot resume from .*global_step_3: data.{changed} "):
        start(tmp_path / "run", config)


def test_the_old_checkpoint_stays_until_the_new_one_is_whole(files, tmp_path):
    config = data_config(files([f"row {row}" for row in range(1, 11)]))
    trainer = start(tmp_path / "run", config, max_actor_ckpt_to_keep=1)
    train(trainer, until=1)

    def dies(*_, max_ckpt_to_keep, **__):
        assert max_ckpt_to_keep is None, "verl would delete first"
        raise OSError("disk full")

    trainer.actor_rollout_wg = SimpleNamespace(save_checkpoint=dies)
    trainer.global_steps = 2
    (tmp_path / "run" / "global_step_2").mkdir()
    with pytest.raises(OSError, match="disk full"):
        trainer._save_checkpoint()
    assert complete_steps(tmp_path / "run") == [1]
    again = start(tmp_path / "run", config, max_actor_ckpt_to_keep=1)
    assert again.resumed_from == 1, "the half-written one is no checkpoint"
    again.global_steps = 2
    again._save_checkpoint()
    assert complete_steps(tmp_path / "run") == [2]
    assert (tmp_path / "run" / "global_step_2" / COMPLETE).is_file()
    assert not (tmp_path / "run" / "global_step_1").exists()
