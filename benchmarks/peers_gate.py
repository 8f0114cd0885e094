"""A side's end of the `peers` benchmark: it does one step when told to, and says what it did.

A side is a process. It writes one line of JSON when it is ready for its first step and one after
every step; the benchmark writes `step` or closes the pipe. Needs the standard library alone, since
it also runs in the peer's environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence

STEP = "step"


class Stopped(KeyboardInterrupt):
    """No more steps are wanted; a training loop ends as it does when someone interrupts it."""


class Gate:
    """Holds a training loop until the next step is wanted.

    Takes stdout over for its lines, so that what libraries print goes to stderr.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def wait(self, report: dict) -> None:
        """Say that the last step is done, and what it did; return when the next one is wanted.

        Raises:
            Stopped: the benchmark has seen enough.
        """
        print(json.dumps(report), file=self._lines, flush=True)
        if sys.stdin.readline().strip() != STEP:
            raise Stopped


def digest(prompts: Iterable[Sequence[int]]) -> str:
    """A fingerprint of prompts as token ids, whatever their order and how often each appears."""
    different = sorted({tuple(map(int, prompt)) for prompt in prompts})
    return hashlib.sha256(json.dumps(different).encode()).hexdigest()
