"""Read the columns that training needs from verl's parquet and JSON files, as Arrow tables."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from opdvr.data.products import COMMAND
from opdvr.data.reading import starts_list
from opdvr.data.wording import how_many, row_numbers

WANTED = "prompt, data_source, reward_model.ground_truth"
# Between the messages of one prompt, where several are compared as one text.
SEPARATOR = "\x1e"
# The column of training data for supervised fine-tuning.
_CONVERSATIONS = "messages"
# Who may speak in a prompt.
ROLES = ("system", "user", "assistant", "tool")
NEW = "--output NEW.parquet"
_PREPARED_SUFFIXES = (".csv", ".jsonl")


def read_table(file: str, where: str, columns: list[str]) -> tuple[pa.Table, pa.Schema]:
    """Those of the wanted columns that one file has, and the schema of all of its columns.

    Raises:
        ValueError: one line that starts with `where` and ends with a remedy: not readable, another
            suffix than verl's, no rows.
    """
    path = Path(file).expanduser()
    if path.suffix == ".parquet":
        try:
            parquet = pq.ParquetFile(path)
            schema = parquet.schema_arrow
            present = [name for name in columns if name in schema.names]
            table = parquet.read(columns=present)
            rows = parquet.metadata.num_rows
        except (pa.ArrowException, OSError) as error:  # OSError: damaged pages
            raise ValueError(
                f"{where} is no parquet file, or a damaged one ({error}); get or make it anew"
            ) from None
    elif path.suffix == ".json":
        table = _read_json(path, where)
        schema, rows = table.schema, len(table)
    else:
        raise ValueError(f"{where}: {_other_suffix(file, path.suffix)}")
    if rows == 0:
        raise ValueError(f"{where} has no rows; make it anew from a source that has some")
    return table, schema


def _other_suffix(file: str, suffix: str) -> str:
    verl = "verl reads parquet and JSON rows (.parquet, .json)"
    if suffix in _PREPARED_SUFFIXES:
        return f"{verl}; make a parquet: {rewrite(file, COLUMN_OPTIONS)}"
    return f"{verl}; give one of these"


COLUMN_OPTIONS = "--question-column … --answer-column …"


def rewrite(file: str, options: str = "") -> str:
    """The command that writes a file anew in our schema."""
    words = [COMMAND, "prepare user --source", shlex.quote(file), options, NEW]
    return " ".join(word for word in words if word)


def _read_json(path: Path, where: str) -> pa.Table:
    try:
        with path.open(encoding="utf-8") as stream:
            if not starts_list(stream):
                return pyarrow.json.read_json(path) if path.stat().st_size else pa.table({})
            rows = json.load(stream)
        odd = [number for number, row in enumerate(rows) if not isinstance(row, dict)]
        if odd:
            raise ValueError(f"{where}: no JSON objects: {named_rows(odd)}; correct them")
        return pa.Table.from_pylist(rows)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{where} is no file of JSON rows ({error}); correct it") from None
    except pa.ArrowException as error:  # no JSON in some line, or one column of several types
        raise ValueError(
            f"{where} is no file of JSON rows ({error}); correct it, or write the good rows anew: "
            f"{rewrite(str(path), '--skip-bad')}"
        ) from None


def column_flaws(schema: pa.Schema, columns: list[str], prompt_key: str, file: str) -> list[str]:
    """What keeps verl from reading a file's columns, each with the remedy.

    Args:
        columns: those that must be there, reward_model among them.
        prompt_key: which of them holds messages.
        file: as the remedy names it.
    """
    flaws = []
    has_messages = prompt_key in schema.names and is_messages(schema.field(prompt_key).type)
    missing = [name for name in columns if name not in schema.names]
    if "reward_model" not in missing:
        kind = schema.field("reward_model").type
        if not pa.types.is_struct(kind) or kind.get_field_index("ground_truth") < 0:
            missing.append("reward_model.ground_truth")
    has_gold = not any(name.startswith("reward_model") for name in missing)
    if missing:
        remedy = rewrite(file, COLUMN_OPTIONS)
        if has_messages:
            # What it needs is a problem as text, or both columns as verl has them.
            remedy = rewrite(file, "--data-source NAME") if has_gold else "add the gold answers"
        elif _CONVERSATIONS in schema.names:
            remedy = "these are conversations, which sft.sh takes; give the problems"
        flaws.append(
            f"lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)} (found: "
            f"{', '.join(schema.names)}), rows need {WANTED}; {remedy}"
        )
    if prompt_key in schema.names and not has_messages:
        flaws.append(
            f"has a column {prompt_key} of {schema.field(prompt_key).type}, which must be a list "
            f"of messages with role and content as text; {rewrite(file, COLUMN_OPTIONS)}"
        )
    return flaws


def is_messages(kind: pa.DataType) -> bool:
    """Whether a column of this type can hold verl's prompts."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not {"role", "content"} <= set(_field_names(kind.value_type)):
        return False
    role, content = (kind.value_type.field(name).type for name in ("role", "content"))
    # Content may also be a list of parts, text and images.
    return not pa.types.is_nested(role) and not pa.types.is_primitive(content)


def prompt_flaws(column: pa.ChunkedArray) -> dict[str, list[int]]:
    """Rows that have no messages, or a message without content, by what is wrong."""
    empty: list[int] = []
    silent: list[int] = []
    for start, chunk in _chunks(column):
        lengths = pc.fill_null(pc.list_value_length(chunk), 0)
        empty += _rows(start, pc.indices_nonzero(pc.equal(lengths, 0)))
        contents = pc.struct_field(chunk.flatten(), "content")
        if contents.null_count:
            silent += _rows(start, pc.list_parent_indices(chunk).filter(pc.is_null(contents)))
    found = {"a prompt without messages": empty, "a message without content": silent}
    return {flaw: rows for flaw, rows in found.items() if rows}


def role_flaws(column: pa.ChunkedArray) -> dict[str, list[int]]:
    """Rows whose speakers make no sense, or whose last message is blank, by what is wrong.

    The prompts are those in which `prompt_flaws` finds nothing.
    """
    others = f"a role that is none of {', '.join(ROLES)}"
    found: dict[str, list[int]] = {
        others: [],
        "no message is the user's": [],
        "the last message is not the user's": [],
        "the last message is blank": [],
    }
    for start, chunk in _chunks(column):
        messages, parents = chunk.flatten(), pc.list_parent_indices(chunk)
        roles = pc.fill_null(pc.struct_field(messages, "role").cast(pa.string()), "")
        known = pc.is_in(roles, value_set=pa.array(ROLES))
        asked = pc.equal(roles, "user")
        # In a slice offsets start anywhere, in what flatten() gives at 0.
        ends = pc.subtract(pc.cumulative_sum(pc.list_value_length(chunk)), 1)
        answered = pc.invert(asked.take(ends))
        unasked = pc.invert(
            pc.is_in(pa.array(range(len(chunk)), parents.type), parents.filter(asked))
        )
        found[others] += _rows(start, parents.filter(pc.invert(known)))
        found["no message is the user's"] += _rows(start, pc.indices_nonzero(unasked))
        last = pc.and_(answered, pc.invert(unasked))
        found["the last message is not the user's"] += _rows(start, pc.indices_nonzero(last))
        contents = pc.struct_field(messages, "content").take(ends)
        if pa.types.is_string(contents.type) or pa.types.is_large_string(contents.type):
            blank = pc.equal(pc.utf8_trim_whitespace(contents), "")
            found["the last message is blank"] += _rows(start, pc.indices_nonzero(blank))
    return {flaw: rows for flaw, rows in found.items() if rows}


def _chunks(column: pa.ChunkedArray) -> Iterator[tuple[int, pa.Array]]:
    """Each chunk, with the number of its first row."""
    start = 0
    for chunk in column.chunks:
        if len(chunk):
            yield start, chunk
        start += len(chunk)


def _rows(start: int, indices: pa.Array) -> list[int]:
    return [start + index for index in pc.unique(indices).to_pylist()]


def prompt_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The text of each prompt's messages, joined by `SEPARATOR`; `prompt_flaws` finds nothing."""
    joined = []
    for chunk in column.chunks:
        contents = chunk.flatten().field("content")
        if not pa.types.is_string(contents.type):  # large strings, or parts of text and images
            contents = pa.array([str(item) for item in contents.to_pylist()], pa.string())
        # A slice's offsets start anywhere; flatten() starts at 0.
        offsets = pc.subtract(chunk.offsets, chunk.offsets[0]).cast(pa.int32())
        joined.append(pc.binary_join(pa.ListArray.from_arrays(offsets, contents), SEPARATOR))
    return pa.chunked_array(joined, pa.string())


def gold_values(column: pa.ChunkedArray) -> list[object]:
    """The ground truths in a reward_model column, as Python's own values."""
    return [
        gold
        for chunk in column.chunks
        for gold in pc.struct_field(chunk, "ground_truth").to_pylist()
    ]


def named_rows(rows: list[int]) -> str:
    """Rows for a message: "2 rows: 1, 3 (the first row is 0)"."""
    return f"{how_many(len(rows), 'row')}: {row_numbers(rows)} (the first row is 0)"


def unjoinable_columns(
    one: pa.Schema, other: pa.Schema
) -> Iterator[tuple[str, pa.DataType, pa.DataType]]:
    """Columns at which datasets.concatenate_datasets refuses two files: path and both types."""
    for name in other.names:
        if name in one.names:
            yield from _conflicts(name, one.field(name).type, other.field(name).type)


def _field_names(kind: pa.DataType) -> list[str]:
    return [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []


def _conflicts(
    path: str, one: pa.DataType, other: pa.DataType
) -> Iterator[tuple[str, pa.DataType, pa.DataType]]:
    """Paths at which two types cannot be joined: structs join by field, lists must be the same."""
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        for i, name in enumerate(_field_names(one)):
            at = other.get_field_index(name)
            if at >= 0:
                yield from _conflicts(f"{path}.{name}", one.field(i).type, other.field(at).type)
    elif pa.types.is_null(other) or (pa.types.is_null(one) and not pa.types.is_struct(other)):
        return
    elif _comparable(one) != _comparable(other):
        yield path, one, other


def _comparable(kind: pa.DataType) -> object:
    """A type's value for comparison: the order of a struct's fields is no difference."""
    if pa.types.is_struct(kind):
        return frozenset(
            (name, _comparable(kind.field(i).type)) for i, name in enumerate(_field_names(kind))
        )
    if pa.types.is_list(kind):
        return ("list", _comparable(kind.value_type))
    return kind
