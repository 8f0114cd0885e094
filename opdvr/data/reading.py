"""Read the records of a file: parquet, JSON, JSON lines or CSV, in verl's form or not."""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.parquet as pq

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
# Formats in which all rows have the same columns.
UNIFORM_SUFFIXES = (".parquet", ".csv")
_BATCH_ROWS = 4096
# A cell of a CSV file may be a long text; Python's own limit is 128 KiB.
_CSV_CELL_BYTES = 1 << 24
_OTHER_SEPARATORS = (";", "\t")


@dataclass(frozen=True, slots=True)
class Broken:
    """A record that cannot be read, while those after it can.

    Attributes:
        line: where it stands, from 1; None in a list of JSON.
    """

    reason: str
    content: object
    detail: str = ""
    line: int | None = None


class _Repeating(dict):
    """A JSON object that has one key twice, or holds such an object; `key` is that key."""

    key: str


def read_records(path: Path) -> Iterator[dict]:
    """The rows of a file as dictionaries, in their order.

    Raises:
        ValueError: as `read_good_and_broken`, and for the first record that cannot be read.
    """
    for number, record in enumerate(read_good_and_broken(path)):
        if isinstance(record, Broken):
            where = f"row {number}" if record.line is None else f"line {record.line}"
            more = f" ({record.detail})" if record.detail else ""
            raise ValueError(f"{path}: {where}: {record.reason}{more}")
        yield record


def read_good_and_broken(path: Path) -> Iterator[dict | Broken]:
    """The rows of a file in their order, those that cannot be read with the reason.

    Raises:
        ValueError: another suffix, or a file that as a whole cannot be read.
    """
    readers = {
        ".parquet": _parquet_records,
        ".jsonl": _jsonl_records,
        ".json": _json_records,
        ".csv": _csv_records,
    }
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give one file")
    if path.suffix not in readers:
        raise ValueError(f"{path}: its name must end in one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise ValueError(f"file not found: {path}")
    try:
        yield from readers[path.suffix](path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start})") from None


def arrow_records(tables: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[dict]:
    """The rows of Arrow tables as dictionaries."""
    for table in tables:
        yield from table.to_pylist()


def _parquet_records(path: Path) -> Iterator[dict]:
    try:
        with pq.ParquetFile(path) as parquet:
            yield from arrow_records(parquet.iter_batches(_BATCH_ROWS))
    except (pa.ArrowException, OSError) as error:  # OSError: damaged pages
        raise ValueError(f"{path} is no parquet file, or a damaged one ({error})") from None


def _jsonl_records(path: Path) -> Iterator[dict | Broken]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line, object_pairs_hook=_object)
            except json.JSONDecodeError as error:
                yield Broken("no JSON", line.rstrip("\r\n"), str(error), number)
            else:
                yield _checked(record, line.rstrip("\r\n"), number, has_escapes="\\u" in line)


def _json_records(path: Path) -> Iterator[dict | Broken]:
    with path.open(encoding="utf-8-sig") as stream:
        is_list = starts_list(stream)
    if not is_list:  # verl calls JSON lines .json
        yield from _jsonl_records(path)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
        records = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON ({error})") from None
    for record in records:
        yield _checked(record, record, None, has_escapes="\\u" in text)


def starts_list(stream: TextIO) -> bool:
    """Whether JSON text is one list, not a row a line; the stream is at its start afterwards."""
    character = stream.read(1)
    while character.isspace():
        character = stream.read(1)
    stream.seek(0)
    return character == "["


def _object(pairs: list[tuple[str, object]]) -> dict:
    """A JSON object; Python's own reader keeps the last of two equal keys and says nothing."""
    record = dict(pairs)
    keys = [key for key, _ in pairs]
    twice = [key for key in record if keys.count(key) > 1] if len(keys) > len(record) else []
    inner = [
        item.key
        for value in record.values()
        for item in (value if isinstance(value, list) else [value])
        if isinstance(item, _Repeating)
    ]
    if not twice and not inner:
        return record
    repeating = _Repeating(record)
    repeating.key = (twice + inner)[0]
    return repeating


def _checked(record: object, content: object, line: int | None, has_escapes: bool) -> dict | Broken:
    if isinstance(record, _Repeating):
        return Broken("one key twice in an object", content, repr(record.key), line)
    if not isinstance(record, dict):
        return Broken("no JSON object", content, line=line)
    if has_escapes:
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start].encode("unicode_escape").decode()
            return Broken("half a character", json.dumps(record), half, line)
    return record


def _csv_records(path: Path) -> Iterator[dict | Broken]:
    csv.field_size_limit(_CSV_CELL_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        try:
            names = next(reader, [])
            _check_header(names, path)
            for cells in reader:
                if len(cells) == len(names):
                    yield dict(zip(names, cells, strict=True))
                elif cells:  # an empty line is none
                    detail = f"{len(cells)}, where the first line has {len(names)}"
                    yield Broken("another number of cells", cells, detail, reader.line_num)
        except csv.Error as error:
            raise ValueError(f"{path}: line {reader.line_num} is no CSV ({error})") from None


def _check_header(names: list[str], path: Path) -> None:
    if len(names) == 1 and any(separator in names[0] for separator in _OTHER_SEPARATORS):
        raise ValueError(
            f"{path}: CSV has commas between its cells, but one column {names[0]!r} was found; "
            "save it with commas"
        )
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise ValueError(f"{path} has the column {twice[0]!r} twice; rename one")
