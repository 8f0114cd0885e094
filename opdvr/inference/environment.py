"""What vLLM reads from the environment, set before it is imported; what was set by hand wins."""

from __future__ import annotations

import os

from opdvr.inference.requests import EngineSettings


def variables(settings: EngineSettings, engines: int = 1) -> dict[str, str]:
    """Environment for a process that runs one of `engines` engines on this machine."""
    found = {
        # The engine lives in its own caller's process: no child is left when that is killed.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if settings.device == "cpu":
        found |= {
            "CUDA_VISIBLE_DEVICES": "",
            "VLLM_CPU_KVCACHE_SPACE": str(settings.cpu_cache_gib),
            # Binding would put every engine, and whatever else runs, onto the same cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(max(1, usable_cores() // engines)),
            # Small kernels would be compiled for up to 20 s, for nothing measurable.
            "TORCHDYNAMO_DISABLE": "1",
        }
    return found


def set_variables(settings: EngineSettings, engines: int = 1) -> None:
    """Set `variables` in this process, where they are not set yet."""
    for name, value in variables(settings, engines).items():
        os.environ.setdefault(name, value)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
