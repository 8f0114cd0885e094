"""What verl lacks on a machine without a GPU, as named, idempotent patches, each with its reason.

Loaded inside `import verl` itself in every process (VERL_USE_EXTERNAL_MODULES names this module):
verl is only half imported then, so nothing of verl may be imported at module level.
"""

from __future__ import annotations

import importlib.util
import resource
from collections.abc import Callable

import torch

KIBIBYTE = 1024


def on_cpu() -> bool:
    """Whether this process computes on the CPU (verl decides the same way)."""
    return not torch.cuda.is_available()


def give_torch_cpu_a_device_module() -> None:
    """verl calls these on `torch.<device>`; torch.cpu lacks them."""

    def peak_rss(*_args: object, **_kwargs: object) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE

    missing: dict[str, Callable] = {
        "get_rng_state": lambda *_args, **_kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *_args, **_kwargs: torch.set_rng_state(state),
        "manual_seed": lambda seed: torch.manual_seed(seed),
        "empty_cache": lambda: None,
        "memory_allocated": lambda *_args, **_kwargs: 0,
        "memory_reserved": lambda *_args, **_kwargs: 0,
        "max_memory_allocated": peak_rss,
        "max_memory_reserved": peak_rss,
    }
    for name, function in missing.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


def unpad_without_flash_attn() -> None:
    """verl packs rows with flash-attn's helpers; the pure-torch ones it has are for NPUs only."""
    if importlib.util.find_spec("flash_attn") is not None:
        return
    import verl.utils.attention_utils as attention
    from verl.utils import npu_flash_attn_utils as pure_torch

    attention._get_attention_functions = lambda: (
        pure_torch.index_first_axis,
        pure_torch.pad_input,
        pure_torch.rearrange,
        pure_torch.unpad_input,
    )


def initialise_gloo() -> None:
    """One gloo process group from the environment that verl's worker base has set."""
    import os

    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group(
            backend="gloo",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            init_method=os.environ.get("DIST_INIT_METHOD"),
        )


def use_gloo_and_leave_memory_alone() -> None:
    """In worker processes on CPU: gloo for nccl; no cache emptying (only gc, up to 1 s a call)."""
    if not on_cpu():
        return
    import verl.workers.engine_workers as engine_workers

    engine_workers.initialize_global_process_group_ray = lambda timeout_second=None: (
        initialise_gloo()
    )
    engine_workers.aggressive_empty_cache = lambda *_args, **_kwargs: None


def keep_vllm_weights_loadable() -> None:
    """vLLM on AVX512 prepacks linear weights and drops `layer.weight`: no later sync."""
    if not on_cpu():
        return
    import vllm._custom_ops as custom_ops

    custom_ops._supports_onednn = False


def import_verl_without_the_harmony_vocabulary() -> None:
    """With vLLM 0.12.0 verl fetches a vocabulary at import: unused, and fails without internet."""
    import importlib

    name = "vllm.entrypoints.harmony_utils"
    if importlib.util.find_spec(name) is not None:
        importlib.import_module(name).get_encoding = lambda: None


give_torch_cpu_a_device_module()
