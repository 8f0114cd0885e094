"""The options against each other, as far as arithmetic goes: no file is read, nothing imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from opdvr.data.wording import how_many
from opdvr.integration.options import OpdvrOptions, without_effect
from opdvr.integration.preflight.finding import Finding, error, warning
from opdvr.integration.teacher_settings import UNNAMED_TEACHER, has_own_engine, loads_weights

GROUP_ESTIMATORS = ("grpo", "token_grpo", "token_reward_direct_plus_grpo")

# How findings name an option: the launchers' variable, then the option itself.
MINI_BATCH_SIZE = "MINI_BATCH_SIZE (actor_rollout_ref.actor.ppo_mini_batch_size)"
N_RESPONSES = "N_RESPONSES (actor_rollout_ref.rollout.n)"
PARALLEL_SIZE = "PARALLEL_SIZE (opdvr.parallel_size)"
NGPUS_PER_NODE = "NGPUS_PER_NODE (trainer.n_gpus_per_node)"
NNODES = "NNODES (trainer.nnodes)"
TEMPERATURE = "TEMPERATURE (actor_rollout_ref.rollout.temperature)"
LORA_RANK = "LORA_RANK (actor_rollout_ref.model.lora_rank)"
MAX_PROMPT_LENGTH = "MAX_PROMPT_LENGTH (data.max_prompt_length)"
MAX_RESP_LENGTH = "MAX_RESP_LENGTH (data.max_response_length)"


def check_names(config: DictConfig) -> Iterator[Finding]:
    """A teacher that was never named, a cluster that was never joined: known without a look."""
    if teacher_is_unnamed(config):
        yield error(
            "REWARD_MODEL_PATH (reward_model.model.path)",
            "is not set",
            remedy="name the teacher's folder or hub name, or run grpo.sh, which has none",
        )
    if config.trainer.nnodes > 1 and not os.environ.get("RAY_ADDRESS"):
        yield error(
            NNODES,
            f"{config.trainer.nnodes} nodes, which needs a Ray cluster over these",
            remedy="set RAY_ADDRESS to its address",
        )


def teacher_is_unnamed(config: DictConfig) -> bool:
    """Whether the run would load the teacher of the default configuration, which is a mere name."""
    teacher = str(config.reward_model.model.path)
    return loads_weights(config) and teacher == UNNAMED_TEACHER and not Path(teacher).exists()


def check_effects(config: DictConfig) -> Iterator[Finding]:
    """A warning for every option of ours that was set and is not read."""
    for line in without_effect(OpdvrOptions(**config.opdvr)):
        option, _, rest = line.partition(" has no effect ")
        yield warning(option, f"has no effect {rest}", remedy="leave it out, or set that")


def check_options(config: DictConfig) -> Iterator[Finding]:
    """What the values of several options, each in its range, come to together."""
    for check in (
        check_groups,
        check_parallel_sizes,
        check_batches,
        check_token_budgets,
        check_packing,
        check_adapter,
        check_sampling,
    ):
        yield from check(config)


def check_groups(config: DictConfig) -> Iterator[Finding]:
    """Methods that compare the responses of one prompt need at least two."""
    n_responses = config.actor_rollout_ref.rollout.n
    if n_responses >= 2:
        return
    estimator = config.algorithm.adv_estimator
    if config.opdvr.grpo_scaled:
        method = "GRPO_SCALED (opdvr.grpo_scaled)"
    elif estimator in GROUP_ESTIMATORS:
        method = f"ADV_ESTIMATOR={estimator} (algorithm.adv_estimator)"
    else:
        return
    yield error(
        N_RESPONSES,
        f"is {n_responses}, but {method} compares the responses of one prompt",
        remedy="set N_RESPONSES to 2 or more",
    )


def check_parallel_sizes(config: DictConfig) -> Iterator[Finding]:
    """Tensor and sequence parallel groups must divide the processes of the run."""
    n_gpus = count_devices(config)
    sequence_parallel = sequence_parallel_size(config)
    sizes = {
        "actor_rollout_ref.rollout.tensor_model_parallel_size": (
            config.actor_rollout_ref.rollout.tensor_model_parallel_size
        ),
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": sequence_parallel,
    }
    for option, size in sizes.items():
        if n_gpus % size:
            yield error(
                PARALLEL_SIZE,
                f"gives {option}={size}, which does not divide the {how_many(n_gpus, 'device')} of "
                f"{NGPUS_PER_NODE} times trainer.nnodes",
                remedy=f"use a divisor of {n_gpus}",
            )
    attention = config.actor_rollout_ref.model.override_config.get("attn_implementation")
    if sequence_parallel > 1 and attention != "flash_attention_2":
        yield error(
            PARALLEL_SIZE,
            f"is {sequence_parallel}, and attention runs on {attention}",
            "verl splits sequences over devices inside flash-attn only",
            "install flash-attn, or set PARALLEL_SIZE=1",
        )


def check_batches(config: DictConfig) -> Iterator[Finding]:
    """A step must split into whole mini-batches, and each into equal parts for every rank."""
    rollout = config.actor_rollout_ref.rollout
    prompts = config.data.train_batch_size
    mini_batch = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if prompts % mini_batch:
        yield error(
            f"data.train_batch_size={prompts}",
            f"is no multiple of {MINI_BATCH_SIZE}={mini_batch}",
            remedy="make it one (by default it is MINI_BATCH_SIZE times PARALLEL_SIZE)",
        )
    ranks = count_devices(config) // sequence_parallel_size(config)
    sizes = {"data.train_batch_size": prompts, MINI_BATCH_SIZE: mini_batch}
    for option, size in sizes.items():
        responses = size * rollout.n
        if ranks and responses % ranks:
            yield error(
                f"{option}={size}",
                f"times {N_RESPONSES}={rollout.n} is {responses} responses, which do not split "
                f"evenly over {ranks} data-parallel ranks ({NGPUS_PER_NODE} times trainer.nnodes, "
                f"over {PARALLEL_SIZE})",
                remedy=f"make the product a multiple of {ranks}",
            )
            break  # a mini-batch that is the whole step would say it again
    agents = rollout.agent.num_workers
    if prompts * rollout.n % agents:
        yield error(
            f"data.train_batch_size={prompts}",
            f"times {N_RESPONSES}={rollout.n} is no multiple of "
            f"actor_rollout_ref.rollout.agent.num_workers={agents}",
            remedy="change MINI_BATCH_SIZE or that",
        )


def check_token_budgets(config: DictConfig) -> Iterator[Finding]:
    """Where micro-batches are cut by tokens, one must hold the longest row there can be."""
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    longest = prompt + response
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    teacher = config.reward_model
    student_ranks = sequence_parallel_size(config)
    log_prob = "LOG_PROB_MAX_TOKEN_LEN_PER_GPU"
    budgets = [
        (
            actor.use_dynamic_bsz,
            "PPO_MAX_TOKEN_LEN_PER_GPU (actor_rollout_ref.actor.ppo_max_token_len_per_gpu)",
            actor.ppo_max_token_len_per_gpu,
            student_ranks,
        ),
        (
            rollout.log_prob_use_dynamic_bsz,
            f"{log_prob} (actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu)",
            rollout.log_prob_max_token_len_per_gpu,
            student_ranks,
        ),
        (
            teacher.enable and not has_own_engine(config) and teacher.use_dynamic_bsz,
            f"{log_prob} (reward_model.forward_max_token_len_per_gpu)",
            teacher.forward_max_token_len_per_gpu,
            teacher.ulysses_sequence_parallel_size,
        ),
    ]
    for used, option, tokens, ranks in budgets:
        if used and tokens * ranks < longest:
            over = f" on each of {ranks} ranks" if ranks > 1 else ""
            yield error(
                option,
                f"is {tokens} tokens{over}, but a row may have {longest}: {MAX_PROMPT_LENGTH} "
                f"{prompt} plus {MAX_RESP_LENGTH} {response}",
                remedy=f"set it to {-(-longest // ranks)} or more",
            )


def check_packing(config: DictConfig) -> Iterator[Finding]:
    """verl's model engine masks attention by the response mask unless rows are packed."""
    models = {"actor_rollout_ref.model": config.actor_rollout_ref.model}
    if config.reward_model.enable and not has_own_engine(config):
        models["reward_model.model"] = config.reward_model.model
    for option, model in models.items():
        if not model.use_remove_padding:
            yield error(
                f"{option}.use_remove_padding=False",
                "gives wrong log-probs on verl's model engine "
                "(trainer.use_legacy_worker_impl=disable)",
                remedy=f"set {option}.use_remove_padding=True",
            )


def check_adapter(config: DictConfig) -> Iterator[Finding]:
    """LoRA's weights are merged from FSDP2's tensors; an adapter to go on with needs its rank."""
    model, strategy = config.actor_rollout_ref.model, config.actor_rollout_ref.actor.strategy
    if model.lora_rank and strategy != "fsdp2":
        yield error(
            LORA_RANK,
            f"needs FSDP2, but actor_rollout_ref.actor.strategy is {strategy}",
            remedy="use fsdp2",
        )
    if model.lora_adapter_path and not model.lora_rank:
        yield error(
            "actor_rollout_ref.model.lora_adapter_path",
            f"has no effect without {LORA_RANK}",
            remedy="set it to the adapter's rank",
        )


def check_sampling(config: DictConfig) -> Iterator[Finding]:
    """Validation samples that would be copies; a warning for cut-off sampling in training."""
    rollout = config.actor_rollout_ref.rollout
    validation = rollout.val_kwargs
    if validation.n > 1 and (validation.temperature <= 0 or not validation.do_sample):
        yield error(
            "VAL_N (actor_rollout_ref.rollout.val_kwargs.n)",
            f"is {validation.n}, but VAL_TEMPERATURE (actor_rollout_ref.rollout.val_kwargs."
            f"temperature) is {validation.temperature} and actor_rollout_ref.rollout.val_kwargs."
            f"do_sample is {validation.do_sample}",
            f"the {validation.n} samples of a prompt in validation would be copies",
            "set do_sample=True and VAL_TEMPERATURE above 0, or VAL_N=1",
        )
    elif validation.n > 1 and validation.top_k == 1:
        yield error(
            "VAL_N (actor_rollout_ref.rollout.val_kwargs.n)",
            f"is {validation.n}, but actor_rollout_ref.rollout.val_kwargs.top_k is 1",
            f"the {validation.n} samples of a prompt in validation would be copies",
            "set top_k=-1, or VAL_N=1",
        )
    cuts = []
    if rollout.top_p < 1:
        cuts.append(f"actor_rollout_ref.rollout.top_p={rollout.top_p}")
    if rollout.top_k > 0:
        cuts.append(f"actor_rollout_ref.rollout.top_k={rollout.top_k}")
    if cuts:
        yield warning(
            " and ".join(cuts),
            "training samples come from a cut-off distribution",
            "the rollout's log-probs differ from the trainer's, which are over the whole "
            "vocabulary",
            "set top_p=1 and top_k=-1",
        )


def count_devices(config: DictConfig) -> int:
    """Processes of the student over all nodes."""
    return config.trainer.n_gpus_per_node * config.trainer.nnodes


def sequence_parallel_size(config: DictConfig) -> int:
    """Ranks that one row is spread over."""
    return config.actor_rollout_ref.actor.ulysses_sequence_parallel_size
