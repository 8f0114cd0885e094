"""The problems of an evaluation: rows of data files in verl's schema, each with a lasting key."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from opdvr.data.files import sha256_of
from opdvr.data.schema import check_files

REPO_ROOT = Path(__file__).parents[2]
BENCHMARKS = ("AIME24", "AIME25", "AMC23", "MATH-500", "Minerva", "Olympiad-Bench")
BENCHMARK_FILE = "datasets/valid_final_unique.parquet"
DEMO_FILES = ("demo-train.parquet", "demo-test.parquet")
_DIGEST_CHARS = 12
# A tokenizer warns of texts beyond its own limit; what the model's context holds is checked here.
QUIETLY = {"verbose": False}


@dataclass(frozen=True)
class Problem:
    """One row.

    Attributes:
        key: data source, digest of the prompt, row number in its file: the same in every evaluation
            of the same file, whatever else is evaluated with it.
        row: place in its file, from 0.
        data_source: the benchmark it counts for.
        messages: the prompt as the chat template takes it.
        gold: ground truth, as the verifier takes it.
        extra_info: the row's, for a verifier of the user's own.
    """

    key: str
    row: int
    data_source: str
    messages: list[dict[str, Any]]
    gold: Any
    extra_info: dict[str, Any] | None

    @property
    def question(self) -> str:
        """The last message's text."""
        return str(self.messages[-1]["content"])


@dataclass(frozen=True)
class DataFile:
    """A file that problems come from: its path, and the sha256 of its bytes."""

    path: str
    sha256: str


def load_problems(
    data: Sequence[str], limit: int | None, own_verifier: bool, boxes_only: bool = True
) -> tuple[list[Problem], list[DataFile], list[str]]:
    """The problems of files and benchmark names, in order; the first `limit` of each data source.

    `boxes_only`: whether prompts that ask for "Answer:" are worth a warning.

    Returns:
        Problems, the files they come from, and warnings (one line each).

    Raises:
        ValueError: one line: a file or benchmark is missing, rows that cannot be used, the same row
            twice.
    """
    wanted = _wanted_sources(data)
    check = check_files(list(wanted), "--data", own_verifier=own_verifier, boxes_only=boxes_only)
    problems: list[Problem] = []
    warnings = check.warnings
    for file, names in wanted.items():
        rows = _read(Path(file).expanduser())
        found = [_problem(number, row) for number, row in enumerate(rows)]
        if not own_verifier:  # else the check has said it
            warnings += _nameless(file, rows)
        for name in names or ():
            if all(problem.data_source != name for problem in found):
                raise ValueError(f"--data {name}: {file} has no rows of this data_source")
        problems += [p for p in found if names is None or p.data_source in names]
    taken: Counter[str] = Counter()
    kept = []
    for problem in problems:
        taken[problem.data_source] += 1
        if limit is None or taken[problem.data_source] <= limit:
            kept.append(problem)
    _refuse_repeats(kept)
    files = [DataFile(file, sha256_of(Path(file).expanduser())) for file in wanted]
    return kept, files, warnings


def _wanted_sources(data: Sequence[str]) -> dict[str, list[str] | None]:
    """Files, each with the data sources to take (None: all)."""
    by_name = {name.lower(): name for name in BENCHMARKS}
    wanted: dict[str, list[str] | None] = {}
    for item in data:
        name = by_name.get(item.lower())
        if name is None or Path(item).exists():
            _make_demo_file(Path(item))
            _check_named(item)
            wanted[item] = None
            continue
        file = _benchmark_file(name)
        if file in wanted and wanted[file] is None:
            continue
        names = wanted.setdefault(file, [])
        if name not in names:
            names.append(name)
    return wanted


def _check_named(item: str) -> None:
    path = Path(item).expanduser()
    if "://" in item:
        raise ValueError(f"--data {item}: give a local file")
    if path.is_dir():
        raise ValueError(f"--data {item} is a folder; name the parquet files in it")
    if not path.exists() and path.name == item and not path.suffix:
        raise ValueError(
            f"--data {item}: no such file, nor a benchmark; the benchmarks are "
            f"{', '.join(BENCHMARKS)}"
        )


def _benchmark_file(name: str) -> str:
    for folder in (Path(), REPO_ROOT):
        if (folder / BENCHMARK_FILE).is_file():
            return str(folder / BENCHMARK_FILE)
    raise ValueError(
        f"--data {name}: {BENCHMARK_FILE} is missing; make it with "
        "`python -m opdvr data prepare valid`, or give a parquet file"
    )


def _make_demo_file(path: Path) -> None:
    """The embedded task's files are made where they are missing (the same bytes every time)."""
    datasets = REPO_ROOT / "datasets"
    if path.exists() or path.name not in DEMO_FILES or path.parent.resolve() != datasets:
        return
    from opdvr.demo.task import write_parquet

    write_parquet(datasets)


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    # check_files has let nothing else than .json through
    text = path.read_text(encoding="utf-8")
    whole = text.lstrip().startswith("[")
    return json.loads(text) if whole else [json.loads(line) for line in text.splitlines()]


def _nameless(file: str, rows: list[dict[str, Any]]) -> list[str]:
    count = sum(row["data_source"] is None for row in rows)
    if not count:
        return []
    return [f"--data: {file}: rows without data_source ({count}) are scored as benchmark None"]


def problem_key(source: str, messages: list[dict[str, Any]], number: int) -> str:
    """The key of a row by its data source, prompt and number in the file."""
    text = json.dumps(messages, sort_keys=True, ensure_ascii=False)
    # A prompt of somebody's may hold half a character.
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{source}:{digest}:{number}"


def data_fingerprint(files: Sequence[DataFile]) -> str:
    """A digest of all files' content, in order."""
    hashes = "".join(file.sha256 for file in files)
    return hashlib.sha256(hashes.encode()).hexdigest()[:32]


def _problem(number: int, row: dict[str, Any]) -> Problem:
    messages = [_without_nones(message) for message in row["prompt"]]
    source = str(row["data_source"])
    return Problem(
        key=problem_key(source, messages, number),
        row=number,
        data_source=source,
        messages=messages,
        gold=row["reward_model"]["ground_truth"],
        extra_info=row.get("extra_info"),
    )


def _without_nones(message: dict[str, Any]) -> dict[str, Any]:
    """Fields that other rows of the file have; a chat template would take them for said."""
    return {name: value for name, value in message.items() if value is not None}


def _refuse_repeats(problems: list[Problem]) -> None:
    counts = Counter(problem.key for problem in problems)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise ValueError(
            f"--data: {len(twice)} rows come twice, such as {twice[0]}: name each file once"
        )


def prompt_ids(
    problems: Sequence[Problem],
    tokenizer: Any,  # noqa: ANN401
    thinking: bool,
    context: int | None,
) -> list[tuple[int, ...]]:
    """Each problem's prompt as training builds it, in token ids.

    Raises:
        ValueError: the tokenizer has no chat template; a prompt leaves no room in the model's
            `context` (tokens; None: unknown), naming the row.
    """
    if tokenizer.chat_template is None:
        raise ValueError(
            "--model: its tokenizer has no chat template; put chat_template.jinja into its folder"
        )
    found = []
    for problem in problems:
        ids = tokenizer.apply_chat_template(
            problem.messages,
            add_generation_prompt=True,
            tokenize=True,
            enable_thinking=thinking,
            tokenizer_kwargs=QUIETLY,
        )
        if context is not None and len(ids) >= context:
            raise ValueError(
                f"--data: row {problem.row} of {problem.data_source} is a prompt of {len(ids)} "
                f"tokens, which leaves no room in the model's context of {context}; leave it out, "
                "or take a model with a longer one"
            )
        found.append(tuple(ids))
    return found
