"""The inference server's process, started before verl asks for it: its imports overlap others'.

This module stays light: the driver imports it right after Ray is up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

# What verl and our rollout call on a server actor.
SERVER_METHODS = (
    "get_master_address",
    "get_server_address",
    "launch_server",
    "generate",
    "generate_batch",
    "hand_responses_to",
    "wake_up",
    "sleep",
    "wait_for_requests_to_drain",
    "clear_kv_cache",
    "abort_all_requests",
    "abort_request",
)


class EarlyServer:
    """Imports vLLM at once; becomes a `BatchServer` when `become` brings verl's arguments."""

    def __init__(self) -> None:
        from opdvr.integration.vllm_server import BatchServer

        self._server_class = BatchServer
        self._server: Any = None

    async def become(self, **arguments: Any) -> None:  # noqa: ANN401
        """Construct the server."""
        self._server = self._server_class(**arguments)


def _forward(name: str) -> Callable:
    async def method(self: EarlyServer, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        result = getattr(self._server, name)(*args, **kwargs)
        return await result if hasattr(result, "__await__") else result

    method.__name__ = name
    return method


for _name in SERVER_METHODS:
    setattr(EarlyServer, _name, _forward(_name))

_waiting: list[Any] = []


def start(count: int) -> None:
    """Start `count` server processes now; they cost nothing if never claimed."""
    actor_class = ray.remote(num_cpus=0)(EarlyServer)
    _waiting.extend(actor_class.remote() for _ in range(count))


class ServerClass:
    """Where verl expects a Ray actor class: `.options(...).remote(...)` claims a waiting one."""

    def __init__(self, actor_class: Any):  # noqa: ANN401
        self._actor_class = actor_class

    def options(self, **options: Any) -> ServerClass:  # noqa: ANN401
        """Placement only matters for a server not started yet."""
        return self if _waiting else ServerClass(self._actor_class.options(**options))

    def remote(self, **arguments: Any) -> Any:  # noqa: ANN401
        """A server actor's handle, constructed with verl's arguments."""
        if not _waiting:
            return self._actor_class.remote(**arguments)
        actor = _waiting.pop(0)
        ray.get(actor.become.remote(**arguments))
        return actor
