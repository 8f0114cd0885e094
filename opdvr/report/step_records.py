"""Files of JSON lines that a run appends to, step after step.

A reader sees whole lines only: the last one may be cut by a crash and is then left out. When a run
goes back behind a step, what came after it is dropped or moved.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What a run writes beside metrics.jsonl; docs/report.md has the columns of each.
ANATOMY_NAME = "anatomy.jsonl"
TOKEN_SAMPLES_NAME = "token_samples.jsonl"
VALIDATION_NAME = "validation.jsonl"
ALARMS_NAME = "alarms.jsonl"
# Without which a line of them cannot be shown.
TOKEN_SAMPLE_KEYS = {"step": int, "tokens": list, "ids": list, "correct": bool}
VALIDATION_KEYS = {"step": int, "n": int, "sources": dict, "samples": list}
RECORD_NAMES = (ANATOMY_NAME, TOKEN_SAMPLES_NAME, VALIDATION_NAME, ALARMS_NAME)


def read_records(path: Path | str) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; [] where there is none.

    Raises:
        ValueError: a line before the last is no object.
    """
    file = Path(path)
    return parse_records(file.read_bytes(), file)[0] if file.is_file() else []


def require_keys(path: Path, keys: Mapping[str, type]) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, each with these keys of these types.

    Raises:
        ValueError: a line lacks one, or is damaged.
    """
    records = read_records(path)
    for number, record in enumerate(records, start=1):
        for name, kind in keys.items():
            if not isinstance(record.get(name), kind):
                raise ValueError(
                    f"{path} line {number} has no {name} ({kind.__name__}): remove the line, or "
                    "restore the file"
                )
    return records


def parse_records(content: bytes, file: Path, step_needed: bool = False) -> tuple[list, str]:
    """The objects of whole lines, and the text of a torn last line ("" for none).

    Args:
        content: of the file.
        file: for the message.
        step_needed: every object must have a whole number as "step".

    Raises:
        ValueError: a line before the last is no such object.
    """
    *whole, tail = content.split(b"\n")
    records = []
    for number, line in enumerate(whole, start=1):
        record = _record(line, step_needed)
        if record is None:
            kind = "a metrics" if step_needed else "a JSON"
            raise ValueError(
                f"{file} line {number} is not {kind} object: remove it, or restore the file"
            )
        records.append(record)
    record = _record(tail, step_needed)
    if record is not None:
        return [*records, record], ""
    return records, tail.decode("utf-8", errors="replace")


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line, on disk when this returns.

    A torn end, left by a crash, is cut off first, so that it cannot spoil the line.
    """
    if path.is_file() and path.stat().st_size:
        with path.open("rb+") as stream:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                records, _ = parse_records(path.read_bytes(), path)
                write_atomically(path, json_lines(*records))
    append_bytes(path, json_lines(record))


def keep_steps(path: Path, last_step: int) -> None:
    """Drop the lines of steps after `last_step`; lines without a step stay."""
    if not path.is_file():
        return
    records = read_records(path)
    kept = [record for record in records if record.get("step", last_step) <= last_step]
    if len(kept) < len(records) or not path.read_bytes().endswith(b"\n"):
        write_atomically(path, json_lines(*kept))


def json_lines(*records: Mapping[str, Any]) -> bytes:
    """Records as lines of JSON.

    Raises:
        ValueError: a number that is not finite, which JSON has no form for.
    """
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records]
    return utf8("".join(f"{line}\n" for line in lines))


def utf8(json_text: str) -> bytes:
    """JSON text as bytes, whatever it holds."""
    # An argument that is not valid UTF-8 reaches Python as lone surrogates; this way they become
    # escapes, which are JSON's own.
    return json_text.encode(errors="backslashreplace")


def append_bytes(file: Path, content: bytes) -> None:
    """Append, on disk when this returns."""
    with file.open("ab") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def write_atomically(file: Path, content: bytes) -> None:
    """Readers see the old content or the new, never a part; a crash leaves one of the two."""
    temporary = file.with_name(f".{file.name}.tmp")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)


def _record(line: bytes, step_needed: bool) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:  # Both bad JSON and bad UTF-8.
        return None
    if not isinstance(record, dict):
        return None
    return record if not step_needed or isinstance(record.get("step"), int) else None
