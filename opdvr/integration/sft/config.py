"""From override strings to one resolved configuration of verl's SFT trainer."""

from __future__ import annotations

import math
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from opdvr.integration.config import (
    choose_attention,
    fill_name,
    groups_first,
    make_paths_absolute,
    model_name,
    register_resolvers,
    verl_config_dir,
)
from opdvr.integration.sft.options import SftOptions

_CONF_DIR = Path(__file__).parent / "conf"
EACH_EPOCH = "after_each_epoch"


def compose(overrides: list[str]) -> DictConfig:
    """The whole configuration of an SFT run, every interpolation resolved.

    Raises:
        ValueError: a value is out of range, or fields contradict each other.
    """
    ConfigStore.instance().store(group="sft", name="options", node=SftOptions)
    register_resolvers()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(_CONF_DIR), version_base=None):
        config = hydra_compose(
            "opdvr_sft",
            overrides=[f"hydra.searchpath=[file://{verl_config_dir()}]", *groups_first(overrides)],
        )
    OmegaConf.to_object(config.sft).validate()
    with open_dict(config):
        fill_name(config, f"sft_{model_name(config.model.path)}", overrides)
        choose_attention(config.model.override_config)
        make_paths_absolute(config, [config.model])
    OmegaConf.resolve(config)
    return config


def check(config: DictConfig) -> None:
    """What contradicts itself, known before any file is read.

    Raises:
        ValueError: one line that names the variable, the option and the remedy.
    """
    _check_values(config)
    _check_devices(config)
    if config.model.lora_rank < 0:
        raise ValueError(f"LORA_RANK (model.lora_rank) is {config.model.lora_rank}; use 0 or more")
    if config.model.lora_rank and config.engine.strategy != "fsdp2":
        raise ValueError("LORA_RANK (model.lora_rank) needs engine.strategy=fsdp2")


def _check_values(config: DictConfig) -> None:
    parallel = config.engine.ulysses_sequence_parallel_size
    at_least_one = {
        "NGPUS_PER_NODE (trainer.n_gpus_per_node)": config.trainer.n_gpus_per_node,
        "TOTAL_EPOCHS (trainer.total_epochs)": config.trainer.total_epochs,
        "BATCH_SIZE (data.train_batch_size)": config.data.train_batch_size,
        "MAX_LENGTH (data.max_length)": config.data.max_length,
        "PARALLEL_SIZE (engine.ulysses_sequence_parallel_size)": parallel,
    }
    for option, value in at_least_one.items():
        if value < 1:
            raise ValueError(f"{option} is {value}; it must be 1 or more")
    for option in ("save_freq", "test_freq"):
        value = config.trainer[option]
        if value != EACH_EPOCH and (not isinstance(value, int) or value == 0 or value < -1):
            raise ValueError(
                f"{option.upper()} (trainer.{option}) is {value!r}; use a number of steps, -1 for "
                f"never (but at the end), or {EACH_EPOCH}"
            )
    rate = config.optim.lr
    if not (isinstance(rate, int | float) and 0 < rate < math.inf):
        raise ValueError(f"ACTOR_LR (optim.lr) is {rate!r}; it must be a number above 0")


def _check_devices(config: DictConfig) -> None:
    """One machine, and rows that split evenly over its devices."""
    ranks = config.trainer.n_gpus_per_node
    parallel = config.engine.ulysses_sequence_parallel_size
    if config.trainer.nnodes != 1:
        raise ValueError(
            f"NNODES (trainer.nnodes) is {config.trainer.nnodes}: one machine is started here; "
            "set it to 1 and NGPUS_PER_NODE to the GPUs of this one"
        )
    if ranks % parallel or config.data.train_batch_size % (ranks // parallel):
        raise ValueError(
            f"BATCH_SIZE (data.train_batch_size) = {config.data.train_batch_size} does not split "
            f"evenly over {ranks} devices by PARALLEL_SIZE = {parallel}; make it a multiple of "
            f"{max(1, ranks // parallel)}"
        )
    budget = config.data.max_token_len_per_gpu * parallel
    if config.data.use_dynamic_bsz and budget < config.data.max_length:
        raise ValueError(
            f"MAX_TOKEN_LEN_PER_GPU (data.max_token_len_per_gpu) holds {budget} tokens, but a row "
            f"may have {config.data.max_length} (MAX_LENGTH, data.max_length); raise it"
        )
    attention = config.model.override_config.attn_implementation
    if parallel > 1 and attention != "flash_attention_2":
        raise ValueError(
            "PARALLEL_SIZE above 1 splits sequences over devices, which verl does inside "
            f"flash-attn only, but attention runs on {attention}; install it, or use 1"
        )
