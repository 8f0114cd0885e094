"""The estimate of a run's memory against what this machine has."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from opdvr.integration.preflight.devices import available_memory, shown, visible_gpus
from opdvr.integration.preflight.estimate import (
    KV_SPACE,
    Phase,
    kv_bytes,
    on_cpu,
    on_gpu,
    weight_bytes,
)
from opdvr.integration.preflight.finding import Finding, error, note, warning
from opdvr.integration.preflight.weights import Shape
from opdvr.integration.teacher_settings import shares_devices, teacher_settings

ACTOR = "actor_rollout_ref.actor.fsdp_config"
UTILIZATION = "actor_rollout_ref.rollout.gpu_memory_utilization"
FULL = 0.9


def check_memory(
    config: DictConfig, student: Shape | None, teacher: Shape | None
) -> Iterator[Finding]:
    """Whether student, teacher, optimizer and inference engine fit beside each other.

    Args:
        config: the composed configuration.
        student, teacher: their sizes; None for one that this run does not load, or that is not
            here.
    """
    if student is None:
        yield note("memory", "the student's weights are not here, so nothing was estimated")
    elif config.trainer.device == "cpu":
        yield from _check_main_memory(config, student, teacher)
    else:
        yield from _check_gpus(config, student, teacher)


def _check_main_memory(
    config: DictConfig, student: Shape, teacher: Shape | None
) -> Iterator[Finding]:
    available = available_memory()
    phase = on_cpu(config, student, teacher)
    if available is None:
        yield note("memory", f"{phase}; what this machine has is not known")
        return
    yield _judge(phase, "memory", available, "available", _shrinking(config))


def _check_gpus(config: DictConfig, student: Shape, teacher: Shape | None) -> Iterator[Finding]:
    gpus = visible_gpus()
    if not gpus:
        yield note("GPU memory", "nvidia-smi lists no GPU, so memory was not compared")
        return
    total, free = min(gpu.total for gpu in gpus), min(gpu.free for gpu in gpus)
    yield from check_engine(config, student, teacher, total)
    judged = [
        _judge(phase, "GPU memory", free, "free on the fullest GPU", _shrinking(config))
        for phase in on_gpu(config, student, teacher, total)
    ]
    yield from judged


def _judge(phase: Phase, where: str, capacity: int, of: str, remedy: str) -> Finding:
    compared = f"{phase} of {shown(capacity)} {of}"
    if phase.certain > capacity:
        return error(where, compared, "it cannot fit", remedy)
    if phase.size > FULL * capacity:
        return warning(where, compared, f"more than {FULL:.0%}: it may not fit", remedy)
    return note(where, compared)


def check_engine(
    config: DictConfig, student: Shape, teacher: Shape | None, total: int
) -> Iterator[Finding]:
    """Whether an engine's share of a GPU holds its weights and the cache of one row."""
    rollout = config.actor_rollout_ref.rollout
    row = config.data.max_prompt_length + config.data.max_response_length
    engines = [
        ("the student", student, rollout.tensor_model_parallel_size, rollout.gpu_memory_utilization)
    ]
    if teacher is not None and config.opdvr.teacher_engine == "vllm":
        settings = teacher_settings(config)
        engines.append(
            ("the teacher", teacher, settings.tensor_parallel, settings.memory_utilization)
        )
    for name, model, parallel, share in engines:
        weights = weight_bytes(config) * model.parameters / parallel
        cache = row * kv_bytes(config, model) / parallel
        if weights + cache > share * total:
            yield error(
                UTILIZATION if share == rollout.gpu_memory_utilization else "TEACHER_DEVICES",
                f"vLLM gets {share:g} of {shown(total)}, but {name}'s weights take "
                f"{shown(weights)} and the cache of one row of {row} tokens {shown(cache)}",
                "vLLM would not start",
                f"raise {UTILIZATION}, or spread it: PARALLEL_SIZE, TEACHER_PARALLEL_SIZE",
            )


def _shrinking(config: DictConfig) -> str:
    """What makes a run smaller, in the order of what it costs."""
    ways = []
    if config.trainer.device != "cpu":
        ways.append("NGPUS_PER_NODE up")
        fsdp = config.actor_rollout_ref.actor.fsdp_config
        ways += [
            f"{ACTOR}.{name}=True"
            for name in ("optimizer_offload", "param_offload")
            if not fsdp[name]
        ]
        ways.append(f"{UTILIZATION} down")
    else:
        ways.append(f"{KV_SPACE} down")
    ways.append("PPO_MAX_TOKEN_LEN_PER_GPU down")
    if not config.actor_rollout_ref.model.lora_rank:
        ways.append("LORA_RANK=16")
    if config.reward_model.enable and config.opdvr.teacher_engine != "server":
        ways.append("TEACHER_ENGINE=server")
    if shares_devices(config):
        ways.append("TEACHER_DEVICES=1")
    return f"in the order of what it costs: {', '.join(ways)}"
