"""From a composed configuration to what a teacher engine needs, and to what it cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omegaconf import DictConfig

from opdvr.integration.options import OpdvrOptions
from opdvr.teacher import ENGINES
from opdvr.teacher.addresses import ANY_SOURCE, read_addresses
from opdvr.teacher.engines import EngineKind, TeacherSettings, Wanted, read_api_key

if TYPE_CHECKING:
    from opdvr.integration.scoring import Plan

UNNAMED_TEACHER = "Qwen3-4B-RL"  # the published name of a model that has no public address
# Strategies that ask the teacher about ids of its own choice alone; for the others the student
# chooses. The core's STRATEGIES say it too, but torch may not be imported this early.
OWN_TOP_K_SUFFICES = ("only_tch",)
# Share of the memory of a device that is the teacher's own; of a shared one it is the rollout's.
_OWN_MEMORY_UTILIZATION = 0.9


def engine_kind(config: DictConfig) -> EngineKind:
    """The engine that TEACHER_ENGINE names."""
    return ENGINES[config.opdvr.teacher_engine]


def has_own_engine(config: DictConfig) -> bool:
    """Whether there is a teacher, and it runs outside verl's worker groups."""
    return bool(config.reward_model.enable) and engine_kind(config).factory is not None


def loads_weights(config: DictConfig) -> bool:
    """Whether there is a teacher, and this run loads its weights."""
    return bool(config.reward_model.enable) and engine_kind(config).local_weights


def has_several_teachers(config: DictConfig) -> bool:
    """Whether data sources have servers of their own."""
    urls = config.opdvr.teacher_urls
    return bool(urls) and set(read_addresses(urls).by_source) != {ANY_SOURCE}


def shares_devices(config: DictConfig) -> bool:
    """Whether the teacher's engine and the rollout take turns on the same GPUs."""
    on_gpus = config.trainer.device != "cpu"
    return on_gpus and config.opdvr.teacher_engine == "vllm" and not config.opdvr.teacher_devices


def teacher_settings(config: DictConfig) -> TeacherSettings:
    """How the engine is set up."""
    options, model = config.opdvr, config.reward_model.model
    shares = shares_devices(config)
    named = loads_weights(config) or model.path != UNNAMED_TEACHER
    shared_utilization = config.actor_rollout_ref.rollout.gpu_memory_utilization
    return TeacherSettings(
        model=str(model.path) if named else "",
        device=config.trainer.device,
        dtype=options.model_dtype,
        max_tokens=config.data.max_prompt_length + config.data.max_response_length,
        trust_remote_code=bool(model.trust_remote_code),
        tensor_parallel=options.teacher_parallel_size,
        memory_utilization=shared_utilization if shares else _OWN_MEMORY_UTILIZATION,
        shares_devices=shares,
        urls=options.teacher_urls,
        api_key=read_api_key(),
        timeout_s=options.teacher_timeout,
        patience_s=options.teacher_patience,
        max_in_flight=options.teacher_max_in_flight,
    )


def teacher_wanted(options: OpdvrOptions, plan: Plan, vocabulary: int) -> Wanted:
    """What this run asks of its teacher for every response."""
    return Wanted(
        top_k=plan.teacher_top_k,
        temperature=options.teacher_temperature,
        with_entropy=options.teacher_entropy and ENGINES[options.teacher_engine].entropy,
        vocabulary=None if plan.spec.samples_only else vocabulary,
    )


def choose_teacher(config: DictConfig, options: OpdvrOptions) -> None:
    """Refuse what the engine cannot do, by name; verl's pool of the reward model becomes ours.

    Raises:
        ValueError: one line with variable, option and remedy.
    """
    kind = ENGINES[options.teacher_engine]
    if options.teacher_urls and kind.name != "server":
        raise ValueError(
            f"TEACHER_URLS (opdvr.teacher_urls) is set, but TEACHER_ENGINE (opdvr.teacher_engine) "
            f"is {kind.name}, which asks no server; set TEACHER_ENGINE=server, or leave the "
            "addresses out"
        )
    if not config.reward_model.enable:
        return
    if kind.name == "server" and not options.teacher_urls:
        raise ValueError(
            "TEACHER_ENGINE=server (opdvr.teacher_engine) needs TEACHER_URLS (opdvr.teacher_urls): "
            "addresses of running servers, as `python -m opdvr teacher serve MODEL` prints them"
        )
    if kind.name == "server":
        read_addresses(options.teacher_urls)  # refuses what cannot be an address
    _refuse_what_it_cannot(kind, options)
    pool = config.reward_model
    if kind.name == "vllm" and pool.enable_resource_pool:
        options.teacher_devices = config.opdvr.teacher_devices = pool.n_gpus_per_node * pool.nnodes
    if kind.factory is not None:
        pool.enable_resource_pool = False  # verl would hold those devices for a worker group
    _check_devices(kind, options)


def _refuse_what_it_cannot(kind: EngineKind, options: OpdvrOptions) -> None:
    engine = f"TEACHER_ENGINE={kind.name} (opdvr.teacher_engine)"
    if options.teacher_temperature != 1 and not kind.any_temperature:
        raise ValueError(
            f"TEACHER_TEMPERATURE={options.teacher_temperature:g} (opdvr.teacher_temperature): "
            f"{engine} scores at temperature 1 alone, and log-probs cannot be rescaled afterwards; "
            f"use TEACHER_TEMPERATURE=1 or {_engines_with('any_temperature')}"
        )
    chosen = options.top_k_strategy not in OWN_TOP_K_SUFFICES
    if options.log_prob_top_k and chosen and not kind.any_ids:
        raise ValueError(
            f"TOP_K_STRATEGY={options.top_k_strategy} (opdvr.top_k_strategy) needs the teacher's "
            f"log-probs at ids that the student chose, but {engine} gives its own top K alone; use "
            f"TOP_K_STRATEGY={' or '.join(OWN_TOP_K_SUFFICES)} or {_engines_with('any_ids')}"
        )
    if options.full_vocabulary != "none" and not kind.hidden_states:
        raise ValueError(
            f"FULL_VOCABULARY={options.full_vocabulary} (opdvr.full_vocabulary) needs the "
            f"teacher's hidden states, which {engine} does not give; use "
            f"{_engines_with('hidden_states')}"
        )


def _engines_with(ability: str) -> str:
    able = [kind.name for kind in ENGINES.values() if getattr(kind, ability)]
    return f"TEACHER_ENGINE={' or '.join(able)}"


def _check_devices(kind: EngineKind, options: OpdvrOptions) -> None:
    size, devices = options.teacher_parallel_size, options.teacher_devices
    parallel = f"TEACHER_PARALLEL_SIZE={size} (opdvr.teacher_parallel_size)"
    if kind.name != "vllm":
        of_devices = f"TEACHER_DEVICES={devices} (opdvr.teacher_devices)"
        for is_set, option in ((size != 1, parallel), (devices, of_devices)):
            if is_set:
                raise ValueError(
                    f"{option} is for TEACHER_ENGINE=vllm; {kind.name} does not read it"
                )
    elif devices % size:
        raise ValueError(
            f"TEACHER_DEVICES={devices} (opdvr.teacher_devices) is no multiple of {parallel}"
        )
    elif size > 1 and not devices:
        raise ValueError(
            f"{parallel} above 1 needs devices that are the teacher's own: set TEACHER_DEVICES "
            f"(opdvr.teacher_devices) to a multiple of {size}"
        )
