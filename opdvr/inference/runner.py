"""Runs requests through one engine here or several in Ray actors, each kept busy to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

from opdvr.inference.engine import Engine
from opdvr.inference.requests import Completion, EngineSettings, Request, Sampling

# How long an engine works between two looks: short, so that finished completions reach the disk
# soon and no engine runs dry; long against a call over Ray (milliseconds).
ADVANCE_S = 0.5
# Requests an engine holds beyond those it works on, so that a free place is filled at once.
SPARE = 1.25


def generate(
    settings: EngineSettings,
    sampling: Sampling,
    requests: Iterable[Request],
    engines: int = 1,
    apart: bool = False,
    ready: Callable[[], None] | None = None,
) -> Iterator[Completion]:
    """Sample a completion for each request, and yield each as it finishes, in no fixed order.

    Args:
        settings: the model and how it is loaded.
        sampling: temperature and filters, the same for all.
        requests: read as far as the engines can take them on. An iterator that may have more
            later: after it had none it is asked again whenever completions have been yielded, so
            that it can answer these with further requests. It is at its end when it has none and
            no engine is at work.
        engines: copies of the model, each on GPUs of its own (on the CPU they share the cores).
        apart: run a single engine in a process of its own too, so that its memory is free again
            when the iterator ends.
        ready: called once all engines have loaded the model.

    Raises:
        ValueError: fewer GPUs than the engines need.
        RuntimeError: an engine failed.
    """
    with _engines(settings, sampling, engines, apart) as pool:
        if ready is not None:
            ready()
        yield from _drive(pool, iter(requests), int(settings.max_num_seqs * SPARE))


def _engines(
    settings: EngineSettings, sampling: Sampling, engines: int, apart: bool
) -> AbstractContextManager[Any]:
    if engines == 1 and not apart:
        return nullcontext(_Here(Engine(settings, sampling)))
    from opdvr.inference.ray_engines import ray_engines

    return ray_engines(settings, sampling, engines)


class _Here:
    """A single engine in this process, behind the interface of the pool of Ray actors."""

    def __init__(self, engine: Engine):
        self.names = [0]
        self._engine = engine
        self._requests: list[Request] = []

    def start(self, name: int, requests: list[Request]) -> None:
        self._requests = requests

    def wait(self) -> tuple[int, list[Completion]]:
        return 0, self._engine.advance(self._requests, ADVANCE_S)


def _drive(pool: Any, requests: Iterator[Request], capacity: int) -> Iterator[Completion]:  # noqa: ANN401
    """Top every engine up to `capacity` requests whenever it reports, until none is left.

    What it has finished is yielded first: `requests` may then have more, for idle engines too.
    """
    held = dict.fromkeys(pool.names, 0)
    working: set[Any] = set()

    def top_up(idle: list[Any]) -> None:
        room = {name: capacity - held[name] for name in idle}
        for name, more in _deal(requests, room).items():
            held[name] += len(more)
            if held[name]:
                pool.start(name, more)
                working.add(name)

    top_up(list(pool.names))
    while working:
        name, completions = pool.wait()
        working.discard(name)
        held[name] -= len(completions)
        yield from completions
        top_up([name for name in pool.names if name not in working])


def _deal(requests: Iterator[Request], room: dict[Any, int]) -> dict[Any, list[Request]]:
    """As many requests as there is room for, to the engines with the most room left first.

    So few requests are dealt out evenly: one engine would take them all.
    """
    dealt: dict[Any, list[Request]] = {name: [] for name in room}
    for request in islice(requests, sum(room.values())):
        name = max(room, key=lambda name: room[name] - len(dealt[name]))
        dealt[name].append(request)
    return dealt
