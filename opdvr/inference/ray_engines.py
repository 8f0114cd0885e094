"""Engines as Ray actors, on a private Ray or on the cluster at RAY_ADDRESS."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from opdvr.inference.engine import Engine
from opdvr.inference.environment import variables
from opdvr.inference.requests import Completion, EngineSettings, Request, Sampling
from opdvr.inference.runner import ADVANCE_S
from opdvr.integration.launch import LONGEST_TEMP_DIR, use_short_temp_dir

_PACKAGE_PARENT = Path(__file__).parents[2]
# What a worker needs to find models as this process does.
_PASSED_ON = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@contextmanager
def ray_engines(settings: EngineSettings, sampling: Sampling, engines: int) -> Iterator[RayEngines]:
    """Actors with a loaded model each, ended together with the Ray that was started for them.

    Raises:
        ValueError: Ray sees fewer GPUs than `engines` times `tensor_parallel`.
    """
    start_ray(settings, engines)
    try:
        yield RayEngines(settings, sampling, engines)
    finally:
        ray.shutdown()


def start_ray(settings: EngineSettings, engines: int) -> None:
    """Join RAY_ADDRESS, or start a Ray that ends with this process."""
    environment = variables(settings, engines)
    path = os.pathsep.join(filter(None, (str(_PACKAGE_PARENT), os.environ.get("PYTHONPATH"))))
    environment["PYTHONPATH"] = path
    environment |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment |= {name: os.environ[name] for name in environment if name in os.environ}
    environment["PYTHONPATH"] = path
    if settings.device == "cuda":
        # Which GPUs an actor sees is for Ray to say.
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    runtime: dict[str, Any] = {"env_vars": environment}
    quoted = shlex.quote(sys.executable)
    if quoted != sys.executable:  # Ray puts it unquoted into a shell command
        runtime["py_executable"] = quoted
    options: dict[str, Any] = {"runtime_env": runtime}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(**options)
    else:
        if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TEMP_DIR:
            use_short_temp_dir()
        # On the CPU this is bookkeeping, but Ray starts that many processes in advance.
        options |= {"num_cpus": engines, "include_dashboard": False}
        ray.init(address="local", **options)
    if settings.device == "cuda":
        _check_gpus(int(ray.cluster_resources().get("GPU", 0)), settings, engines)


def _check_gpus(found: int, settings: EngineSettings, engines: int) -> None:
    needed = engines * settings.tensor_parallel
    if found < needed:
        ray.shutdown()
        raise ValueError(
            f"--engines {engines} with --tensor-parallel {settings.tensor_parallel} needs {needed} "
            f"GPUs, and Ray sees {found}; lower one of the two"
        )


class RayEngines:
    """The pool's interface over actors: at most one call under way in each."""

    def __init__(self, settings: EngineSettings, sampling: Sampling, engines: int):
        gpus = settings.tensor_parallel if settings.device == "cuda" else 0
        actor_class = ray.remote(num_cpus=1, num_gpus=gpus)(Engine)
        self.names = list(range(engines))
        self._actors = [actor_class.remote(settings, sampling, engines) for _ in self.names]
        ray.get([actor.__ray_ready__.remote() for actor in self._actors])
        self._calls: dict[ray.ObjectRef, int] = {}

    def start(self, name: int, requests: list[Request]) -> None:
        """Hand `requests` to an engine and let it work for a while."""
        call = self._actors[name].advance.remote(requests, ADVANCE_S)
        self._calls[call] = name

    def wait(self) -> tuple[int, list[Completion]]:
        """The next engine that reports, and what it has finished."""
        ready, _ = ray.wait(list(self._calls), num_returns=1)
        return self._calls.pop(ready[0]), ray.get(ready[0])
