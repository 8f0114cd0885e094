"""`opdvr data show`: a few rows of any data file, for reading."""

import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path

from opdvr.data.reading import read_records
from opdvr.data.wording import escaped

_WIDTH = 96
_INDENT = "    "


def show(path: Path, start: int, count: int, max_characters: int | None) -> Iterator[str]:
    """Lines for `count` rows from row `start` (0 is the first), texts cut at `max_characters`.

    Control characters are shown as Python escapes them.

    Raises:
        ValueError: the file cannot be read, or has no such row.
    """
    records = itertools.islice(read_records(path), start, start + count)
    shown = 0
    for number, record in enumerate(records, start=start):
        yield f"row {number}"
        yield from _lines(record, max_characters, _INDENT)
        yield ""
        shown += 1
    if not shown:
        raise ValueError(
            f"{path} has no row {start} (the first row is 0)" if start else f"{path} has no rows"
        )


def _lines(record: dict, max_characters: int | None, indent: str) -> Iterator[str]:
    for name, value in record.items():
        if isinstance(value, list) and value and all(_is_message(item) for item in value):
            for message in value:
                yield from _text(message["role"], message["content"], max_characters, indent)
        elif isinstance(value, dict):
            yield f"{indent}{escaped(str(name))}:"
            yield from _lines(value, max_characters, indent + _INDENT)
        else:
            yield from _text(name, value, max_characters, indent)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and value.keys() >= {"role", "content"}


def _text(name: object, value: object, max_characters: int | None, indent: str) -> Iterator[str]:
    text = value if isinstance(value, str) else repr(value)
    if max_characters is not None and len(text) > max_characters:
        text = f"{text[:max_characters]} … ({len(text):,} characters)"
    name, text = escaped(str(name)), escaped(text)
    lines = [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, _WIDTH, break_long_words=False, replace_whitespace=False)
        or [""]
    ]
    if len(lines) == 1:
        yield f"{indent}{name}: {lines[0]}"
        return
    yield f"{indent}{name}:"
    for line in lines:
        yield f"{indent}{_INDENT}{line}".rstrip()
