"""The problems of a file of any columns, without the instructions that stand around them."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opdvr.data.progress import Progress
from opdvr.data.reading import read_records
from opdvr.data.table import is_messages
from opdvr.data.text import problem_of

# Looked for in this order; the first that is there is taken.
COLUMNS = ("prompt", "problem", "question")
_BATCH_ROWS = 65536
# Text that so many of the distinct problems begin or end with is no part of them, if there are
# enough to tell and it is long enough to matter to runs of 13 words.
_NEARLY_ALL = 0.9
_LEAST_TEXTS = 20
_LEAST_WORDS = 4
_PIECE = re.compile(r"\s*\S+")


@dataclass(frozen=True)
class Problems:
    """The problems of a file.

    Attributes:
        column: where they stand. rows: of the file.
        by_row: the text of each row that has one.
        texts: each distinct text, with its first row.
        wrapper: what stood before and after nearly all of them, beside instructions that are known.
    """

    column: str
    rows: int
    by_row: dict[int, str]
    texts: dict[str, int]
    wrapper: tuple[str, str]

    def with_text(self) -> tuple[list[int], list[str]]:
        """Row numbers and texts of the rows that have one."""
        return list(self.by_row), list(self.by_row.values())


def read_problems(path: Path, column: str | None, option: str) -> Problems:
    """The problems of a .parquet, .jsonl, .json or .csv file: text, or the last of messages.

    Known instructions are taken off (`problem_of`), and what else nearly all of them begin or end
    with.

    Args:
        column: `a.b` is field b of a; None looks for COLUMNS.
        option: what sets it, for messages.

    Raises:
        ValueError: the file cannot be read, or has no such column, or no text in it.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give one file")
    if not path.is_file():
        raise ValueError(f"file not found: {path}")
    is_parquet = path.suffix == ".parquet"
    found, values = (_of_parquet if is_parquet else _of_records)(path, column, option)
    # Published files repeat each problem up to a hundred times: texts are worked on once.
    bare: dict[str, str] = {}
    by_row: dict[int, str] = {}
    rows = 0
    for row, text in enumerate(Progress(None, f"rows of {path.name} read").over(values)):
        rows += 1
        if text is None or not text.strip():
            continue
        if text not in bare:
            # Twice, for a prompt in DAPO's words that got our suffix besides.
            bare[text] = problem_of(problem_of(text))
        by_row[row] = bare[text]
    if not by_row:
        raise ValueError(f"{path} has no text in {found}; name another column with {option}")
    wrapper = common_wrapper(list(dict.fromkeys(bare.values())))
    stripped = {text: without(text, wrapper) for text in bare.values()}
    by_row = {row: stripped[text] for row, text in by_row.items()}
    texts: dict[str, int] = {}
    for row, text in by_row.items():
        texts.setdefault(text, row)
    return Problems(found, rows, by_row, texts, wrapper)


def common_wrapper(texts: Sequence[str]) -> tuple[str, str]:
    """What nine of ten distinct texts begin with, and end with, in whole words; "" for nothing."""
    if len(texts) < _LEAST_TEXTS:
        return "", ""
    before = _common_start([_PIECE.findall(text[:_LONGEST_WRAPPER]) for text in texts])
    after = _common_start([_PIECE.findall(text[-_LONGEST_WRAPPER:])[::-1] for text in texts])
    return "".join(before), "".join(reversed(after)).strip()


# Characters at each end in which a wrapper is looked for.
_LONGEST_WRAPPER = 2000


def _common_start(rows: list[list[str]]) -> list[str]:
    """The longest run of pieces that nearly all rows start with."""
    least = _NEARLY_ALL * len(rows)
    common: list[str] = []
    for place in itertools.count():
        pieces = Counter(row[place].strip() for row in rows if len(row) > place)
        piece, count = next(iter(pieces.most_common(1)), ("", 0))
        if count < least:
            break
        rows = [row for row in rows if len(row) > place and row[place].strip() == piece]
        # Spaces as in the first row: the wrapper is compared by its words.
        common.append(rows[0][place])
    return common if len(common) >= _LEAST_WORDS else []


def without(text: str, wrapper: tuple[str, str]) -> str:
    """The text without the wrapper's words, as many as it has at its ends, if at least four.

    It may have fewer than nearly all have, whose problems also end alike. As it is if nothing would
    be left.
    """
    before, after = (part.split() for part in wrapper)
    starts = [piece.end() for piece in _PIECE.finditer(text)]
    words = text.split()
    first = _alike(words, before)
    last = _alike(words[first:][::-1], after[::-1])
    begin = starts[first - 1] if first else 0
    end = starts[len(words) - last - 1] if last and last < len(words) else len(text)
    return text[begin:end].strip() or text


def _alike(words: Sequence[str], wrapper: Sequence[str]) -> int:
    """How many words two texts have in common at their start; 0 for fewer than four."""
    pairs = zip(words, wrapper, strict=False)
    count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return count if count >= _LEAST_WORDS else 0


def _of_parquet(path: Path, column: str | None, option: str) -> tuple[str, Iterator[str | None]]:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no parquet file, or a damaged one ({error})") from None
    names = file.schema_arrow.names
    chosen = _choose(path, names, column, option)
    head = chosen if chosen in names else chosen.split(".")[0]

    def values() -> Iterator[str | None]:
        for batch in file.iter_batches(_BATCH_ROWS, columns=[head]):
            array = batch.column(head)
            for name in chosen[len(head) :].split(".")[1:]:
                if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
                    raise ValueError(f"{path} has no {chosen}; name another with {option}")
                array = pc.struct_field(array, name)
            yield from _texts(array, path, chosen, option).to_pylist()

    return chosen, values()


def _texts(array: pa.Array, path: Path, column: str, option: str) -> pa.Array:
    """A column of text, or of messages, as text; null where there is none."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array
    if not is_messages(kind):
        raise ValueError(
            f"{path}: {column} is {kind}, neither text nor messages; name another with {option}"
        )
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    contents = pc.struct_field(array.flatten(), "content")
    ends = pc.subtract(pc.cumulative_sum(lengths), 1)
    last = pc.if_else(pc.greater(lengths, 0), ends, pa.scalar(None, ends.type))
    texts = contents.take(last)
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise ValueError(f"{path}: messages in {column} have no text as content")
    return texts


def _of_records(path: Path, column: str | None, option: str) -> tuple[str, Iterator[str | None]]:
    records = read_records(path)
    first = next(records, None)
    if first is None:
        raise ValueError(f"{path} has no rows")
    chosen = _choose(path, list(first), column, option)

    def values() -> Iterator[str | None]:
        for record in itertools.chain([first], records):
            value: object = record
            names = [chosen] if chosen in record else chosen.split(".")
            for name in names:
                value = value.get(name) if isinstance(value, dict) else None
            if isinstance(value, list) and value and isinstance(value[-1], dict):
                value = value[-1].get("content")
            yield value if isinstance(value, str) else None

    return chosen, values()


def _choose(path: Path, names: list[str], column: str | None, option: str) -> str:
    if column is not None:
        if column in names or column.split(".")[0] in names:
            return column
        raise ValueError(f"{path} has no column {column} (found: {', '.join(names)})")
    for name in COLUMNS:
        if name in names:
            return name
    raise ValueError(
        f"{path} has none of the columns {', '.join(COLUMNS)} (found: {', '.join(names)}); name "
        f"its problems' with {option}"
    )
