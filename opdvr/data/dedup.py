"""`opdvr data dedup A B`: the rows of A whose problem does not stand in B.

Nothing else about A changes: its columns, their types, its metadata and the order of its rows. What
is taken out is written beside it, so that A can be put together again (`put_back`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opdvr.data import overlap
from opdvr.data.files import sha256_of, write_parquet, write_text
from opdvr.data.options import OWN_FILE
from opdvr.data.output import check_output
from opdvr.data.problem_columns import Problems, read_problems
from opdvr.data.progress import Progress
from opdvr.data.wording import how_many

# Columns of the file of dropped rows, beside A's: where the row stood in A, the rule that decided,
# the share of shared n-grams (1.0 for the other rules), and the row of B.
ROW, RULE, SHARE, MATCH = "dedup_row", "dedup_rule", "dedup_share", "dedup_match_row"
_ADDED = {ROW: pa.int64(), RULE: pa.string(), SHARE: pa.float64(), MATCH: pa.int64()}
_RULES = ("exact", "contained", "n-gram")


def add_dedup(parser: argparse.ArgumentParser) -> None:
    """Options of `dedup`."""
    parser.add_argument("file", type=Path, metavar="A", help="a .parquet file")
    parser.add_argument("other", type=Path, metavar="B", help=OWN_FILE)
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="C.parquet",
        help="A without B's problems; what was dropped goes to C.dropped.parquet",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the counts there")
    parser.add_argument("--column", help="A's column with the problem (default: looked for)")
    parser.add_argument("--other-column", help="B's (default: looked for)")
    parser.add_argument(
        "--min-share",
        type=float,
        default=overlap.RARE_SHARED_FRACTION,
        metavar="SHARE",
        help="keep rows that share fewer of the shorter problem's runs of words (%(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="replace output files")
    parser.set_defaults(run=_run)


def dropped_file(output: Path) -> Path:
    """Where the rows go that were dropped."""
    return output.with_suffix(".dropped.parquet")


def check_new(output: Path, inputs: list[Path], force: bool, beside: list[Path]) -> None:
    """Refuse to write over an input, or over any file that is there, unless forced.

    Raises:
        ValueError: with the remedy.
    """
    check_output(output, inputs, force)
    for path in (output, *beside):
        if any(path.resolve() == other.resolve() for other in inputs):
            raise ValueError(f"--output {output}: {path} is a source of this command")
        if path.exists() and not force:
            raise ValueError(f"{path} exists; name another --output, or replace it with --force")


def drop_overlaps(
    table: pa.Table, own: Problems, other: Problems, min_share: float
) -> tuple[pa.Table, pa.Table, dict[str, int]]:
    """Rows to keep, rows dropped with the four added columns, and the dropped ones by rule.

    Args:
        table: A.
        own: its problems. other: B's.
        min_share: matches by n-gram with a smaller share are none.
    """
    numbers, texts = own.with_text()
    progress = Progress(len(texts), f"problems compared with {len(other.texts):,} others")
    distinct = list(other.texts)
    found = overlap.find_overlaps(progress.over(texts), distinct)
    matches = {place: match for place, match in found.items() if match.share >= min_share}
    rows = [numbers[place] for place in matches]
    added = {
        ROW: rows,
        RULE: [match.kind for match in matches.values()],
        SHARE: [match.share for match in matches.values()],
        MATCH: [other.texts[distinct[match.row]] for match in matches.values()],
    }
    dropped = table.take(pa.array(rows, pa.int64()))
    for name, values in added.items():
        dropped = dropped.append_column(name, pa.array(values, _ADDED[name]))
    gone = set(rows)
    kept = table.filter(pa.array([row not in gone for row in range(len(table))], pa.bool_()))
    counts = Counter(added[RULE])
    return kept, dropped, {rule: counts[rule] for rule in _RULES}


def put_back(kept: pa.Table, dropped: pa.Table) -> pa.Table:
    """The file that both were made of, its rows in their order."""
    rows = dropped[ROW].to_pylist()
    gone = set(rows)
    total = len(kept) + len(dropped)
    places = [row for row in range(total) if row not in gone] + rows
    # Where in the two tables, one after the other, each row of the whole stands.
    order = sorted(range(total), key=places.__getitem__)
    whole = pa.concat_tables([kept, dropped.select(kept.column_names)])
    return whole.take(pa.array(order, pa.int64())).replace_schema_metadata(kept.schema.metadata)


def read_whole(path: Path) -> pa.Table:
    """A parquet file.

    Raises:
        ValueError: not there, no parquet, damaged, or without rows.
    """
    if path.suffix != ".parquet":
        raise ValueError(f"{path}: give a .parquet file; `prepare user` makes one of others")
    if not path.is_file():
        raise ValueError(f"file not found: {path}")
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no parquet file, or a damaged one ({error})") from None
    if not len(table):
        raise ValueError(f"{path} has no rows")
    return table


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    if not 0 <= options.min_share <= 1:
        raise ValueError(f"--min-share {options.min_share}: give 0 to 1")
    aside = dropped_file(options.output)
    beside = [aside, *([options.json] if options.json else [])]
    check_new(options.output, [options.file, options.other], options.force, beside)
    table = read_whole(options.file)
    taken = [name for name in _ADDED if name in table.column_names]
    if taken:
        raise ValueError(f"{options.file} has a column {taken[0]} already; rename it")
    own = read_problems(options.file, options.column, "--column")
    other = read_problems(options.other, options.other_column, "--other-column")
    kept, dropped, counts = drop_overlaps(table, own, other, options.min_share)
    if not len(kept):
        raise ValueError(f"{options.output} is not written: every row of A stands in B")
    write_parquet(kept, options.output)
    write_parquet(dropped, aside)
    seconds = time.monotonic() - started
    found: dict[str, Any] = {
        "a": _input(options.file, own),
        "b": _input(options.other, other),
        "kept": len(kept),
        "dropped": len(dropped),
        "by_rule": counts,
        "output": str(options.output),
        "dropped_file": str(aside),
        "settings": {
            "ngram_words": overlap.NGRAM_WORDS,
            "short_words": overlap.SHORT_WORDS,
            "shared_fraction": overlap.SHARED_FRACTION,
            "rare_shared_fraction": overlap.RARE_SHARED_FRACTION,
            "common_above": overlap.COMMON_ABOVE,
            "min_share": options.min_share,
        },
        "seconds": round(seconds, 1),
    }
    if options.json:
        write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", options.json)
    _say(found, own, other)
    return 0


def _input(path: Path, problems: Problems) -> dict[str, Any]:
    return {
        "file": str(path),
        "sha256": sha256_of(path),
        "column": problems.column,
        "rows": problems.rows,
        "distinct_problems": len(problems.texts),
        "rows_without_text": problems.rows - len(problems.by_row),
        "wrapper": {"before": problems.wrapper[0], "after": problems.wrapper[1]},
    }


def _say(found: dict[str, Any], own: Problems, other: Problems) -> None:
    for name, problems in (("A", own), ("B", other)):
        entry = found[name.lower()]
        print(
            f"{name}: {entry['file']}: {how_many(problems.rows, 'row')}, "
            f"{len(problems.texts):,} distinct problems in {problems.column}"
        )
        if entry["rows_without_text"]:
            print(
                f"{name}: {how_many(entry['rows_without_text'], 'row')} without text, not compared"
            )
        for side, text in entry["wrapper"].items():
            if text:
                print(f"{name}: not counted, {side} nearly every problem: {text!r}")
    for rule, rows in found["by_rule"].items():
        print(f"dropped {how_many(rows, 'row')}: {rule}")
    print(f"{found['dropped_file']}: {how_many(found['dropped'], 'row')}")
    print(f"{found['output']}: {how_many(found['kept'], 'row')} ({found['seconds']:.1f} s)")
