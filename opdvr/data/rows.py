"""Rows of our data files: verl's schema, the same one in every file, so that all of them join."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from opdvr.data.text import prompt_of

# What verl's dataset and reward manager read from a row. The index is text, since some sources
# name their rows, and a column has one type in all files that are trained on together.
ROW_SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        # Parquet calls what a list holds its element.
        "prompt": pa.list_(
            pa.field("element", pa.struct({"role": pa.string(), "content": pa.string()}))
        ),
        "ability": pa.string(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct({"index": pa.string(), "split": pa.string()}),
    }
)


class Place(NamedTuple):
    """Where a row was read; the first row of a file has number 0."""

    file: str
    row: int


@dataclass(frozen=True, slots=True)
class Row:
    """One problem on its way into a data file.

    Attributes:
        place: where it was read.
        before: messages before the problem, as (role, content).
        problem: its text without instructions.
        rewritten: whether the source's prompt had other words around the problem than ours.
        gold: the source's answer; text once it is known to be usable.
    """

    place: Place
    data_source: str
    before: tuple[tuple[str, str], ...]
    problem: str
    rewritten: bool
    gold: object
    index: str
    split: str

    def output(self) -> dict:
        """The row as it is written: problem and suffix in one user message, the gold as text."""
        messages = (*self.before, ("user", prompt_of(self.problem)))
        return {
            "data_source": self.data_source,
            "prompt": [{"role": role, "content": content} for role, content in messages],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": self.gold},
            "extra_info": {"index": self.index, "split": self.split},
        }


@dataclass(frozen=True, slots=True)
class Removed:
    """A row that was left out: why, and for the sake of which other row (as the sidecar has it)."""

    row: Row
    reason: str
    match: dict | None = None


@dataclass(frozen=True, slots=True)
class Repeats:
    """Rows left out as repeats of one row of the same file, by number: there may be 99 of each."""

    of: Place
    rows: list[int]
    conflict: bool  # whether that row was left out too, since others contradict it


@dataclass(frozen=True, slots=True)
class Unusable:
    """What stands at a row's place and is no problem with an answer.

    Attributes:
        reason: what is wrong, the same text for every such row.
        content: the row as it was read, or its text.
        detail: more about this one; may be empty.
        line: its line, from 1, where it could not be read as a row.
    """

    place: Place
    reason: str
    content: object
    detail: str = ""
    line: int | None = None


LeftOut: TypeAlias = Removed | Repeats | Unusable


def gold_text(gold: object) -> str:
    """A usable gold answer as text the verifier reads alike: lists as any-of, one item as itself.

    Numbers keep their own spelling (5, 5.0).
    """
    if hasattr(gold, "tolist"):  # numpy
        gold = gold.tolist()
    if isinstance(gold, list | tuple | set):
        items = [gold_text(item) for item in gold]
        return items[0] if len(items) == 1 else repr(items)
    return str(gold)


def to_table(rows: Sequence[Row]) -> pa.Table:
    """Rows as a table in `ROW_SCHEMA`, in their order."""
    columns: dict[str, list] = {name: [] for name in ROW_SCHEMA.names}
    for row in rows:
        for name, value in row.output().items():
            columns[name].append(value)
    arrays = [pa.array(columns[field.name], field.type) for field in ROW_SCHEMA]
    return pa.table(arrays, schema=ROW_SCHEMA)


def content_sha256(rows: Sequence[Row]) -> str:
    """SHA-256 of the rows as JSON lines: what the file says, whatever version writes it."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row.output(), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def count_removed(removed: Sequence[LeftOut]) -> dict[str, int]:
    """Rows that were left out, by reason, in alphabetical order."""
    counts: Counter[str] = Counter()
    for item in removed:
        if isinstance(item, Repeats):
            counts["conflict" if item.conflict else "duplicate"] += len(item.rows)
        else:
            counts[item.reason] += 1
    return dict(sorted(counts.items()))


def removed_lines(removed: Sequence[LeftOut]) -> Iterator[str]:
    """JSON lines from which removed rows can be put back.

    A line has reason, file, row number, match and the row itself (as it was read where it is no
    problem with an answer); repeats are one line for each row that they repeat, with row numbers
    only.
    """
    for item in removed:
        if isinstance(item, Repeats):
            line = {
                "reason": "conflict" if item.conflict else "duplicate",
                "match": item.of._asdict(),
                "file": item.of.file,
                "rows": item.rows,
            }
        elif isinstance(item, Unusable):
            line = {
                "reason": item.reason,
                **item.place._asdict(),
                "match": None,
                "content": item.content,
            }
        else:
            line = {
                "reason": item.reason,
                **item.row.place._asdict(),
                "match": item.match,
                "content": item.row.output(),
            }
        yield json.dumps(line, ensure_ascii=False, default=str)
