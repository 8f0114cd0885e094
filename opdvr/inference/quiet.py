"""Keeps what vLLM, Ray and their libraries print out of the user's terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def output_in(log: Path) -> Iterator[TextIO]:
    """Send stdout and stderr of this process and its children to `log`, also what C code prints.

    Yields:
        A stream to what stderr was.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    try:
        with (
            open(os.dup(kept[2]), "w", encoding="utf-8", errors="replace") as terminal,
            open(log, "ab") as file,
        ):
            for descriptor in kept:
                os.dup2(file.fileno(), descriptor)
            yield terminal
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, original in kept.items():
            os.dup2(original, descriptor)
            os.close(original)
