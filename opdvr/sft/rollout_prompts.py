"""The prompts of a rollout: verl's schema as the evaluation reads it, or columns of one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opdvr.data.files import sha256_of
from opdvr.data.table import is_messages, named_rows, prompt_flaws, read_table
from opdvr.eval.problems import DataFile, Problem, load_problems, problem_key
from opdvr.sft.rollout_options import ANSWER_COLUMN, PROMPT_COLUMN, RolloutOptions
from opdvr.verifier import validate_gold

_SOURCE = "data_source"


def load_prompts(
    options: RolloutOptions, own_verifier: bool, boxes_only: bool
) -> tuple[list[Problem], list[DataFile], list[str]]:
    """The prompts in order, the first `--limit` of each data source; `gold` None without one.

    Args:
        options: data and columns.
        own_verifier: whether gold answers must be such as the project's verifier takes.
        boxes_only: whether prompts that ask for "Answer:" are worth a warning.

    Returns:
        Prompts, the files they come from, and warnings (one line each).

    Raises:
        ValueError: one line: a file, column or row that cannot be used.
    """
    as_verl = (options.prompt_column, options.answer_column) == (PROMPT_COLUMN, ANSWER_COLUMN)
    if as_verl and not any(map(_is_other, options.data)):
        loaded = load_problems(options.data, options.limit, own_verifier, boxes_only)
    else:
        loaded = _load_columns(options, own_verifier)
    _check_messages(loaded[0])
    return loaded


def _is_other(file: str) -> bool:
    """Whether it is a parquet file that is not of verl's schema."""
    path = Path(file).expanduser()
    if path.suffix != ".parquet" or not path.is_file():
        return False  # what is wrong with it is said later
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    wanted = {PROMPT_COLUMN, _SOURCE, ANSWER_COLUMN.partition(".")[0]}
    return not wanted <= set(schema.names) or _is_text(schema.field(PROMPT_COLUMN).type)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _load_columns(
    options: RolloutOptions, own_verifier: bool
) -> tuple[list[Problem], list[DataFile], list[str]]:
    warnings: list[str] = []
    kept: list[Problem] = []
    taken: Counter[str] = Counter()
    for file in options.data:
        if options.data.count(file) > 1:
            raise ValueError(f"--data: {file} is named twice; name each file once")
        problems = _problems(file, options, own_verifier)
        if all(problem.gold is None for problem in problems):
            warnings.append(
                f"--data: {file} has no column {options.answer_column}: whether responses are "
                "correct is not judged"
            )
        for problem in problems:
            taken[problem.data_source] += 1
            if options.limit is None or taken[problem.data_source] <= options.limit:
                kept.append(problem)
    counts = Counter(problem.key for problem in kept)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise ValueError(
            f"--data: two files have the same prompt in the same row ({twice[0]}); leave one out"
        )
    files = [DataFile(file, sha256_of(Path(file).expanduser())) for file in options.data]
    return kept, files, warnings


def _problems(file: str, options: RolloutOptions, own_verifier: bool) -> list[Problem]:
    where = f"--data: {file}"
    if not Path(file).expanduser().is_file():
        raise ValueError(f"--data: data file not found: {file}; give a parquet file")
    columns = [options.prompt_column, options.answer_column]
    tops = [name.partition(".")[0] for name in columns]
    table, schema = read_table(file, where, list(dict.fromkeys([*columns, *tops, _SOURCE])))
    prompts = _column(table, options.prompt_column)
    if prompts is None:
        raise ValueError(
            f"{where} has no column {options.prompt_column} (found: {', '.join(schema.names)}); "
            "name the column of prompts with --prompt-column"
        )
    answers = _column(table, options.answer_column)
    if answers is None and options.answer_column != ANSWER_COLUMN:
        raise ValueError(
            f"{where} has no column {options.answer_column} (found: {', '.join(schema.names)}); "
            "name the column of gold answers with --answer-column, or leave that option out"
        )
    golds = [None] * len(table) if answers is None else answers.to_pylist()
    if answers is not None and own_verifier:
        _check_golds(golds, where, options.answer_column)
    sources = _column(table, _SOURCE)
    names = [Path(file).stem] * len(table) if sources is None else sources.to_pylist()
    messages = _messages(prompts, where, options.prompt_column)
    rows = zip(messages, names, golds, strict=True)
    return [_problem(number, *row) for number, row in enumerate(rows)]


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    """The column, also one within structs by its dotted name; None where there is none."""
    if name in table.column_names:
        return table[name]
    top, *fields = name.split(".")
    if top not in table.column_names:
        return None
    column = table[top]
    for field in fields:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(field) < 0:
            return None
        column = pc.struct_field(column, field)
    return column


def _messages(column: pa.ChunkedArray, where: str, name: str) -> list[list[dict[str, Any]]]:
    kind = column.type
    if _is_text(kind):
        texts = column.to_pylist()
        blank = [row for row, text in enumerate(texts) if not (text or "").strip()]
        if blank:
            raise ValueError(
                f"{where} has a blank {name}: {named_rows(blank)}; leave such rows out"
            )
        return [[{"role": "user", "content": text}] for text in texts]
    if not is_messages(kind):
        raise ValueError(
            f"{where}: column {name} holds {kind}; name one of text or of messages with role and "
            "content with --prompt-column"
        )
    flaws = prompt_flaws(column)
    if flaws:
        said = "; ".join(f"{flaw}: {named_rows(rows)}" for flaw, rows in flaws.items())
        raise ValueError(f"{where} has {said}; leave such rows out")
    return [
        [{key: value for key, value in message.items() if value is not None} for message in row]
        for row in column.to_pylist()
    ]


def _check_golds(golds: list[object], where: str, name: str) -> None:
    for row, gold in enumerate(golds):
        reason = validate_gold(gold)
        if reason is not None:
            raise ValueError(
                f"{where}: {name} of row {row} cannot be used, {reason} (the first row is 0); "
                "correct it, leave the row out, or name another column with --answer-column"
            )


def _problem(number: int, messages: list[dict[str, Any]], source: object, gold: object) -> Problem:
    key = problem_key(str(source), messages, number)
    return Problem(key, number, str(source), messages, gold, None)


def _check_messages(problems: Sequence[Problem]) -> None:
    """Refuse prompts that cannot stand before a response in training data of plain text."""
    for problem in problems:
        where = f"--data: row {problem.row} of {problem.data_source}"
        if problem.messages[-1]["role"] != "user":
            raise ValueError(
                f"{where} ends with a message of role {problem.messages[-1]['role']!r}, which a "
                "response cannot follow; leave it out"
            )
        if not all(isinstance(message["content"], str) for message in problem.messages):
            raise ValueError(f"{where} has a message that is no text; leave it out")
