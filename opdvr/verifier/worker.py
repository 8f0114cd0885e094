"""The process that runs math-verify, so that it can be limited in time and memory and be ended.

Started by `opdvr.verifier.pool` as a plain subprocess: it imports math-verify and nothing heavy,
talks over one socket, and ends when that socket closes. Symbolic mathematics can run for ever in C
code or in a huge integer power, where no exception reaches; so the kernel ends the process (SIGALRM
with its default action), whether or not the parent is still there to do it.
"""

import json
import logging
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

# A power tower that starts to materialise could take the machine's memory before its time is up:
# what comparisons may take on top of what the imports have taken.
MEMORY_LIMIT_BYTES = 1 << 30

# What symbolic code raises on input that it was not made for. Anything else ends the process, which
# the parent counts as an error all the same.
_MATH_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)


def serve(connection: Connection) -> None:
    """Answer requests ``[gold, answer, timeout_s]`` with true, false or the text of a failure.

    Raises:
        EOFError, BrokenPipeError, ConnectionResetError: the parent closed its end.
    """
    # Imported here, after main() has silenced the log.
    from opdvr.verifier.symbolic import equal

    _limit_memory()
    connection.send_bytes(b"ready")
    while True:
        gold, answer, timeout_s = json.loads(connection.recv_bytes())
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            verdict: bool | str = equal(gold, answer)
        except _MATH_FAILURES as failure:
            verdict = f"{type(failure).__name__}: {str(failure)[:200]}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(verdict).encode())


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_LIMIT_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def main(file_descriptor: int) -> None:
    """Set the limits and serve on an inherited socket."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever a parser prints belongs beside the log, not into the parent's standard output.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # math-verify warns that its own timeout is off; here that is the intention.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    try:
        serve(Connection(file_descriptor))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is done, or gone
