"""The teacher behind one or several running vLLM servers, asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from opdvr.teacher.engines import (
    Done,
    EngineKind,
    Failed,
    Sequence,
    TeacherSettings,
    Wanted,
)

if TYPE_CHECKING:
    from opdvr.teacher.pool import Pool

KIND = EngineKind(
    name="server",
    factory="opdvr.teacher.server:ServerEngine",
    any_temperature=False,
    any_ids=False,
    hidden_states=False,
    entropy=False,
    local_weights=False,
)


class ServerEngine:
    """An `Engine` that computes nothing: an event loop in a thread asks servers."""

    def __init__(self, settings: TeacherSettings, wanted: Wanted, done: Done, failed: Failed):
        """Returns once every teacher has a server that is well.

        Raises:
            TeacherUnavailable: one has none within settings.patience_s.
            WrongAnswer: a server has no model, another than its fellows, or answers wrongly.
            TeacherError: a server refuses the key or what is asked.
            ValueError: the addresses.
        """
        assert wanted.temperature == 1 and not wanted.with_entropy, "refused by the registry"
        self._settings, self._wanted, self._done, self._failed = settings, wanted, done, failed
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="teacher-server", daemon=True)
        self._thread.start()
        self._ready.result()

    def add(self, sequences: list[Sequence]) -> None:
        """Score these; `done` is called from the loop's thread.

        Raises:
            TeacherError: a row's data source has no server.
        """
        for sequence in sequences:
            assert sequence.candidates is None, "refused by the registry"
            self._pool.teacher_of(sequence)
        self._in_the_loop(self._pool.add, sequences)

    def sleep(self) -> None:
        """Nothing: the memory is the servers' own."""

    def wake(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Drop what is under way; no thread, task or connection is left."""
        self._in_the_loop(self._stop.set)
        self._thread.join()

    def _in_the_loop(self, action: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401
        # A closed loop has reported to `failed`, or was closed by hand: nothing is waited for.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action, *arguments)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # the thread's end: whoever waits must hear of it
            if self._ready.done():
                self._failed(error)
            else:
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        from opdvr.teacher.pool import Pool

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._pool: Pool = Pool(self._settings, self._wanted, self._done)
        try:
            await self._pool.start()
            self._ready.set_result(None)
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait({stop, self._pool.failure}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if self._pool.failure.done():
                self._pool.failure.result()
        finally:
            await self._pool.stop()
