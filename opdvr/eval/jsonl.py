"""Files of JSON lines that survive a kill: whole lines only, appended with one write each."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opdvr.integration.checkpoints import write_atomically

FREE_SPACE = "free space (or make it writable) and run the same command again"


class Unwritable(Exception):
    """A file cannot be written: one line with the remedy."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around whatever writes `path`.

    Raises:
        Unwritable: the disk is full, the folder is read-only, and the like.
    """
    try:
        yield
    except OSError as error:
        raise Unwritable(
            f"{path} cannot be written ({error.strerror or error}); {FREE_SPACE}"
        ) from error


class LineWriter:
    """Appends objects, each handed to the system as one whole line; raises `Unwritable`."""

    def __init__(self, path: Path):
        self._path = path
        with writing(path):
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (closed by `close`)

    def append(self, content: dict[str, Any]) -> None:
        """Write one line; a kill loses it, keeps it, or leaves a piece without a line break."""
        data = memoryview(_encoded(content))
        with writing(self._path):
            while data:  # a signal, or the last free block, may cut a write short
                data = data[self._file.write(data) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


# What to do about a damaged line of a file to which lines are added.
TAKE_OUT = "take the line out and run it again"


def read_lines(
    path: Path, repair: bool = False, remedy: str = TAKE_OUT
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of each whole line; none where the file does not exist.

    A last line without its line break is what a kill leaves. It is skipped; with `repair` it is
    moved to a file beside it (``samples.torn.jsonl`` for samples.jsonl) and cut off. `remedy` is
    what a message says to do about another damaged line.

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
                raise damaged(path, number, str(error), remedy) from None
            if not isinstance(value, dict):
                raise damaged(path, number, "no JSON object", remedy)
            yield number, value


def _set_aside(path: Path, piece: bytes, whole_bytes: int) -> None:
    aside = path.with_name(f"{path.stem}.torn{path.suffix}")
    with writing(aside), open(aside, "ab") as file:
        file.write(piece + b"\n")
    with writing(path):
        os.truncate(path, whole_bytes)


def damaged(path: Path, number: int, reason: str, remedy: str = TAKE_OUT) -> ValueError:
    """The error that names a damaged line."""
    return ValueError(f"{path}, line {number} is damaged ({reason}); {remedy}")


def read_object(path: Path, wanted: Collection[str], remedy: str) -> dict[str, Any]:
    """The JSON object that a whole file holds.

    Args:
        path: a file that exists.
        wanted: keys that it must have.
        remedy: what to do about a damaged one, for the message.

    Raises:
        ValueError: it holds no JSON object, or one without a wanted key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}, line {error.lineno} is damaged ({error.msg}); {remedy}"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); {remedy}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged (no JSON object); {remedy}")
    lacking = [key for key in wanted if key not in content]
    if lacking:
        raise ValueError(f"{path} is damaged (it lacks {', '.join(lacking)}); {remedy}")
    return content


def write_lines(path: Path, contents: list[dict[str, Any]]) -> None:
    """A whole file at once, or `Unwritable`."""
    text = b"".join(map(_encoded, contents)).decode("utf-8", errors="replace")
    write_whole(path, text)


def write_whole(path: Path, text: str) -> None:
    """The file whole or as it was, or `Unwritable`."""
    with writing(path):
        write_atomically(path, text)


def _encoded(content: dict[str, Any]) -> bytes:
    # Gold answers may be of types that JSON lacks (decimals).
    line = json.dumps(content, ensure_ascii=False, default=str) + "\n"
    # A tokenizer may decode half a character; such text still has to be written down.
    return line.encode("utf-8", errors="surrogatepass")
