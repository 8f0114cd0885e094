"""Keeps what vLLM, Ray and their libraries print out of the user's terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def output_in(log: Path) -> Iterator[TextIO]:
    """Send stdout and stderr of this process and its children to `log`, also what C code prints.

    Yields:
        A stream to what stderr was.
    """
    _flush()
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
        try:
            _flush()
        except OSError:
            # The disk of the log is full. What is left must not come out in the terminal later.
            _into_nothing(kept)
            _flush()
        for descriptor, original in kept.items():
            os.dup2(original, descriptor)
            os.close(original)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _into_nothing(descriptors: Iterable[int]) -> None:
    with open(os.devnull, "wb") as nothing:
        for descriptor in descriptors:
            os.dup2(nothing.fileno(), descriptor)
