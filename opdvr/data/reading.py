"""Read files of problems and answers: parquet, JSON, JSON lines or CSV, in verl's form or not."""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from opdvr.data.rows import Place, Row
from opdvr.data.text import SUFFIX, problem_of

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
_BATCH_ROWS = 4096
# A cell of a CSV file may be a long text; Python's own limit is 128 KiB.
_CSV_CELL_BYTES = 1 << 24


@dataclass(frozen=True)
class Columns:
    """Where problem, answer and difficulty stand; `a.b` is field b of column a.

    Without question and answer rows are in verl's form: prompt and reward_model.ground_truth.
    """

    question: str | None = None
    answer: str | None = None
    difficulty: str | None = None

    @property
    def verl(self) -> bool:
        """Whether rows are read in verl's form."""
        return self.question is None


def read_records(path: Path) -> Iterator[dict]:
    """The rows of a file as dictionaries, in their order.

    Raises:
        ValueError: another suffix, or a file that cannot be read, by its line where it has lines.
    """
    readers = {
        ".parquet": _parquet_records,
        ".jsonl": _jsonl_records,
        ".json": _json_records,
        ".csv": _csv_records,
    }
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
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is no parquet file ({error})") from None


def _jsonl_records(path: Path) -> Iterator[dict]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}: line {number} is no JSON ({error})") from None
            if not isinstance(record, dict):
                raise ValueError(f"{path}: line {number} is no JSON object")
            yield record


def _json_records(path: Path) -> Iterator[dict]:
    with path.open(encoding="utf-8-sig") as stream:
        is_list = stream.read(1) == "["
    if not is_list:  # verl calls JSON lines .json
        yield from _jsonl_records(path)
        return
    try:
        records = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON ({error})") from None
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise ValueError(f"{path}: row {number} is no JSON object (the first row is 0)")
        yield record


def _csv_records(path: Path) -> Iterator[dict]:
    csv.field_size_limit(_CSV_CELL_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream, strict=True)
        try:
            for record in reader:
                if None in record or None in record.values():
                    raise ValueError(
                        f"{path}: line {reader.line_num} has not the {len(reader.fieldnames)} "
                        "cells that the first line names"
                    )
                yield record
        except csv.Error as error:
            raise ValueError(f"{path}: line {reader.line_num} is no CSV ({error})") from None


def to_rows(
    records: Iterable[dict],
    file: str,
    columns: Columns,
    data_source: str | None,
    split: str,
) -> Iterator[tuple[Row, float | None]]:
    """Each record as a row, with its difficulty where `columns` names one.

    Args:
        file: how messages and sidecars name the file.
        data_source: the name that rows get; None keeps that of rows in verl's form.

    Raises:
        ValueError: a column is missing (with those found), or a problem is no text.
    """
    for number, record in enumerate(records):
        place, where = Place(file, number), f"{file}: row {number} (the first row is 0)"
        if columns.verl:
            row = _verl_row(record, place, where, data_source, split)
        else:
            row = Row(
                place=place,
                data_source=data_source or Path(file).stem,
                before=(),
                problem=problem_of(_text(_pick(record, columns.question, place), where)),
                rewritten=False,
                gold=_pick(record, columns.answer, place),
                index=f"{data_source or Path(file).stem}-{number}",
                split=split,
            )
        difficulty = _pick(record, columns.difficulty, place) if columns.difficulty else None
        yield row, difficulty


def _verl_row(record: dict, place: Place, where: str, data_source: str | None, split: str) -> Row:
    messages = _pick(record, "prompt", place)
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise ValueError(f"{where}: prompt is no list of messages")
    *before, last = ((m.get("role"), _text(m.get("content"), where)) for m in messages)
    if last[0] != "user":
        raise ValueError(f"{where}: the last message of prompt is not the user's")
    name = data_source or record.get("data_source") or Path(place.file).stem
    index = (record.get("extra_info") or {}).get("index")
    problem = problem_of(last[1])
    return Row(
        place=place,
        data_source=name,
        before=tuple(before),
        problem=problem,
        rewritten=last[1] not in (problem, f"{problem} {SUFFIX}"),
        gold=_pick(record, "reward_model.ground_truth", place),
        index=f"{name}-{place.row}" if index is None else str(index),
        split=split,
    )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: the problem is no text but {str(value)[:40]!r}")
    return value


def _pick(record: dict, column: str, place: Place) -> object:
    """The value in `column`, None inside a missing struct; a name with a dot wins over a path."""
    if column in record:
        return record[column]
    value: object = record
    for part in column.split("."):
        if value is None:
            return None
        if not isinstance(value, dict) or part not in value:
            # Only JSON rows may differ in their columns.
            where = f"{place.file}: row {place.row}" if place.row else place.file
            raise ValueError(
                f"{where} lacks the column {column} (found: {', '.join(map(str, record))}); name "
                "others with --question-column and --answer-column"
            )
        value = value[part]
    return value
