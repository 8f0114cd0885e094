"""Read the columns that training needs from verl's parquet and JSON files, as Arrow tables."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

WANTED = "prompt, data_source, reward_model.ground_truth"
# Enough rows to find the mistake by, few enough for one line.
_ROWS_NAMED = 5
# Between the messages of one prompt, where several are compared as one text.
SEPARATOR = "\x1e"


def read_columns(file: str, where: str, columns: list[str]) -> tuple[pa.Table, pa.Schema]:
    """The wanted columns of one file, and the schema of all of them.

    Raises:
        ValueError: one line that starts with `where`: not readable, another suffix than verl's,
            a column or reward_model.ground_truth missing, no rows.
    """
    path = Path(file).expanduser()
    if path.suffix == ".parquet":
        try:
            parquet = pq.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{where} is no parquet file ({error})") from None
        schema = parquet.schema_arrow
        _check_columns(schema, columns, where)
        table = parquet.read(columns=columns)
    elif path.suffix == ".json":
        table = _read_json(path, where)
        schema = table.schema
        _check_columns(schema, columns, where)
    else:
        raise ValueError(f"{where}: verl reads .parquet and .json (JSON rows) files; rename it")
    if len(table) == 0:
        raise ValueError(f"{where} has no rows")
    return table, schema


def _read_json(path: Path, where: str) -> pa.Table:
    try:
        with path.open() as stream:
            if stream.read(1) == "[":
                stream.seek(0)
                return pa.Table.from_pylist(json.load(stream))
        return pyarrow.json.read_json(path)
    except (pa.ArrowInvalid, json.JSONDecodeError) as error:
        raise ValueError(f"{where} is no file of JSON rows ({error})") from None


def _check_columns(schema: pa.Schema, columns: list[str], where: str) -> None:
    missing = [name for name in columns if name not in schema.names]
    if "reward_model" not in missing:
        kind = schema.field("reward_model").type
        if not pa.types.is_struct(kind) or kind.get_field_index("ground_truth") < 0:
            missing.append("reward_model.ground_truth")
    if missing:
        raise ValueError(
            f"{where} lacks the columns {', '.join(missing)} (found: {', '.join(schema.names)}); "
            f"rows need {WANTED}"
        )


def prompt_texts(column: pa.ChunkedArray, where: str, prompt_key: str) -> pa.ChunkedArray:
    """The text of each prompt's messages, joined by `SEPARATOR`.

    Raises:
        ValueError: no list of messages, a row without messages, a message without content.
    """
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not {"role", "content"} <= set(_field_names(kind.value_type)):
        raise ValueError(
            f"{where}: column {prompt_key} must be a list of messages with role and content, "
            f"not {kind}"
        )
    empty = pc.fill_null(pc.equal(pc.list_value_length(column), 0), True)
    refuse_rows(pc.indices_nonzero(empty).to_pylist(), f"{where}: {prompt_key} without messages")
    joined = []
    for chunk in column.chunks:
        contents = chunk.flatten().field("content")
        if contents.null_count:
            raise ValueError(f"{where}: {contents.null_count} messages of {prompt_key} are empty")
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


def refuse_rows(rows: list[int], problem: str) -> None:
    """Raise ValueError that names the first of these rows, if there are any."""
    if rows:
        named = ", ".join(map(str, rows[:_ROWS_NAMED]))
        more = f" and {len(rows) - _ROWS_NAMED} more" if len(rows) > _ROWS_NAMED else ""
        raise ValueError(f"{problem}: rows {named}{more} (the first row is 0)")


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
