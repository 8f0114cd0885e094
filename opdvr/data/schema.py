"""Check data files before anything heavy starts: columns, prompts, gold answers, joinability."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from opdvr.verifier import validate_gold

WANTED = "prompt, data_source, reward_model.ground_truth"
# Enough rows to find the mistake by, few enough for one line.
_ROWS_NAMED = 5
# Prompts that ask for this, and for no box, are answered in a form that the verifier does not read.
_OTHER_FORM = "Answer:"
# Between the messages of one prompt, where several are compared as one text.
_SEPARATOR = "\x1e"


@dataclass
class DataReport:
    """What the files of one option hold.

    Attributes:
        rows: rows in all files together.
        distinct_prompts: prompts that differ in some message's text, over all files.
        warnings: one line each; nothing in them stops a run.
    """

    rows: int = 0
    distinct_prompts: int = 0
    warnings: list[str] = field(default_factory=list)


def check_files(
    files: list[str],
    option: str,
    prompt_key: str = "prompt",
    reward_fn_key: str = "data_source",
    own_verifier: bool = True,
) -> DataReport:
    """Check one option's data files without loading any model (under 1 s for 20,000 rows).

    Args:
        files: paths as verl gets them; remote ones (``hdfs://``) are left to verl.
        option: what to call the option in messages, such as "data.train_files (TRAIN_DATASET)".
        prompt_key: the column of messages (verl's data.prompt_key).
        reward_fn_key: the column of data source names (verl's data.reward_fn_key).
        own_verifier: whether `opdvr.verifier` will read gold answers and responses; a user's own
            function may take golds and answer forms that it does not.

    Raises:
        ValueError: one line naming option, file and column or rows: not found, not readable,
            columns missing, no rows, a prompt that is no list of messages, a gold answer that the
            verifier cannot use, or a column whose type differs between two files.
    """
    report = DataReport()
    texts: list[pa.ChunkedArray] = []
    schemas: list[tuple[str, pa.Schema]] = []
    for file in files:
        if "://" in file:
            report.warnings.append(f"{option}: {file} is remote and was not checked")
            continue
        where = f"{option}: {file}"
        if not Path(file).expanduser().is_file():
            raise ValueError(f"{option}: data file not found: {file}")
        table = _read(file, where, [prompt_key, reward_fn_key, "reward_model"], schemas)
        prompts = _prompt_texts(table[prompt_key], where, prompt_key)
        if own_verifier:
            _check_golds(table["reward_model"], where)
            _warn_about_rows(table[reward_fn_key], prompts, where, reward_fn_key, report)
        texts.append(prompts)
        report.rows += len(table)
    _check_joinable(schemas, option)
    if texts:
        prompts = pa.chunked_array([chunk for text in texts for chunk in text.chunks])
        report.distinct_prompts = pc.count_distinct(prompts).as_py()
    if report.distinct_prompts < report.rows:
        report.warnings.append(
            f"{option}: {report.rows} rows hold {report.distinct_prompts} distinct prompts; "
            "repeated ones weigh more in training and in scores"
        )
    return report


def _read(
    file: str, where: str, columns: list[str], schemas: list[tuple[str, pa.Schema]]
) -> pa.Table:
    """The wanted columns of one file; appends its whole schema to `schemas`."""
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
    schemas.append((file, schema))
    return table


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


def _prompt_texts(column: pa.ChunkedArray, where: str, prompt_key: str) -> pa.ChunkedArray:
    """The text of each prompt's messages, joined; refuses rows without messages."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not {"role", "content"} <= set(_field_names(kind.value_type)):
        raise ValueError(
            f"{where}: column {prompt_key} must be a list of messages with role and content, "
            f"not {kind}"
        )
    empty = pc.fill_null(pc.equal(pc.list_value_length(column), 0), True)
    _refuse_rows(pc.indices_nonzero(empty).to_pylist(), f"{where}: {prompt_key} without messages")
    joined = []
    for chunk in column.chunks:
        contents = chunk.flatten().field("content")
        if contents.null_count:
            raise ValueError(f"{where}: {contents.null_count} messages of {prompt_key} are empty")
        if not pa.types.is_string(contents.type):  # large strings, or parts of text and images
            contents = pa.array([str(item) for item in contents.to_pylist()], pa.string())
        # A slice's offsets start anywhere; flatten() starts at 0.
        offsets = pc.subtract(chunk.offsets, chunk.offsets[0]).cast(pa.int32())
        joined.append(pc.binary_join(pa.ListArray.from_arrays(offsets, contents), _SEPARATOR))
    return pa.chunked_array(joined, pa.string())


def _field_names(kind: pa.DataType) -> list[str]:
    return [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []


def _check_golds(column: pa.ChunkedArray, where: str) -> None:
    golds: list[object] = []
    for chunk in column.chunks:
        golds.extend(pc.struct_field(chunk, "ground_truth").to_pylist())
    reasons: dict[str, str | None] = {}
    bad: dict[str, list[int]] = {}
    for row, gold in enumerate(golds):
        name = repr(gold)
        if name not in reasons:
            reasons[name] = validate_gold(gold)
        if reasons[name] is not None:
            bad.setdefault(reasons[name], []).append(row)
    for reason, rows in bad.items():
        _refuse_rows(rows, f"{where}: reward_model.ground_truth cannot be used, {reason}")


def _refuse_rows(rows: list[int], problem: str) -> None:
    if rows:
        named = ", ".join(map(str, rows[:_ROWS_NAMED]))
        more = f" and {len(rows) - _ROWS_NAMED} more" if len(rows) > _ROWS_NAMED else ""
        raise ValueError(f"{problem}: rows {named}{more} (the first row is 0)")


def _warn_about_rows(
    sources: pa.ChunkedArray,
    prompts: pa.ChunkedArray,
    where: str,
    reward_fn_key: str,
    report: DataReport,
) -> None:
    if sources.null_count:
        report.warnings.append(
            f"{where}: {sources.null_count} rows have no {reward_fn_key}; their scores are logged "
            "under the name None"
        )
    other_form = pc.and_not(
        pc.match_substring(prompts, _OTHER_FORM), pc.match_substring(prompts, "boxed")
    )
    misled = pc.sum(other_form).as_py()
    if misled:
        report.warnings.append(
            f"{where}: {misled} of {len(prompts)} prompts ask for {_OTHER_FORM!r} and not for "
            "\\boxed{}, the only form of answer that the verifier reads"
        )


def _check_joinable(schemas: list[tuple[str, pa.Schema]], option: str) -> None:
    """Refuse what datasets.concatenate_datasets refuses, before it does, by the column's name."""
    for index, (file, schema) in enumerate(schemas):
        for earlier_file, earlier in schemas[:index]:
            for name in schema.names:
                if name not in earlier.names:
                    continue
                pair = (earlier.field(name).type, schema.field(name).type)
                for path, one, other in _conflicts(name, *pair):
                    raise ValueError(
                        f"{option}: the files cannot be joined: column {path} is {one} in "
                        f"{earlier_file} and {other} in {file}; write both with one type"
                    )


def _conflicts(
    path: str, one: pa.DataType, other: pa.DataType
) -> Iterable[tuple[str, pa.DataType, pa.DataType]]:
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
