"""Parent side of the symbolic path: processes, started when first needed, ended when too slow."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe

TIMEOUT_VARIABLE = "OPDVR_VERIFIER_TIMEOUT_S"
WORKERS_VARIABLE = "OPDVR_VERIFIER_WORKERS"
DEFAULT_TIMEOUT_S = 2.0
# Importing sympy takes about a second; a cold file system or a loaded machine may need far more.
STARTUP_LIMIT_S = 120.0
# The worker's own alarm ends it at the limit; the parent steps in only if that failed.
GRACE_S = 0.5

# Not multiprocessing's Process: that runs the parent's main module again in the child (which would
# import torch), and is forbidden inside daemonic processes.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from opdvr.verifier.worker import main; main(int(sys.argv[2]))"
)


class VerifierTimeout(Exception):
    """The symbolic comparison took longer than the limit."""


class VerifierError(Exception):
    """The symbolic comparison failed."""


class WorkerEnded(VerifierError):
    """The worker process ended on its own, for example out of memory."""


class _WorkerGone(Exception):
    """An idle worker turned out to be dead; nothing was asked of it yet."""


class Worker:
    """One process that compares answers, one at a time. Not for use by two threads at once."""

    def __init__(self) -> None:
        self._connection, child = Pipe()
        with child:
            # A session of its own: Ctrl-C reaches the parent, whose end then closes the socket.
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, json.dumps(sys.path), str(child.fileno())],
                pass_fds=[child.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._ready = False

    def ask(self, gold: str, answer: str, timeout_s: float) -> bool:
        """Compare two answers; see `WorkerPool.compare` for the errors."""
        self._wait_until_ready()
        try:
            self._connection.send_bytes(json.dumps([gold, answer, timeout_s]).encode())
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _WorkerGone from error
        if not self._connection.poll(timeout_s + GRACE_S):
            raise VerifierTimeout(f"no verdict within {timeout_s:g} s")
        try:
            verdict = json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionResetError) as error:
            code = self.process.wait()
            if code == -signal.SIGALRM:
                raise VerifierTimeout(f"no verdict within {timeout_s:g} s") from error
            raise WorkerEnded(f"the comparing process ended with code {code}") from error
        if isinstance(verdict, str):
            raise VerifierError(verdict)
        return verdict

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        if self._connection.poll(STARTUP_LIMIT_S):
            try:
                self._connection.recv_bytes()
            except (EOFError, ConnectionResetError) as error:
                raise RuntimeError(
                    f"the verifier's process could not start (code {self.process.wait()}); "
                    "is math-verify installed in this environment?"
                ) from error
            self._ready = True
            return
        self.kill()
        raise RuntimeError(f"the verifier's process did not start within {STARTUP_LIMIT_S:g} s")

    def kill(self) -> None:
        """End the process now, and reap it."""
        self._connection.close()
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Let an idle process end by itself, and reap it."""
        self._connection.close()
        try:
            self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class WorkerPool:
    """Up to `workers` processes, each started when a comparison finds none idle. Thread-safe."""

    def __init__(self, timeout_s: float, workers: int) -> None:
        self.timeout_s = timeout_s
        self.workers = workers
        self._slots = threading.BoundedSemaphore(workers)
        self._idle: list[Worker] = []

    def compare(self, gold: str, answer: str) -> bool:
        """Whether two tidied LaTeX answers are equal.

        Takes `timeout_s` at most once a worker is free; the first call also waits for its start.

        Raises:
            VerifierTimeout: the limit was reached; the worker was ended and its successor started.
            VerifierError: the comparison failed; if it ended the worker, a successor was started.
            RuntimeError: the process cannot start in this environment.
        """
        with self._slots:
            for _ in range(self.workers + 1):
                worker = self._idle.pop() if self._idle else Worker()
                try:
                    verdict = worker.ask(gold, answer, self.timeout_s)
                except _WorkerGone:
                    worker.kill()
                    continue
                except (VerifierTimeout, WorkerEnded):
                    worker.kill()
                    # Its imports then overlap with whatever the caller does next.
                    self._idle.append(Worker())
                    raise
                except VerifierError:
                    self._idle.append(worker)
                    raise
                self._idle.append(worker)
                return verdict
            raise WorkerEnded("the comparing processes end as soon as they are started")

    def process_ids(self) -> list[int]:
        """Ids of the idle workers' processes."""
        return [worker.process.pid for worker in list(self._idle)]

    def close(self) -> None:
        """End the idle workers."""
        while self._idle:
            self._idle.pop().close()

    def forget(self) -> None:
        """Drop the workers without ending them: after a fork they belong to the parent."""
        for worker in self._idle:
            worker.process.returncode = 0
        self._idle.clear()


def _from_environment(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{variable}={text!r}: give a number above 0, or leave it unset")
    return value


def _default_workers() -> int:
    # Scoring shares the machine with rollout and training: a quarter of the cores, eight at most.
    return max(1, min(8, (os.cpu_count() or 1) // 4))


_pool: WorkerPool | None = None
_pool_lock = threading.Lock()


def get_pool() -> WorkerPool:
    """The process's pool, made from the environment unless `configure` made it before."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = WorkerPool(
                _from_environment(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT_S),
                max(1, int(_from_environment(WORKERS_VARIABLE, _default_workers()))),
            )
        return _pool


def configure(timeout_s: float | None = None, workers: int | None = None) -> None:
    """Set the wall limit of one symbolic comparison (seconds) and the number of processes.

    What is left out keeps its value. Call it while no scoring is in progress.

    Raises:
        ValueError: for a limit or a number of workers that is not positive.
    """
    global _pool
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"verifier timeout_s={timeout_s}: must be above 0 seconds")
    if workers is not None and workers < 1:
        raise ValueError(f"verifier workers={workers}: must be at least 1")
    old = get_pool()
    with _pool_lock:
        old.close()
        _pool = WorkerPool(timeout_s or old.timeout_s, workers or old.workers)


def shut_down() -> None:
    """End this process's idle workers; a later comparison starts new ones."""
    if _pool is not None:
        _pool.close()


def _after_fork_in_child() -> None:
    global _pool, _pool_lock
    _pool_lock = threading.Lock()
    if _pool is not None:
        _pool.forget()
        _pool = WorkerPool(_pool.timeout_s, _pool.workers)


atexit.register(shut_down)
os.register_at_fork(after_in_child=_after_fork_in_child)
