"""Everything about a configuration that can be refused before Ray starts and a model loads.

Reads files and arithmetic only: neither torch, transformers, vllm nor verl is imported.
"""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from opdvr.data.schema import check_files, overlap_warning
from opdvr.data.wording import how_many
from opdvr.integration.config import OWN_VERIFIER_PATH
from opdvr.integration.preflight.models import ModelOption, check_models, find_model
from opdvr.integration.preflight.ranges import check_custom_verifier, check_ranges
from opdvr.integration.teacher_settings import has_own_engine, teacher_settings
from opdvr.integration.vocabulary import read_vocabulary
from opdvr.teacher.engines import Wanted
from opdvr.verifier.extract import BOXED

GROUP_ESTIMATORS = ("grpo", "token_grpo", "token_reward_direct_plus_grpo")

# How messages name an option: the launchers' variable, then the option itself.
TRAIN_DATASET = "TRAIN_DATASET (data.train_files)"
TEST_DATASET = "TEST_DATASET (data.val_files)"
MINI_BATCH_SIZE = "MINI_BATCH_SIZE (actor_rollout_ref.actor.ppo_mini_batch_size)"
N_RESPONSES = "N_RESPONSES (actor_rollout_ref.rollout.n)"
PARALLEL_SIZE = "PARALLEL_SIZE (opdvr.parallel_size)"
NGPUS_PER_NODE = "NGPUS_PER_NODE (trainer.n_gpus_per_node)"
VAL_TEMPERATURE = "VAL_TEMPERATURE (actor_rollout_ref.rollout.val_kwargs.temperature)"
TEMPERATURE = "TEMPERATURE (actor_rollout_ref.rollout.temperature)"


def run_preflight(config: DictConfig) -> list[str]:
    """Check a composed configuration: options against each other, then models, then data.

    Args:
        config: verl's ppo_trainer configuration with our `opdvr` group, interpolations resolvable.

    Returns:
        Warnings, one line each.

    Raises:
        ValueError: one line that names the environment variable, the option and the remedy.
    """
    check_ranges(config)
    check_custom_verifier(config)
    check_groups(config)
    check_parallel_sizes(config)
    check_batches(config)
    check_token_budgets(config)
    check_packing(config)
    check_adapter(config)
    warnings = list(check_sampling(config))
    warnings += check_models(config)
    data_warnings, sources = check_data(config)
    warnings += data_warnings
    if config.reward_model.enable and config.opdvr.teacher_engine == "server":
        warnings += check_teacher_servers(config, sources)
    return warnings


def check_groups(config: DictConfig) -> None:
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
    raise ValueError(
        f"{N_RESPONSES} is {n_responses}, but {method} compares the responses of one prompt; "
        "set N_RESPONSES to 2 or more"
    )


def check_parallel_sizes(config: DictConfig) -> None:
    """Tensor and sequence parallel groups must divide the processes of the run."""
    n_gpus = _n_gpus(config)
    sizes = {
        "actor_rollout_ref.rollout.tensor_model_parallel_size": (
            config.actor_rollout_ref.rollout.tensor_model_parallel_size
        ),
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": _sequence_parallel_size(config),
    }
    for option, size in sizes.items():
        if n_gpus % size:
            raise ValueError(
                f"{PARALLEL_SIZE} gives {option}={size}, which does not divide the {n_gpus} "
                f"devices of {NGPUS_PER_NODE} times trainer.nnodes; use a divisor of {n_gpus}"
            )
    attention = config.actor_rollout_ref.model.override_config.get("attn_implementation")
    if _sequence_parallel_size(config) > 1 and attention != "flash_attention_2":
        raise ValueError(
            f"{PARALLEL_SIZE} above 1 splits sequences over devices, which verl does inside "
            f"flash-attn only, but attention runs on {attention}; install flash-attn, or set "
            "PARALLEL_SIZE=1"
        )


def check_batches(config: DictConfig) -> None:
    """A step must split into whole mini-batches, and each into equal parts for every rank."""
    rollout = config.actor_rollout_ref.rollout
    prompts = config.data.train_batch_size
    mini_batch = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if prompts % mini_batch:
        raise ValueError(
            f"data.train_batch_size={prompts} is no multiple of {MINI_BATCH_SIZE}={mini_batch}; "
            "make it one (by default it is MINI_BATCH_SIZE times PARALLEL_SIZE)"
        )
    ranks = _n_gpus(config) // _sequence_parallel_size(config)
    for option, size in (("data.train_batch_size", prompts), (MINI_BATCH_SIZE, mini_batch)):
        responses = size * rollout.n
        if responses % ranks:
            raise ValueError(
                f"{option}={size} times {N_RESPONSES}={rollout.n} is {responses} responses, which "
                f"do not split evenly over {ranks} data-parallel ranks ({NGPUS_PER_NODE} times "
                f"trainer.nnodes, over {PARALLEL_SIZE}); make the product a multiple of {ranks}"
            )
    agents = rollout.agent.num_workers
    if prompts * rollout.n % agents:
        raise ValueError(
            f"data.train_batch_size={prompts} times {N_RESPONSES}={rollout.n} is no multiple of "
            f"actor_rollout_ref.rollout.agent.num_workers={agents}; change MINI_BATCH_SIZE or that"
        )


def check_token_budgets(config: DictConfig) -> None:
    """Where micro-batches are cut by tokens, one must hold the longest row there can be."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    teacher = config.reward_model
    student_ranks = _sequence_parallel_size(config)
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
            raise ValueError(
                f"{option} is {tokens} tokens{over}, but a row may have {longest}: "
                f"MAX_PROMPT_LENGTH (data.max_prompt_length) {config.data.max_prompt_length} plus "
                f"MAX_RESP_LENGTH (data.max_response_length) {config.data.max_response_length}; "
                f"set it to {-(-longest // ranks)} or more"
            )


def check_packing(config: DictConfig) -> None:
    """verl's model engine masks attention by the response mask unless rows are packed."""
    models = {"actor_rollout_ref.model": config.actor_rollout_ref.model}
    if config.reward_model.enable and not has_own_engine(config):
        models["reward_model.model"] = config.reward_model.model
    for option, model in models.items():
        if not model.use_remove_padding:
            raise ValueError(
                f"{option}.use_remove_padding=False gives wrong log-probs on verl's model engine "
                f"(trainer.use_legacy_worker_impl=disable); set {option}.use_remove_padding=True"
            )


def check_adapter(config: DictConfig) -> None:
    """LoRA's weights are merged from FSDP2's tensors; an adapter to go on with needs its rank."""
    model, strategy = config.actor_rollout_ref.model, config.actor_rollout_ref.actor.strategy
    if model.lora_rank and strategy != "fsdp2":
        raise ValueError(
            f"LORA_RANK (actor_rollout_ref.model.lora_rank) needs FSDP2, but "
            f"actor_rollout_ref.actor.strategy is {strategy}; use fsdp2"
        )
    if model.lora_adapter_path and not model.lora_rank:
        raise ValueError(
            "actor_rollout_ref.model.lora_adapter_path has no effect without LORA_RANK "
            "(actor_rollout_ref.model.lora_rank); set it to the adapter's rank"
        )


def check_sampling(config: DictConfig) -> Iterator[str]:
    """Temperatures that make no sense are refused; cut-off sampling in training is warned about."""
    rollout = config.actor_rollout_ref.rollout
    validation = rollout.val_kwargs
    if rollout.temperature <= 0:
        raise ValueError(
            f"{TEMPERATURE} is {rollout.temperature}; training samples need one above 0"
        )
    if validation.n > 1 and (validation.temperature <= 0 or not validation.do_sample):
        greedy = (
            f"{VAL_TEMPERATURE} is {validation.temperature} and "
            f"actor_rollout_ref.rollout.val_kwargs.do_sample is {validation.do_sample}"
        )
        raise ValueError(
            f"{greedy}, so the {validation.n} samples of a prompt in validation (VAL_N, "
            "actor_rollout_ref.rollout.val_kwargs.n) would be copies; set do_sample=True and "
            "VAL_TEMPERATURE above 0, or VAL_N=1"
        )
    cuts = []
    if rollout.top_p < 1:
        cuts.append(f"actor_rollout_ref.rollout.top_p={rollout.top_p}")
    if rollout.top_k > 0:
        cuts.append(f"actor_rollout_ref.rollout.top_k={rollout.top_k}")
    if cuts:
        yield (
            f"{' and '.join(cuts)}: training samples come from a cut-off distribution, so the "
            "rollout's log-probs differ from the trainer's, which are over the whole vocabulary"
        )


def check_data(config: DictConfig) -> tuple[list[str], set[str]]:
    """Columns, prompts and gold answers of both data sets; enough rows; what stands in both.

    Returns:
        Warnings, and the data sources of the training rows (empty where a file is remote).
    """
    train, test = (
        check_files(
            [files] if isinstance(files, str) else list(files),
            option,
            prompt_key=config.data.prompt_key,
            reward_fn_key=config.data.reward_fn_key,
            own_verifier=config.custom_reward_function.path == OWN_VERIFIER_PATH,
            boxes_only=config.opdvr.answer_forms == BOXED,
        )
        for option, files in (
            (TRAIN_DATASET, config.data.train_files),
            (TEST_DATASET, config.data.val_files),
        )
    )
    if 0 < train.rows < config.data.train_batch_size:
        raise ValueError(
            f"{TRAIN_DATASET} has {how_many(train.rows, 'row')}, fewer than one step takes: "
            f"data.train_batch_size={config.data.train_batch_size}; lower {MINI_BATCH_SIZE}"
        )
    overlap = overlap_warning(train, TRAIN_DATASET, test)
    remote = not train.files
    warnings = train.warnings + test.warnings + ([overlap] if overlap else [])
    return warnings, set() if remote else train.sources


def check_teacher_servers(config: DictConfig, sources: set[str]) -> list[str]:
    """Every server of TEACHER_URLS answers, with the right model, length and tokenizer."""
    from opdvr.teacher.server_check import check_servers

    settings, options = teacher_settings(config), config.opdvr
    student = config.actor_rollout_ref.model
    source = student.tokenizer_path or student.path
    folder = find_model(
        ModelOption("student", "ACTOR_MODEL_PATH", "actor_rollout_ref.model.path", source)
    )
    tokens = read_vocabulary(folder) if folder and options.log_prob_top_k else None
    wanted = Wanted(options.log_prob_top_k, vocabulary=max(tokens) + 1 if tokens else None)
    return check_servers(settings, wanted, sources, folder)


def _n_gpus(config: DictConfig) -> int:
    return config.trainer.n_gpus_per_node * config.trainer.nnodes


def _sequence_parallel_size(config: DictConfig) -> int:
    return config.actor_rollout_ref.actor.ulysses_sequence_parallel_size
