"""`opdvr data prepare`: make the data files of the defaults, and files of one's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opdvr.data import manifest, products
from opdvr.data.clean import (
    decontaminate,
    deduplicate,
    golds_equal_to_themselves,
    read_references,
    usable_golds,
)
from opdvr.data.convert import Columns, refuse_unknown_columns, to_rows
from opdvr.data.files import cannot_write, sha256_of
from opdvr.data.output import Product
from opdvr.data.progress import Progress
from opdvr.data.reading import UNIFORM_SUFFIXES, read_good_and_broken
from opdvr.data.refuse import refuse
from opdvr.data.rows import LeftOut, Row, Unusable
from opdvr.data.sources import BENCHMARKS, Opened, Source, open_source
from opdvr.data.wording import how_many

MIN_DIFFICULTY = 6
_SKIP = "leave them out with --skip-bad, or correct them"


@dataclass(frozen=True)
class Request:
    """What `prepare` was asked for; see `opdvr data prepare --help`."""

    output: Path
    source: Path | None = None
    revisions: dict[str, str] = field(default_factory=dict)
    against: tuple[Path, ...] = ()
    keep_overlap: bool = False
    columns: Columns = field(default_factory=Columns)
    data_source: str | None = None
    split: str = "train"
    skip_bad: bool = False
    deduplicate: bool = False


def make_valid(request: Request) -> Product:
    """The six benchmarks in one file, 1,590 rows, in the order of `BENCHMARKS`.

    Raises:
        ValueError: a source has another number of rows, or a gold answer that cannot be used.
    """
    if request.source is not None and request.source.is_file():
        raise ValueError(f"--source {request.source} is a file; valid needs a folder with six")
    rows: list[Row] = []
    origins: list[dict] = []
    for source in BENCHMARKS:
        opened = open_source(source, request.source, request.revisions.get(source.name))
        taken = _strict_golds(row for row, _ in opened.rows)
        if len(taken) != source.rows:
            raise ValueError(
                f"{source.name} has {how_many(len(taken), 'row')}, not {source.rows}: it is "
                "another version; give the right one with --source or --revision"
            )
        rows += taken
        origins.append(opened.origin)
        print(f"{source.name}: {len(taken)} rows", flush=True)
    return Product(request.output, rows, [], origins, request.source)


def make_training(source: Source, request: Request) -> Product:
    """A training set: hard enough where it says so, each problem once, none of the test problems.

    Raises:
        ValueError: the test files to compare with are missing.
    """
    references, reference_origins = _references(request)
    opened = open_source(source, request.source, request.revisions.get(source.name))
    removed: list[LeftOut] = []
    rows = deduplicate(usable_golds(_hard_enough(opened, source), removed), removed)
    if references:
        rows = decontaminate(rows, references, removed)
    origins = [opened.origin, *reference_origins]
    return Product(request.output, rows, removed, origins, request.source)


def make_user(request: Request) -> Product:
    """Any file of problems and answers, or one in verl's form, in the schema of our files.

    Raises:
        ValueError: rows that cannot be used, unless they are to be skipped; no row has a column.
    """
    assert request.source is not None, "the command line requires --source"
    path = request.source
    rows, unusable = _read_own(path, request)
    total = len(rows) + len(unusable)
    if not total:
        raise ValueError(f"--source {path} has no rows")
    removed: list[LeftOut] = [*unusable]
    kept = list(usable_golds(rows, removed))
    if request.skip_bad:
        kept = golds_equal_to_themselves(kept, removed)
    else:
        refuse(removed, total, _SKIP)
    _note_bools(rows)
    if request.deduplicate:
        kept = deduplicate(kept, removed)
    origins: list[dict] = []
    if request.against and not request.keep_overlap:
        references, origins = _references(request)
        kept = decontaminate(kept, references, removed)
    own = {"files": [{"file": path.name, "sha256": sha256_of(path)}], "rows": total}
    return Product(request.output, kept, removed, [own, *origins], path)


def _read_own(path: Path, request: Request) -> tuple[list[Row], list[Unusable]]:
    """The rows of a user's file, and what stands there and is none."""
    rows: list[Row] = []
    unusable: list[Unusable] = []
    records = Progress(None, "rows read").over(read_good_and_broken(path))
    columns = request.columns
    for item in to_rows(records, path.name, columns, request.data_source, request.split):
        if not isinstance(item, Unusable):
            rows.append(item[0])
            continue
        if path.suffix in UNIFORM_SUFFIXES and isinstance(item.content, dict):
            refuse_unknown_columns(columns, [item.content], path.name)
        unusable.append(item)
    if not rows:
        records = [item.content for item in unusable if isinstance(item.content, dict)]
        refuse_unknown_columns(columns, records, path.name)
    return rows, unusable


def _note_bools(rows: Sequence[Row]) -> None:
    count = sum(isinstance(row.gold, bool) for row in rows)
    if count:
        print(f"{how_many(count, 'gold answer')} true or false: written as the text True or False")


def make_demo(folder: Path) -> dict[Path, dict]:
    """The embedded task's two files, with the manifest entry of each."""
    import pyarrow.parquet as pq

    from opdvr.demo.task import write_parquet

    try:
        paths = write_parquet(folder)
    except OSError as error:
        raise cannot_write(folder, error) from None
    entries: dict[Path, dict] = {}
    for path in paths:
        rows = pq.read_metadata(path).num_rows
        digest = sha256_of(path)
        origin = [{"name": "opdvr.demo.task", "licence": "Apache-2.0", "rows": rows}]
        entries[path] = manifest.make_entry("prepare demo", rows, digest, digest, origin, {})
    return entries


def _strict_golds(rows: Iterator[Row]) -> list[Row]:
    bad: list[LeftOut] = []
    good = list(usable_golds(rows, bad))
    refuse(bad, len(good) + len(bad), "correct them, or give another source")
    return good


def _hard_enough(opened: Opened, source: Source) -> Iterator[Row]:
    if source.columns.difficulty and not opened.has_difficulty:
        print(
            f"{source.name}: no column {source.columns.difficulty}: its rows are taken as already "
            f"of difficulty {MIN_DIFFICULTY} or more",
            flush=True,
        )
    dropped = 0
    for row, difficulty in Progress(None, "rows read").over(opened.rows):
        if opened.has_difficulty and (difficulty is None or float(difficulty) < MIN_DIFFICULTY):
            dropped += 1
        else:
            yield row
    if dropped:
        dropped_rows = how_many(dropped, "row")
        print(f"{source.name}: {dropped_rows} below difficulty {MIN_DIFFICULTY}", flush=True)


def _references(request: Request) -> tuple[Sequence[Row], list[dict]]:
    if request.keep_overlap:
        return [], []
    files = request.against or (Path(products.FOLDER) / products.VALID_FILE,)
    for path in files:
        if not path.is_file():
            makes_it = products.how_to_make(path.name)
            remedy = f"make it with: {makes_it}; or " if makes_it else ""
            raise ValueError(
                f"the test problems to leave out are not there: {path}; {remedy}name others with "
                "--against, or keep them with --keep-overlap"
            )
    return read_references(files)
