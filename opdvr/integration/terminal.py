"""What a person sees: our few lines on the terminal, everything else in the run's log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_terminal: TextIO | None = None
_started = time.monotonic()


def say(line: str) -> None:
    """Print one line to the person at the terminal (and to the log, when output goes there)."""
    print(line, flush=True)
    if _terminal is not None:
        print(line, file=_terminal, flush=True)


def stage(text: str) -> None:
    """Say what a start-up is at, with the seconds since this process began."""
    say(f"[{time.monotonic() - _started:4.0f} s] {text}")


def show_own_warnings() -> None:
    """Write our warnings to this process's stderr: verl leaves the root logger at ERROR."""
    own = logging.getLogger("opdvr")
    if not own.handlers:
        own.addHandler(logging.StreamHandler(sys.stderr))


@contextmanager
def output_in_log(log: Path, to_terminal: bool = True) -> Iterator[None]:
    """Send what Python prints (verl, Ray, its workers) to `log`; `say` reaches the terminal too."""
    global _terminal
    log.parent.mkdir(parents=True, exist_ok=True)
    stdout, stderr = sys.stdout, sys.stderr
    with open(log, "a", encoding="utf-8", buffering=1) as file:
        _terminal = stdout if to_terminal else None
        sys.stdout = sys.stderr = file
        try:
            yield
        finally:
            sys.stdout, sys.stderr = stdout, stderr
            _terminal = None
