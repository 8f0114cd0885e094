"""A data file as the checks take it, and what they find in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from opdvr.data.table import (
    SEPARATOR,
    column_flaws,
    gold_values,
    is_messages,
    prompt_flaws,
    prompt_texts,
    read_table,
    rewrite,
    role_flaws,
)
from opdvr.data.text import problem_of
from opdvr.data.wording import how_many, row_numbers

COLUMNS = ["prompt", "data_source", "reward_model"]


@dataclass(frozen=True)
class Finding:
    """One kind of mistake in one file; a note needs no action.

    `rows` are numbers from 0, none where the file as a whole is meant.
    """

    file: str
    kind: str
    text: str
    rows: tuple[int, ...] = ()
    is_note: bool = False

    def line(self, all_rows: bool = False) -> str:
        """FILE: KIND: N rows: 3, 17, 40 …: what is wrong; remedy."""
        if not self.rows:
            return f"{self.file}: {self.kind}: {self.text}"
        some = f"{how_many(len(self.rows), 'row')}: {row_numbers(self.rows, all_rows)}"
        return f"{self.file}: {self.kind}: {some}: {self.text}"


@dataclass(frozen=True)
class LoadedFile:
    """The sound rows of a file in verl's form.

    Attributes:
        numbers: the row of the file that each of them is.
        contexts: the messages before the last one.
        problems: the last one, without instructions.
    """

    name: str
    schema: pa.Schema
    table: pa.Table
    numbers: Sequence[int]
    prompts: list[str]
    contexts: list[str]
    problems: list[str]
    golds: list[object]

    def __len__(self) -> int:
        return len(self.prompts)

    def finding(self, kind: str, text: str, rows: Sequence[int], is_note: bool = False) -> Finding:
        """A finding in these of the sound rows."""
        return Finding(self.name, kind, text, tuple(self.numbers[row] for row in rows), is_note)


def load(name: str) -> tuple[LoadedFile | None, list[Finding]]:
    """What the checks need of one file, and what is wrong with its schema and its prompts.

    None where the file as a whole cannot be read or has no sound row.
    """
    try:
        table, schema = read_table(name, name, COLUMNS)
    except ValueError as error:
        return None, [Finding(name, "schema", str(error).removeprefix(name).lstrip(": "))]
    flaws = column_flaws(schema, COLUMNS, "prompt", name)
    findings = [Finding(name, "schema", flaw) for flaw in flaws]
    by_flaw: dict[str, list[int]] = {}
    if "prompt" in schema.names and is_messages(schema.field("prompt").type):
        by_flaw = _prompt_flaws(table["prompt"])
    for flaw, rows in by_flaw.items():
        text = f"{flaw}; leave such rows out: {rewrite(name, '--skip-bad')}"
        findings.append(Finding(name, "schema", text, tuple(rows)))
    numbers = _other_rows(by_flaw, len(table))
    if flaws or not numbers:
        return None, findings
    sound = table if len(numbers) == len(table) else table.take(pa.array(numbers, pa.int64()))
    return _loaded(name, schema, sound, numbers), findings


def _prompt_flaws(prompts: pa.ChunkedArray) -> dict[str, list[int]]:
    found = prompt_flaws(prompts)
    numbers = _other_rows(found, len(prompts))
    sound = prompts if len(numbers) == len(prompts) else prompts.take(pa.array(numbers, pa.int64()))
    for flaw, rows in role_flaws(sound).items():
        found[flaw] = [numbers[row] for row in rows]
    return found


def _other_rows(by_flaw: dict[str, list[int]], total: int) -> Sequence[int]:
    bad = {row for rows in by_flaw.values() for row in rows}
    return [row for row in range(total) if row not in bad] if bad else range(total)


def _loaded(name: str, schema: pa.Schema, table: pa.Table, numbers: Sequence[int]) -> LoadedFile:
    prompts = prompt_texts(table["prompt"]).to_pylist()
    parts = [prompt.rpartition(SEPARATOR) for prompt in prompts]
    return LoadedFile(
        name,
        schema,
        table,
        numbers,
        prompts,
        [context for context, _, _ in parts],
        [problem_of(last) for _, _, last in parts],
        gold_values(table["reward_model"]),
    )
