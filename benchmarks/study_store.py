"""The study's results file: one JSON object a line, appended as a run ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

RUN, TUNE, MODEL = "run", "tune", "model"


class RunKey(NamedTuple):
    """What tells runs apart. kind: RUN (main), or TUNE (to pick a learning rate)."""

    kind: str
    setting: str
    method: str
    seed: int
    lr: float
    steps: int


class Store:
    """Results by key, in memory and in a file that survives being cut off.

    A last line without its end is what a killed writer leaves: it is dropped from the file before
    the next line is written.

    Raises:
        ValueError: another line that is no JSON object, naming file and line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rows: list[dict] = []
        text = self.path.read_bytes() if self.path.exists() else b""
        whole, newline, torn = text.rpartition(b"\n")
        self._length = len(whole + newline)
        self._torn = bool(torn)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError as reason:
                raise ValueError(f"{self.path} line {number} is not JSON ({reason})") from None
            self.rows.append(row)

    def find(self, key: RunKey) -> dict | None:
        """The finished run of this key, or None."""
        wanted = key._asdict()
        for row in self.rows:
            if all(row.get(name) == value for name, value in wanted.items()):
                return row
        return None

    def of_kind(self, kind: str) -> list[dict]:
        """Rows of one kind in the order in which they were written."""
        return [row for row in self.rows if row["kind"] == kind]

    def add(self, row: dict) -> None:
        """Append a finished run; on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._torn:
            os.truncate(self.path, self._length)
            self._torn = False
        with self.path.open("a") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)
