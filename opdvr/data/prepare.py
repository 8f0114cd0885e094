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
from opdvr.data.files import sha256_of
from opdvr.data.output import Product
from opdvr.data.progress import Progress
from opdvr.data.reading import Columns, read_records, to_rows
from opdvr.data.rows import Removed, Repeats, Row, count_removed
from opdvr.data.sources import BENCHMARKS, Opened, Source, open_source
from opdvr.data.table import refuse_rows

MIN_DIFFICULTY = 6


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
        taken = list(_strict_golds(row for row, _ in opened.rows))
        if len(taken) != source.rows:
            raise ValueError(
                f"{source.name} has {len(taken)} rows, not {source.rows}: it is another version; "
                "give the right one with --source or --revision"
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
    removed: list[Removed | Repeats] = []
    rows = deduplicate(usable_golds(_hard_enough(opened, source), removed), removed)
    if references:
        rows = decontaminate(rows, references, removed)
    origins = [opened.origin, *reference_origins]
    return Product(request.output, rows, removed, origins, request.source)


def make_user(request: Request) -> Product:
    """Any file of problems and answers, or one in verl's form, in the schema of our files.

    Raises:
        ValueError: a gold answer that cannot be used, by row, unless they are to be skipped.
    """
    assert request.source is not None, "the command line requires --source"
    path = request.source
    records = Progress(None, "rows read").over(read_records(path))
    rows = (
        row
        for row, _ in to_rows(
            records, path.name, request.columns, request.data_source, request.split
        )
    )
    removed: list[Removed | Repeats] = []
    if request.skip_bad:
        kept = golds_equal_to_themselves(list(usable_golds(rows, removed)), removed)
    else:
        kept = list(_strict_golds(rows))
    if request.deduplicate:
        kept = deduplicate(kept, removed)
    if request.against and not request.keep_overlap:
        references, origins = _references(request)
        kept = decontaminate(kept, references, removed)
    else:
        origins = []
    n_rows = len(kept) + sum(count_removed(removed).values())
    own = {"files": [{"file": path.name, "sha256": sha256_of(path)}], "rows": n_rows}
    return Product(request.output, kept, removed, [own, *origins], path)


def make_demo(folder: Path) -> dict[Path, dict]:
    """The embedded task's two files, with the manifest entry of each."""
    import pyarrow.parquet as pq

    from opdvr.demo.task import write_parquet

    entries: dict[Path, dict] = {}
    for path in write_parquet(folder):
        rows = pq.read_metadata(path).num_rows
        digest = sha256_of(path)
        origin = [{"name": "opdvr.demo.task", "licence": "Apache-2.0", "rows": rows}]
        entries[path] = manifest.make_entry("prepare demo", rows, digest, digest, origin, {})
    return entries


def _strict_golds(rows: Iterator[Row]) -> Iterator[Row]:
    bad: list[Removed | Repeats] = []
    yield from usable_golds(rows, bad)
    if bad:
        first = bad[0]
        refuse_rows(
            [item.row.place.row for item in bad],
            f"{first.row.place.file}: {len(bad)} gold answers cannot be used, the first is "
            f"{first.reason.removeprefix('gold: ')}",
        )


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
        print(f"{source.name}: {dropped:,} rows below difficulty {MIN_DIFFICULTY}", flush=True)


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
