"""Single values that no run can work with, refused by variable and option at the start."""

from __future__ import annotations

import math

from omegaconf import DictConfig, OmegaConf

from opdvr.integration.config import OWN_VERIFIER_PATH
from opdvr.verifier.custom import load_verifier

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"

# option, variable ("" where there is none), least value, greatest value; None is left to verl.
# Whole numbers and reals alike; NaN and infinity are in no range.
RANGES = (
    (f"{ROLLOUT}.temperature", "TEMPERATURE", 1e-6, 1e3),
    (f"{ROLLOUT}.n", "N_RESPONSES", 1, math.inf),
    (f"{ROLLOUT}.val_kwargs.n", "VAL_N", 1, math.inf),
    (f"{ROLLOUT}.val_kwargs.temperature", "VAL_TEMPERATURE", 0, 1e3),
    (f"{ROLLOUT}.val_kwargs.top_p", "VAL_TOP_P", 1e-6, 1),
    (f"{ROLLOUT}.top_p", "", 1e-6, 1),
    ("opdvr.teacher_temperature", "TEACHER_TEMPERATURE", 1e-6, 1e3),
    ("opdvr.teacher_timeout", "TEACHER_TIMEOUT", 1e-3, 1e9),
    ("opdvr.teacher_patience", "TEACHER_PATIENCE", 0, 1e9),
    ("opdvr.max_val_response_length", "MAX_VAL_RESP_LENGTH", 1, math.inf),
    ("opdvr.correctness_threshold", "CORRECTNESS_THRESHOLD", -1e30, 1e30),
    ("actor_rollout_ref.model.lora_rank", "LORA_RANK", 0, math.inf),
    ("data.max_prompt_length", "MAX_PROMPT_LENGTH", 1, math.inf),
    ("data.max_response_length", "MAX_RESP_LENGTH", 1, math.inf),
    (f"{ACTOR}.optim.lr", "ACTOR_LR", 0, 1e3),
    (f"{ACTOR}.ppo_mini_batch_size", "MINI_BATCH_SIZE", 1, math.inf),
    (f"{ACTOR}.ppo_epochs", "", 1, math.inf),
    (f"{ACTOR}.entropy_coeff", "", -1e3, 1e3),
    ("trainer.n_gpus_per_node", "NGPUS_PER_NODE", 1, math.inf),
    ("trainer.nnodes", "NNODES", 1, math.inf),
    ("trainer.total_epochs", "TOTAL_EPOCHS", 1, math.inf),
    ("trainer.total_training_steps", "TOTAL_STEPS", 1, math.inf),
)
CHOICES = (
    ("trainer.device", ("cpu", "cuda")),
    ("trainer.use_legacy_worker_impl", ("disable",)),
    (f"{ACTOR}.strategy", ("fsdp", "fsdp2")),
    ("reward_model.strategy", ("fsdp", "fsdp2")),
    (
        f"{ACTOR}.loss_agg_mode",
        ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
    ),
    ("algorithm.norm_adv_by_std_in_grpo", (True, False)),
)


def check_ranges(config: DictConfig) -> None:
    """Raise ValueError, in one line, for the first value outside its range."""
    for option, variable, least, greatest in RANGES:
        value = OmegaConf.select(config, option)
        if value is None:
            continue
        name = f"{variable} ({option})" if variable else option
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not least <= value <= greatest:
            wanted = f"{least:g} or more" if math.isinf(greatest) else f"{least:g} to {greatest:g}"
            raise ValueError(f"{name} is {value}; it must be a number, {wanted}")
    for option, allowed in CHOICES:
        value = OmegaConf.select(config, option)
        if value is not None and value not in allowed:
            raise ValueError(f"{option} is {value!r}; it must be one of {allowed}")


VERIFIER = "VERIFIER (opdvr.verifier, custom_reward_function)"


def check_custom_verifier(config: DictConfig) -> None:
    """The function exists, can be imported and takes what it will be called with."""
    reward = config.custom_reward_function
    path = str(reward.path or "")
    if not path or path == OWN_VERIFIER_PATH:
        return
    source = path.removeprefix("file://")
    if path.startswith("pkg://"):
        source = path.removeprefix("pkg://").replace("/", ".")
    elif not source.endswith(".py"):
        raise ValueError(f"{VERIFIER}: {source} is no Python file")
    try:
        load_verifier(f"{source}:{reward.name}", further=reward.get("reward_kwargs") or {})
    except ValueError as reason:
        raise ValueError(f"{VERIFIER}: {reason}") from None
