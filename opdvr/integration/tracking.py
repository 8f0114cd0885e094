"""Where `fit` hands over a step's metrics: corrected, then to run folder, terminal and loggers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import verl.utils.tracking as verl_tracking
from omegaconf import OmegaConf

from opdvr.integration.terminal import say
from opdvr.integration.wandb_login import wandb_login
from opdvr.integration.watchdog import Watchdog
from opdvr.report.progress import StepLine
from opdvr.report.run_folder import RunFolder
from opdvr.report.series import time_shares

if TYPE_CHECKING:
    from opdvr.integration.trainer import OpdvrTrainer

VERL_TRACKING = verl_tracking.Tracking


class StepLogger(VERL_TRACKING):
    """verl's Tracking with metrics.jsonl always, and one readable line a step for `console`."""

    def __init__(
        self,
        trainer: OpdvrTrainer,
        project_name: str,
        experiment_name: str,
        default_backend: str | list[str],
        config: dict,
    ):
        backends = [default_backend] if isinstance(default_backend, str) else list(default_backend)
        self._trainer = trainer
        self._folder = trainer.run_folder
        self._console = "console" in backends
        backends = [name for name in backends if name != "console"]
        if "wandb" in backends:
            backends = _usable_wandb(backends, self._folder)
        self._start(project_name, experiment_name, backends, config)
        self._run: RunFolder | None = None
        self._lines: StepLine | None = None
        self._watchdog: Watchdog | None = None

    def _start(self, project: str, experiment: str, backends: list[str], config: dict) -> None:
        """verl's loggers; a wandb server that does not answer costs its time-out, not the run."""
        if "wandb" not in backends:
            super().__init__(project, experiment, backends, config)
            return
        import wandb

        try:
            super().__init__(project, experiment, backends, config)
        except wandb.errors.CommError as error:
            os.environ["WANDB_MODE"] = "offline"
            say(f"wandb: no answer ({error}), so this run is recorded offline")
            super().__init__(project, experiment, backends, config)

    def log(self, data: dict, step: int, backend: list[str] | None = None) -> None:
        """Log one step everywhere; metrics.jsonl first, so that it survives whatever follows."""
        data = dict(data)
        for name, value in self._trainer.corrections.items():
            if name in data:
                data.pop(name)
                if value is not None:
                    data[name] = value
        data |= time_shares(data)
        if self._run is None:
            self._open()
        self._run.append_metrics(step, data)
        for name, record in self._trainer.pending_records:
            self._run.append_record(name, record)
        self._trainer.pending_records.clear()
        super().log(data, step, backend)
        if self._console:
            for line in self._lines.lines(step, data):
                say(line)
        self._watchdog.look(step, data)

    def _open(self) -> None:
        """Late: only after fit has loaded its checkpoint is the step it resumes from known."""
        resumed = self._trainer.resumed_from
        config = OmegaConf.to_container(self._trainer.config, resolve=True)
        self._run = RunFolder(self._folder).open(config, sys.argv, resumed)
        total = self._trainer.total_training_steps
        self._lines = StepLine(total, resumed or 0)
        # Supervised runs have none.
        mode = OmegaConf.select(self._trainer.config, "opdvr.watchdog") or "off"
        self._watchdog = Watchdog(mode, self._run, total)


def _usable_wandb(backends: list[str], folder: Path) -> list[str]:
    """Never a login prompt: offline without a key, left out where it is not installed."""
    login = wandb_login()
    if not login.installed:
        say("wandb is not installed: logging to console and metrics.jsonl only")
        return [name for name in backends if name != "wandb"]
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_DIR", str(folder))
    if not login.has_key and "WANDB_MODE" not in os.environ:
        os.environ["WANDB_MODE"] = "offline"
        say("wandb: no WANDB_API_KEY, so this run is recorded offline (`wandb sync` uploads it)")
    return backends


@contextmanager
def logging_to_run_folder(trainer: OpdvrTrainer) -> Iterator[None]:
    """Patch `verl.utils.tracking.Tracking`, which fit imports by name, for the time of one fit."""

    def make(*args: Any, **kwargs: Any) -> StepLogger:  # noqa: ANN401
        return StepLogger(trainer, *args, **kwargs)

    verl_tracking.Tracking = make
    try:
        yield
    finally:
        verl_tracking.Tracking = VERL_TRACKING
