"""Tokens that `opdvr.sft.prepare` wrote, as verl's SFT trainer takes a data set."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from omegaconf import DictConfig
from torch.utils.data import Dataset


class TokenDataset(Dataset):
    """Rows input_ids, loss_mask, position_ids [j] int64, mapped from disk; named in custom_cls.

    Args:
        parquet_files: the one Arrow file, under verl's name for it.
        tokenizer, config, processor: verl's; the rows are tokens already.
        max_samples: only the first so many rows; -1 for all.
    """

    def __init__(
        self,
        parquet_files: str,
        tokenizer: Any,  # noqa: ANN401
        config: DictConfig,
        processor: Any = None,  # noqa: ANN401
        max_samples: int = -1,
    ):
        table = pa.ipc.open_file(pa.memory_map(parquet_files)).read_all()
        self._table = table if max_samples < 0 else table.slice(0, max_samples)

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        ids, mask = (
            torch.from_numpy(self._table[name][row].values.to_numpy().astype("int64"))
            for name in ("input_ids", "loss_mask")
        )
        return {
            "input_ids": ids,
            "loss_mask": mask,
            "position_ids": torch.arange(len(ids)),
        }
