"""Single values that no run can work with, refused by variable and option at the start."""

from __future__ import annotations

import math
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from opdvr.integration.preflight.finding import Finding, error

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


def check_ranges(config: DictConfig) -> Iterator[Finding]:
    """An error for every value outside its range."""
    for option, variable, least, greatest in RANGES:
        value = OmegaConf.select(config, option)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not least <= value <= greatest:
            wanted = f"{least:g} or more" if math.isinf(greatest) else f"{least:g} to {greatest:g}"
            name = f"{variable} ({option})" if variable else option
            yield error(name, f"is {value}", remedy=f"it must be a number, {wanted}")
    for option, allowed in CHOICES:
        value = OmegaConf.select(config, option)
        if value is not None and value not in allowed:
            choices = ", ".join(map(repr, allowed))
            yield error(option, f"is {value!r}", remedy=f"it must be one of {choices}")
