"""Hands finished responses to the teacher's engines while others are still being generated."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import numpy as np
import ray

from opdvr.teacher.engines import Sequence

# Responses that finish within this time travel together: a call costs more than a response.
_TOGETHER_S = 0.02
# Tensors of a batch, [B] int64: a handed-over response's key, and the engine that has it.
TEACHER_KEYS, TEACHER_PLACES = "teacher_keys", "teacher_places"
NOWHERE = -1  # place of a response that no engine has taken on
_KEY_BITS = 62  # keys are int64 tensors later


class TeacherFeed:
    """What one batch of a rollout server has handed over, to which engine.

    services: Ray handles of `ScoringService`; a response's place is an index into them.
    """

    def __init__(self, services: list[Any]):
        self._services = services
        # Another server starts with another engine, and where one was idle the next begins.
        self._tokens = np.zeros(len(services), dtype=np.int64)
        self._turn = secrets.randbelow(len(services))
        self._waiting: list[Sequence] = []
        self._places: dict[int, int] = {}
        self._calls: dict[int, list[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, prompt: list[int], response: list[int], source: str, name: str) -> int:
        """Take a finished response on its way; returns its key."""
        sequence = Sequence(
            key=secrets.randbits(_KEY_BITS),
            token_ids=np.array([*prompt, *response], dtype=np.int32),
            response_start=len(prompt),
            source=source,
            name=name,
        )
        self._waiting.append(sequence)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TOGETHER_S, self._send)
        return sequence.key

    def _send(self) -> None:
        """To the engine that got the fewest tokens of this batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        order = np.roll(np.arange(len(self._services)), -self._turn)
        place = int(order[self._tokens[order].argmin()])
        self._tokens[place] += sum(len(sequence.token_ids) for sequence in self._waiting)
        call = self._services[place].submit.remote(self._waiting)
        self._calls.setdefault(place, []).append(call)
        self._places.update((sequence.key, place) for sequence in self._waiting)
        self._waiting = []

    async def places(self, keys: list[int]) -> np.ndarray:
        """Where each key went, [len(keys)] int64; NOWHERE if that engine is gone or has failed.

        Why it failed comes out when the trainer asks it for scores.
        """
        self._send()
        lost = set()
        for place, calls in self._calls.items():
            answers = await asyncio.gather(*calls, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, ray.exceptions.RayError):
                    lost.add(place)
                elif isinstance(answer, BaseException):
                    raise answer
        places = np.array([self._places[key] for key in keys], dtype=np.int64)
        places[np.isin(places, list(lost))] = NOWHERE
        return places
