"""verl's SFT trainer with our engine, run folder and checkpoints that can be trusted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import verl.trainer.sft_trainer as verl_sft
from omegaconf import DictConfig, open_dict
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.utils import tensordict_utils as tu
from verl.utils.checkpoint import CheckpointHandler
from verl.utils.dataset.dataset_utils import SFTTensorCollator

from opdvr.integration import checkpoints
from opdvr.integration.terminal import say, stage
from opdvr.integration.tracking import StepLogger
from opdvr.report import metrics as names

# Rows of one validation batch on each rank: its loss is the mean over tokens, that of several
# batches the mean of their means.
_VALIDATION_ROWS = 1024


class RunCheckpoints(CheckpointHandler):
    """verl's, where a checkpoint counts once it is whole, and an epoch's end is an epoch's end."""

    def __init__(self, trainer: OpdvrSftTrainer, **named: object):
        self._trainer = trainer
        super().__init__(**named)

    def save_checkpoint(self, step: int) -> None:
        """verl's, declared complete at the end; only then are old ones removed."""
        folder = Path(self.default_local_dir)
        if self.rank == 0:
            checkpoints.begin(folder, step)
        super().save_checkpoint(step)
        if self.rank == 0:
            model = folder / f"global_step_{step}" / checkpoints.WHOLE_MODEL
            checkpoints.state_dtype(model, self._trainer.config.sft.model_dtype)
            checkpoints.mark_complete(folder, step, self._trainer.fingerprint)
            checkpoints.remove_old(folder, self._trainer.kept)
        torch.distributed.barrier()

    def _load_dataloader_state(self, checkpoint_path: str) -> None:
        # At an epoch's end the saved iterator has ended, and the next epoch would pass empty.
        if self.resume_global_step % len(self.train_dataloader):
            super()._load_dataloader_state(checkpoint_path)


class SftLogger(StepLogger):
    """Adds to verl's metrics of a step how long it took; verl's own token counts are always 0."""

    _tokens = 0  # since this start

    def log(self, data: dict, step: int, backend: list[str] | None = None) -> None:
        """Log a training step or a validation."""
        if names.SFT_LOSS in data:
            seconds, tokens = self._trainer.step_seconds, self._trainer.step_tokens
            self._tokens += tokens
            data = data | {
                names.SFT_TOKENS: tokens,
                names.SFT_TOTAL_TOKENS: self._tokens / 1e9,
                names.STEP_SECONDS: seconds,
                names.THROUGHPUT: tokens / seconds / torch.distributed.get_world_size(),
            }
        super().log(data, step, backend)


class OpdvrSftTrainer(verl_sft.SFTTrainer):
    """verl's loop; what is overridden has its reason beside it.

    Args:
        config: verl's SFT configuration with our `sft` group; data files are token files.
        fingerprint: of the data, which a resumed run must have the same.
    """

    step_seconds = 0.0  # of the last update
    step_tokens = 0  # of all ranks in it, prompts included

    def __init__(self, config: DictConfig, fingerprint: dict[str, object]):
        self.fingerprint = fingerprint
        self.run_folder = Path(config.trainer.default_local_dir)
        # What the logger of runs on rollouts reads: none here.
        self.corrections: dict[str, float | None] = {}
        self.pending_records: list[tuple[str, dict[str, Any]]] = []
        self.kept = config.trainer.max_ckpt_to_keep
        torch.manual_seed(config.trainer.seed)  # of an adapter's first weights
        checkpoint = _choose_resume(self.run_folder, config, fingerprint)
        self.resumed_from: int | None = None if checkpoint is None else _step_of(checkpoint)
        with open_dict(config):
            config.trainer.max_ckpt_to_keep = None  # verl deletes before the new one is whole
        stage("loading the model")
        super().__init__(config)

    @property
    def total_training_steps(self) -> int:
        """Steps of the whole run."""
        return self._total_steps

    @total_training_steps.setter
    def total_training_steps(self, steps: int) -> None:
        epochs = -(-steps // len(self.train_dataloader))
        with open_dict(self.config):
            # verl would end, and save nothing, when the epochs are over before the steps are
            self.config.trainer.total_epochs = max(self.config.trainer.total_epochs, epochs)
        self._total_steps = steps

    def _build_engine(self) -> None:
        super()._build_engine()
        train_batch: Callable = self.training_client.train_batch

        def timed(data: Any) -> Any:  # noqa: ANN401
            started = time.perf_counter()
            output = train_batch(data=data)
            self.step_seconds = time.perf_counter() - started
            self.step_tokens = sum(tu.get(data, "global_token_num"))
            return output

        self.training_client.train_batch = timed

    def _build_dataloader(self) -> None:
        """verl's starts eight processes each and drops the validation rows that fill no batch."""
        ranks = self.engine.get_data_parallel_size()
        self.global_batch_size = self.config.data.train_batch_size
        self.train_batch_size_per_dp = self.global_batch_size // ranks
        self.train_sampler = self._sampler(self.train_dataset, shuffle=True, drop_last=True)
        self.train_dataloader = self._loader(
            self.train_dataset, self.train_sampler, self.train_batch_size_per_dp, drop_last=True
        )
        self.val_dataloader = None
        if self.val_dataset:
            rows = math.ceil(len(self.val_dataset) / ranks)
            sampler = self._sampler(self.val_dataset, shuffle=False, drop_last=False)
            size = min(rows, _VALIDATION_ROWS)
            self.val_dataloader = self._loader(self.val_dataset, sampler, size, drop_last=False)

    def _sampler(self, dataset: Dataset, shuffle: bool, drop_last: bool) -> DistributedSampler:
        return DistributedSampler(
            dataset,
            num_replicas=self.engine.get_data_parallel_size(),
            rank=self.engine.get_data_parallel_rank(),
            shuffle=shuffle,
            seed=self.config.trainer.seed,
            drop_last=drop_last,
        )

    def _loader(
        self, dataset: Dataset, sampler: DistributedSampler, rows: int, drop_last: bool
    ) -> StatefulDataLoader:
        collate = SFTTensorCollator(self.config.data.pad_mode)
        return StatefulDataLoader(
            dataset, batch_size=rows, sampler=sampler, collate_fn=collate, drop_last=drop_last
        )

    def _build_ckpt_handler(self) -> None:
        trainer = self.config.trainer
        self.ckpt_handler = RunCheckpoints(
            self,
            engine=self.engine,
            train_dataloader=self.train_dataloader,
            default_local_dir=trainer.default_local_dir,
            resume_mode=trainer.resume_mode,
            resume_from_path=trainer.resume_from_path,
        )

    def fit(self) -> None:
        """verl's loop, its log lines going through the run folder."""

        def make(*arguments: Any, **named: Any) -> SftLogger:  # noqa: ANN401
            return SftLogger(self, *arguments, **named)

        verl_tracking, verl_sft.Tracking = verl_sft.Tracking, make
        stage("ready")
        try:
            super().fit()
        finally:
            verl_sft.Tracking = verl_tracking


def _choose_resume(folder: Path, config: DictConfig, fingerprint: dict[str, object]) -> Path | None:
    """Every rank chooses the same; the first alone tidies up."""
    if torch.distributed.get_rank() == 0:
        checkpoints.choose_resume(folder, config.copy(), fingerprint)
    torch.distributed.barrier()
    chosen = checkpoints.choose_resume(folder, config, fingerprint)
    if chosen is not None and torch.distributed.get_rank() == 0:
        say(f"opdvr: resuming from step {_step_of(chosen)}")
    return chosen


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rsplit("_", 1)[1])
