"""Files of JSON lines that survive a kill: whole lines only, appended with one write each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opdvr.integration.checkpoints import write_atomically


class LineWriter:
    """Appends objects; each is handed to the system as one whole line."""

    def __init__(self, path: Path):
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (closed by `close`)

    def append(self, content: dict[str, Any]) -> None:
        """Write one line; a kill loses it, keeps it, or leaves a piece without a line break."""
        data = memoryview(_encoded(content))
        while data:  # a signal may cut a write short
            data = data[self._file.write(data) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def read_lines(path: Path, repair: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of each whole line; none where the file does not exist.

    A last line without its line break is what a kill leaves. It is skipped; with `repair` it is
    moved to a file beside it (``samples.torn.jsonl`` for samples.jsonl) and cut off.

    Raises:
        ValueError: another line holds no JSON object.
    """
    if not path.exists():
        return
    whole_bytes = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                if repair:
                    _set_aside(path, line, whole_bytes)
                return
            whole_bytes += len(line)
            try:
                value = json.loads(line)
            except ValueError as error:
                raise _damaged(path, number, str(error)) from None
            if not isinstance(value, dict):
                raise _damaged(path, number, "no JSON object")
            yield number, value


def _set_aside(path: Path, piece: bytes, whole_bytes: int) -> None:
    with open(path.with_name(f"{path.stem}.torn{path.suffix}"), "ab") as aside:
        aside.write(piece + b"\n")
    os.truncate(path, whole_bytes)


def _damaged(path: Path, number: int, reason: str) -> ValueError:
    return ValueError(
        f"{path}, line {number} is damaged ({reason}); take the line out and run it again"
    )


def write_lines(path: Path, contents: list[dict[str, Any]]) -> None:
    """A whole file at once."""
    text = b"".join(map(_encoded, contents)).decode("utf-8", errors="replace")
    write_atomically(path, text)


def _encoded(content: dict[str, Any]) -> bytes:
    # Gold answers may be of types that JSON lacks (decimals).
    line = json.dumps(content, ensure_ascii=False, default=str) + "\n"
    # A tokenizer may decode half a character; such text still has to be written down.
    return line.encode("utf-8", errors="surrogatepass")
