"""What a run holds in memory at once, from sizes and options (docs/preflight.md has the formulas).

Weights, gradients, optimizer and the inference engine's share are certain. Activations and what a
process takes are rough, and marked so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from opdvr.integration.preflight.configuration import count_devices
from opdvr.integration.preflight.devices import GIB, shown
from opdvr.integration.preflight.weights import DTYPE_BYTES, Shape

KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
FLOAT32 = 4
ADAM_MOMENTS = 2
# FSDP gathers the next layer while it computes one.
_GATHERED_LAYERS = 2
# A Python process that has imported torch, verl and vLLM; measured on the embedded task.
_PROCESS = 0.8 * GIB
# Besides workers and engines: the trainer, and the server in front of the engine.
_OTHER_PROCESSES = 2
# A block of vLLM's cache on the CPU, where a run sets the number of blocks.
_CPU_BLOCK_TOKENS = 128


@dataclass(frozen=True)
class Part:
    """What takes memory, in bytes; `rough` where it depends on more than sizes."""

    name: str
    size: float
    rough: bool = False


@dataclass(frozen=True)
class Phase:
    """What is held at the same time."""

    name: str
    parts: tuple[Part, ...]

    @property
    def certain(self) -> float:
        """Bytes that are needed whatever the rows look like."""
        return sum(part.size for part in self.parts if not part.rough)

    @property
    def size(self) -> float:
        """Bytes, the rough parts included."""
        return sum(part.size for part in self.parts)

    def __str__(self) -> str:
        parts = [
            f"{part.name} {'about ' * part.rough}{shown(part.size)}"
            for part in self.parts
            if part.size
        ]
        return f"{self.name} {shown(self.size)} ({', '.join(parts)})"


def on_gpu(
    config: DictConfig, student: Shape, teacher: Shape | None, total: int
) -> tuple[Phase, Phase]:
    """What one GPU holds while sampling, and while training.

    Args:
        config, student, teacher: as for `check_memory`.
        total: bytes of the smallest GPU, of which the inference engine takes its share.
    """
    ranks = count_devices(config)
    state = _training_state(config, student, ranks)
    gathered = _GATHERED_LAYERS * student.largest_layer * _compute_bytes(config)
    fsdp, rollout = config.actor_rollout_ref.actor.fsdp_config, config.actor_rollout_ref.rollout
    teacher_part = Part("teacher", _teacher_beside(config, teacher, ranks))
    engine = Part("inference engine", rollout.gpu_memory_utilization * total)
    waiting = [
        part
        for part, offloaded in (
            (state["weights"], fsdp.param_offload or fsdp.offload_policy),
            (state["optimizer"], fsdp.optimizer_offload or fsdp.offload_policy),
        )
        if not offloaded
    ]
    training = [] if fsdp.offload_policy else list(state.values())
    awake = () if rollout.free_cache_engine else (engine,)
    return (
        Phase("while sampling", (*waiting, teacher_part, engine)),
        Phase(
            "while training",
            (
                *training,
                teacher_part,
                *awake,
                Part("gathered layers", gathered, rough=True),
                _activations(config, student),
            ),
        ),
    )


def on_cpu(config: DictConfig, student: Shape, teacher: Shape | None) -> Phase:
    """What all processes of a run without a GPU hold together, in main memory."""
    workers = count_devices(config)
    rollout = config.actor_rollout_ref.rollout
    replicas = max(workers // rollout.tensor_model_parallel_size, 1)
    engines = config.opdvr.teacher_devices or 1
    copies = engines if config.opdvr.teacher_engine == "vllm" else 1
    activations = _activations(config, student)
    # With LoRA the student without its adapter is the reference.
    has_reference = config.opdvr.use_kl and not config.actor_rollout_ref.model.lora_rank
    reference = FLOAT32 * student.parameters if has_reference else 0
    cache = kv_cache_on_cpu(config, student)
    teacher_size = copies * weight_bytes(config) * teacher.parameters if teacher else 0
    return Phase(
        "estimated",
        (
            *_training_state(config, student, ranks=1).values(),
            Part("reference", reference),
            Part("teacher", teacher_size),
            Part("rollout's copy", replicas * weight_bytes(config) * student.parameters),
            Part("cache", replicas * cache),
            Part("activations", workers * activations.size, rough=True),
            Part("processes", (workers + replicas + _OTHER_PROCESSES) * _PROCESS, rough=True),
        ),
    )


def kv_cache_on_cpu(config: DictConfig, student: Shape) -> float:
    """Bytes of one engine's cache: its blocks where their number is set, else the whole space."""
    engine = config.actor_rollout_ref.rollout.engine_kwargs.get("vllm") or {}
    blocks = engine.get("num_gpu_blocks_override")
    if blocks:
        return blocks * _CPU_BLOCK_TOKENS * kv_bytes(config, student)
    variables = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
    return float(os.environ.get(KV_SPACE) or variables.get(KV_SPACE) or 0) * GIB


def kv_bytes(config: DictConfig, model: Shape) -> int:
    """Bytes that one token takes in an inference engine's cache: keys and values of every layer."""
    return 2 * model.layers * model.kv_width * weight_bytes(config)


def _training_state(config: DictConfig, student: Shape, ranks: int) -> dict[str, Part]:
    """Float32 weights, gradients and AdamW moments, sharded over the ranks."""
    weights, trained = student.parameters, trained_parameters(config, student)
    adapter = trained if config.actor_rollout_ref.model.lora_rank else 0
    return {
        "weights": Part("weights", FLOAT32 * (weights + adapter) / ranks),
        "gradients": Part("gradients", FLOAT32 * trained / ranks),
        "optimizer": Part("optimizer", ADAM_MOMENTS * FLOAT32 * trained / ranks),
    }


def trained_parameters(config: DictConfig, student: Shape) -> int:
    """All of them, or what LoRA adds to every weight matrix of the layers."""
    rank = config.actor_rollout_ref.model.lora_rank
    return rank * student.matrices if rank else student.parameters


def _teacher_beside(config: DictConfig, teacher: Shape | None, ranks: int) -> float:
    """Bytes of the teacher's shard on a GPU of the student's."""
    own_pool = config.reward_model.enable_resource_pool
    if teacher is None or config.opdvr.teacher_engine != "fsdp" or own_pool:
        return 0
    offloaded = config.reward_model.model.fsdp_config.param_offload
    return 0 if offloaded else weight_bytes(config) * teacher.parameters / ranks


def _activations(config: DictConfig, student: Shape) -> Part:
    """One micro-batch: the inputs of all layers and the inside of one; without gradient
    checkpointing the inside of all.
    """
    tokens = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    # Norms, queries, keys, values, attention and its projection; gate, up, their product.
    inside = 10 * student.hidden + 4 * student.intermediate
    checkpointed = config.actor_rollout_ref.model.enable_gradient_checkpointing
    elements = student.layers * (student.hidden if checkpointed else inside)
    elements += inside if checkpointed else 0
    return Part("activations", tokens * elements * _compute_bytes(config), rough=True)


def _compute_bytes(config: DictConfig) -> int:
    return DTYPE_BYTES[config.opdvr.model_dtype]


def weight_bytes(config: DictConfig) -> int:
    """Of a parameter of the teacher, and of the rollout's copy."""
    return DTYPE_BYTES[config.opdvr.model_dtype]
