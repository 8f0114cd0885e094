"""One rank of an SFT run: the process around verl's trainer."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig

from opdvr.integration.terminal import output_in_log, stage

LOG = "train.log"


def run_rank(local_rank: int, config: DictConfig, fingerprint: dict[str, object]) -> None:
    """Train as rank `local_rank` of this machine; errors propagate.

    The environment names the machine's ranks (WORLD_SIZE, MASTER_ADDR, MASTER_PORT) already.
    """
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(local_rank)
    if config.trainer.device == "cuda":
        import torch

        torch.cuda.set_device(local_rank)
    folder = Path(config.trainer.default_local_dir)
    with output_in_log(folder / LOG, to_terminal=local_rank == 0):
        stage("importing verl")
        _train(config, fingerprint)


def _train(config: DictConfig, fingerprint: dict[str, object]) -> None:
    import torch.distributed as dist

    from opdvr.integration import engine
    from opdvr.integration.platform import initialise_gloo, use_gloo_and_leave_memory_alone
    from opdvr.integration.sft.engine import ConversationEngine
    from opdvr.integration.sft.trainer import OpdvrSftTrainer

    use_gloo_and_leave_memory_alone()
    engine.install(ConversationEngine)
    ConversationEngine.head_tile_tokens = config.sft.head_chunk_tokens
    if config.trainer.device == "cpu":
        initialise_gloo()
    else:
        from verl.utils.distributed import initialize_global_process_group

        initialize_global_process_group()
    try:
        OpdvrSftTrainer(config, fingerprint).fit()
    finally:
        dist.destroy_process_group()
