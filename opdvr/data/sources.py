"""Where each data set comes from: one entry a source, read from the hub or from local files."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opdvr.data.convert import Columns, strict_rows, to_rows
from opdvr.data.files import sha256_of
from opdvr.data.reading import SUFFIXES, arrow_records, read_records
from opdvr.data.rows import Row

_SEE = "see the source"
_HUB_BATCH_ROWS = 4096
_FILES_NAMED = 12


@dataclass(frozen=True)
class Source:
    """One data set.

    Attributes:
        name: the data_source of its rows.
        hub, config, hub_split: the data set on the hub.
        columns: its columns there. A local file may also be in verl's form.
        files: stems of local files or folders, in small letters and digits only.
        rows: how many it must have; None where it is filtered anyway.
        split: what the rows are for.
        licence: as published; "see the source" where it is not known for certain.
    """

    name: str
    hub: str
    hub_split: str
    columns: Columns
    files: tuple[str, ...]
    rows: int | None = None
    config: str | None = None
    split: str = "test"
    licence: str = _SEE


_PROBLEM_ANSWER = Columns("problem", "answer")

BENCHMARKS = (
    Source(
        "AIME24", "HuggingFaceH4/aime_2024", "train", _PROBLEM_ANSWER, ("aime24", "aime2024"), 30
    ),
    Source("AIME25", "math-ai/aime25", "test", _PROBLEM_ANSWER, ("aime25", "aime2025"), 30),
    Source("AMC23", "AI-MO/aimo-validation-amc", "train", _PROBLEM_ANSWER, ("amc23", "amc"), 83),
    Source("MATH-500", "HuggingFaceH4/MATH-500", "test", _PROBLEM_ANSWER, ("math500",), 500),
    Source(
        "Minerva",
        "math-ai/minervamath",
        "test",
        Columns("question", "answer"),
        ("minerva", "minervamath"),
        272,
    ),
    Source(
        "Olympiad-Bench",
        "math-ai/olympiadbench",
        "test",
        Columns("question", "final_answer"),
        ("olympiadbench", "olympiad"),
        675,
    ),
)
DEEPMATH = Source(
    "DeepMath-103K",
    "zwhe99/DeepMath-103K",
    "train",
    Columns("question", "final_answer", "difficulty"),
    ("deepmath103k", "deepmathdeduped", "deepmath"),
    split="train",
    licence="MIT",
)
DAPO = Source(
    "math_dapo",
    "BytedTsinghua-SIA/DAPO-Math-17k",
    "train",
    Columns(),
    ("dapomath17k", "mathdapo"),
    split="train",
    licence="Apache-2.0",
)


@dataclass
class Opened:
    """A source's rows, each with its difficulty where it has one, and what they were read from.

    `origin` is complete when all rows were taken.
    """

    rows: Iterator[tuple[Row, float | None]]
    has_difficulty: bool
    origin: dict


def open_source(source: Source, given: Path | None, revision: str | None) -> Opened:
    """Read a source from `given` (a file, or a folder with a file of its name), else from the hub.

    Args:
        revision: a commit, branch or tag on the hub; None for its main branch as it is now.

    Raises:
        ValueError: nothing of that name there, or the hub cannot be reached.
    """
    if given is None:
        return _open_hub(source, revision)
    if revision is not None:
        raise ValueError(f"--revision is for the hub; {source.name} is read from {given}")
    files = [given] if given.is_file() else _find(source, given)
    records = itertools.chain.from_iterable(map(read_records, files))
    origin = {
        **_published(source),
        "files": [{"file": path.name, "sha256": sha256_of(path)} for path in files],
        "rows": 0,
    }
    # Places name one file; shards of a folder are counted through.
    label = files[0].name if len(files) == 1 else given.name
    return _opened(source, records, label, origin)


def _published(source: Source) -> dict:
    return {"name": source.name, "hub": source.hub, "licence": source.licence}


def _find(source: Source, folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(f"--source: there is no {folder}")
    found = [
        path
        for path in sorted(folder.iterdir())
        if _squeezed(path.stem if path.is_file() else path.name) in source.files
        and (path.is_dir() or path.suffix in SUFFIXES)
    ]
    if len(found) > 1:
        raise ValueError(
            f"--source {folder} has {' and '.join(p.name for p in found)} for {source.name}; "
            "leave one there"
        )
    if not found:
        there = [path.name for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES]
        more = " …" if len(there) > _FILES_NAMED else ""
        raise ValueError(
            f"--source {folder} has nothing for {source.name}: no folder of that name and no file "
            f"(data files found: {', '.join(there[:_FILES_NAMED]) or 'none'}{more})"
        )
    if found[0].is_file():
        return found
    shards = sorted(path for path in found[0].rglob("*") if path.suffix in SUFFIXES)
    if not shards:
        raise ValueError(f"--source: no data file in {found[0]}")
    return shards


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def resolve_commit(hub: str, revision: str | None) -> str:
    """The commit that a revision of a hub data set stands for now.

    Raises:
        ValueError: no such data set or revision, or no network.
    """
    import huggingface_hub

    try:
        return huggingface_hub.HfApi().dataset_info(hub, revision=revision).sha
    except OSError as error:  # what the hub's client raises derives from it
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{hub} cannot be read from the hub ({reason}); give local files with --source"
        ) from None


def _open_hub(source: Source, revision: str | None) -> Opened:
    import datasets

    commit = resolve_commit(source.hub, revision)
    print(f"{source.name}: {source.hub} at commit {commit}", flush=True)
    try:
        dataset = datasets.load_dataset(
            source.hub, source.config, split=source.hub_split, revision=commit
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{source.hub} cannot be loaded from the hub ({reason})") from None
    columns = source.columns
    wanted = [columns.question, columns.answer, columns.difficulty]
    if columns.verl:
        wanted = ["prompt", "data_source", "reward_model", "extra_info"]
    present = [name for name in wanted if name in dataset.column_names]
    tables = dataset.select_columns(present).with_format("arrow").iter(_HUB_BATCH_ROWS)
    origin = {
        **_published(source),
        "config": source.config,
        "split": source.hub_split,
        "commit": commit,
        "rows": 0,
    }
    return _opened(source, arrow_records(tables), source.hub, origin)


def _opened(source: Source, records: Iterator[dict], label: str, origin: dict) -> Opened:
    first = next(records, None)
    if first is None:
        raise ValueError(f"{label} has no rows")
    difficulty = source.columns.difficulty
    if difficulty is not None and difficulty not in first:
        difficulty = None
    if "prompt" in first and "reward_model" in first:
        columns = Columns(difficulty=difficulty)
    else:
        columns = Columns(source.columns.question, source.columns.answer, difficulty)

    def counted() -> Iterator[tuple[Row, float | None]]:
        everything = itertools.chain([first], records)
        items = to_rows(everything, label, columns, source.name, source.split)
        for item in strict_rows(items):
            origin["rows"] += 1
            yield item

    return Opened(counted(), difficulty is not None, origin)
