"""The embedded task's data files, for a run and for the check before one."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from opdvr.integration.config import REPO_ROOT

DATASETS = REPO_ROOT / "datasets"


def make_demo_data(config: DictConfig) -> None:
    """Both files, made where they are missing (under a second, the same bytes)."""
    from opdvr.demo.task import write_parquet

    for path in (config.data.train_files, config.data.val_files):
        if isinstance(path, str) and not Path(path).exists() and Path(path).parent == DATASETS:
            write_parquet(DATASETS)
