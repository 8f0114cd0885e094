"""Many servers, some of them ill: work goes to those that are well, and arrives once."""

from __future__ import annotations

import asyncio
import time
from asyncio import Task
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

from opdvr.teacher.addresses import Address, read_addresses
from opdvr.teacher.client import Busy, Client, Unreachable, new_session
from opdvr.teacher.engines import (
    Done,
    Sequence,
    TeacherError,
    TeacherSettings,
    TeacherUnavailable,
    Wanted,
    announce,
)
from opdvr.teacher.pool_state import Job, Server, Teacher
from opdvr.teacher.scorer import Scorer

# A sequence that fails this often, on servers that are well otherwise, is what makes them fail.
MOST_FAILURES = 6
# Threads that parse answers. One parses some 30,000 tokens a second with their 64 most probable.
_PARSERS = 2
_LONGEST_WATCH_S = 1.0
# So long the start waits for all servers; then those that are there suffice.
_GRACE_S = 5.0


class Pool:
    """All teachers and servers, inside one event loop; `failure` is set when it gives up."""

    def __init__(self, settings: TeacherSettings, wanted: Wanted, done: Done):
        self._settings, self._done = settings, done
        loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(self._unhandled)
        self._addresses = read_addresses(settings.urls)
        self._session = new_session()
        self._parsers = ThreadPoolExecutor(_PARSERS, thread_name_prefix="teacher-parse")
        self._tasks: set[Task] = set()
        self._closed = False
        self._servers: dict[Address, Server] = {}
        self._teachers: dict[str, Teacher] = {}
        for source, addresses in self._addresses.by_source.items():
            servers = [self._server(address, wanted) for address in addresses]
            self._teachers[source] = Teacher(source, servers)

    def _server(self, address: Address, wanted: Wanted) -> Server:
        if address not in self._servers:
            key, timeout_s = self._settings.api_key, self._settings.timeout_s
            client = Client(self._session, address, key, timeout_s)
            scorer = Scorer(client, self._settings, wanted, self._parsers)
            self._servers[address] = Server(scorer, limit=self._settings.max_in_flight)
        return self._servers[address]

    async def start(self) -> None:
        """Returns once every teacher has a server that is well; the others are tried on.

        Raises:
            TeacherUnavailable: none after settings.patience_s.
            WrongAnswer, TeacherError: a server answers wrongly or refuses.
        """
        now = time.monotonic()
        for server in self._servers.values():
            server.lost_at = now
        for teacher in self._teachers.values():
            teacher.all_down_since = now
        for server in self._servers.values():
            self._spawn(self._begin, server)
        tried = [asyncio.ensure_future(server.tried.wait()) for server in self._servers.values()]
        await asyncio.wait(tried, timeout=_GRACE_S)  # one that hangs holds up no other
        for waiting in tried:
            waiting.cancel()
        if self.failure.done():
            self.failure.result()
        while not all(any(s.up for s in t.servers) for t in self._teachers.values()):
            if self.failure.done():
                self.failure.result()
            for teacher in self._teachers.values():
                self._require_patience(teacher)
            await asyncio.sleep(self._watch_s())
        self._spawn(self._watch)

    async def _begin(self, server: Server) -> None:
        try:
            well = await self._try(server)
        finally:
            server.tried.set()
        if not well:
            announce(f"{server.address} is not there ({server.reason}); trying on")
            await self._recover(server)

    async def stop(self) -> None:
        """Drop all work; nothing of this pool runs on."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()
        self._parsers.shutdown(wait=False, cancel_futures=True)
        self.failure.cancel()

    def teacher_of(self, sequence: Sequence) -> str:
        """Which teacher a sequence is for (from any thread).

        Raises:
            TeacherError: none.
        """
        try:
            return self._addresses.teacher_of(sequence.source)
        except ValueError as error:
            raise TeacherError(f"{sequence.name}: {error}") from None

    def add(self, sequences: list[Sequence]) -> None:
        """Take on work, in the loop's thread."""
        now = time.monotonic()
        for sequence in sequences:
            teacher = self._teachers[self.teacher_of(sequence)]
            if not teacher.pending:
                teacher.pending_since = now
            teacher.pending += 1
            teacher.waiting.append(Job(sequence))
        self._dispatch()

    def _dispatch(self) -> None:
        """Give waiting work to the least loaded servers that are well."""
        if self._closed or self.failure.done():
            return
        now = time.monotonic()
        for teacher in self._teachers.values():
            while teacher.waiting:
                free = [s for s in teacher.servers if self._takes_work(s, now)]
                if not free:
                    break
                server = min(free, key=lambda s: len(s.under_way))
                job = teacher.waiting.popleft()
                task = self._spawn(self._work, server, teacher, job)
                server.under_way[task] = (teacher, job)

    def _takes_work(self, server: Server, now: float) -> bool:
        room = len(server.under_way) < int(server.limit)
        return server.up and room and now >= server.not_before

    async def _work(self, server: Server, teacher: Teacher, job: Job) -> None:
        task = asyncio.current_task()
        scores, failure = None, None
        try:
            scores = await server.scorer.score(job.sequence)
        except (Unreachable, Busy) as error:
            failure = error
        finally:
            # Work that was moved meanwhile is not here any more, and this task is cancelled.
            mine = server.under_way.pop(task, None) is not None
        if not mine:
            return
        if scores is not None:
            server.take_more(self._settings.max_in_flight)
            teacher.pending -= 1
            teacher.last_success = time.monotonic()
            self._done(job.sequence.key, scores)
        else:
            teacher.waiting.appendleft(job)
            self._blame(server, job, failure)
        self._dispatch()

    def _blame(self, server: Server, job: Job, failure: Unreachable | Busy) -> None:
        if isinstance(failure, Busy):
            self._slow_down(server, failure)
            return
        job.failures += failure.reached
        if job.failures >= MOST_FAILURES:
            raise TeacherUnavailable(
                f"{job.sequence.name} failed {job.failures} times, last at {server.address}: "
                f"{failure}; see that server's own log"
            )
        self._lose(server, failure)

    def _slow_down(self, server: Server, failure: Busy) -> None:
        """Fewer requests at once; of a storm of refusals the first one counts."""
        now = time.monotonic()
        if now < server.not_before:
            return
        if server.reason != str(failure):
            announce(f"{server.address}: {failure}; sending fewer at once")
        server.reason = str(failure)
        wait = server.take_fewer(now, min(failure.retry_after_s, self._settings.patience_s))
        asyncio.get_running_loop().call_later(wait + 0.001, self._dispatch)

    def _lose(self, server: Server, failure: Unreachable) -> None:
        """Set a server aside until it is well again; the first of its failures to arrive does."""
        if not server.up:
            return
        now = time.monotonic()
        server.up, server.lost_at, server.reason, server.moved = False, now, str(failure), 1
        for teacher in self._teachers.values():
            if server in teacher.servers and not any(other.up for other in teacher.servers):
                teacher.all_down_since = now
        if failure.dropped:
            self._move_work(server)
        announce(
            f"{server.address} lost ({server.reason}); {server.moved} of its requests wait for "
            "another server or its return"
        )
        self._spawn(self._recover, server)

    def _move_work(self, server: Server) -> None:
        """Put back all that a server has under way, and forget what may still come of it."""
        for task, (teacher, job) in server.under_way.items():
            teacher.waiting.appendleft(job)
            task.cancel()
        server.moved += len(server.under_way)
        server.under_way.clear()
        self._dispatch()

    async def _recover(self, server: Server) -> None:
        while True:
            await asyncio.sleep(server.next_wait_s())
            if await self._try(server):
                break
            self._move_work(server)
        away = time.monotonic() - server.lost_at
        announce(f"{server.address} back after {away:.1f} s, {server.moved} requests were moved")
        self._dispatch()

    async def _try(self, server: Server) -> bool:
        """Whether the server is well and has the model that it had, and that its teachers have."""
        try:
            await server.scorer.meet()
        except (Unreachable, Busy) as error:
            server.reason = str(error)
            return False
        for teacher in self._teachers.values():
            if server in teacher.servers:
                for other in teacher.servers:
                    if other is not server and other.scorer.probe is not None:
                        server.scorer.require_same(other.scorer)
        server.up = True
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._watch_s())
            for teacher in self._teachers.values():
                if teacher.pending:
                    self._require_patience(teacher)

    def _watch_s(self) -> float:
        return min(_LONGEST_WATCH_S, max(0.02, self._settings.patience_s / 20))

    def _require_patience(self, teacher: Teacher) -> None:
        """Give up where all servers are down for too long, or none of them gets anything done."""
        now, patience = time.monotonic(), self._settings.patience_s
        waited = now - max(teacher.last_success, teacher.pending_since, teacher.all_down_since)
        stuck = now - max(teacher.last_success, teacher.pending_since)
        down = not any(server.up for server in teacher.servers)
        if down and waited >= patience:
            what = f"no server of {teacher} for {waited:.0f} s"
        elif teacher.pending and stuck >= patience + self._settings.timeout_s:
            what = f"no scores from {teacher} for {stuck:.0f} s"
        else:
            return
        states = ", ".join(f"{s.address} ({s.reason})" for s in teacher.servers)
        raise TeacherUnavailable(
            f"{what}: {states}. TEACHER_PATIENCE (opdvr.teacher_patience) is {patience:g} s; "
            "start a server of TEACHER_URLS again"
        )

    def _spawn(self, work: Callable[..., Coroutine], *arguments: Server | Teacher | Job) -> Task:
        """A task whose failure is the pool's."""
        task = asyncio.get_running_loop().create_task(self._guard(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(
        self, work: Callable[..., Coroutine], *arguments: Server | Teacher | Job
    ) -> None:
        try:
            await work(*arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # of a task, nobody would hear otherwise
            self._give_up(error)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict) -> None:
        loop.default_exception_handler(context)
        if "handle" in context and "exception" in context:  # a callback, so one of ours
            self._give_up(context["exception"])

    def _give_up(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)
