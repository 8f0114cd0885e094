"""`opdvr data check`: what is wrong with data files, by row."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pyarrow as pa

from opdvr.data.clean import same_answer
from opdvr.data.overlap import find_overlaps
from opdvr.data.products import COMMAND
from opdvr.data.progress import Progress
from opdvr.data.table import (
    SEPARATOR,
    gold_values,
    prompt_texts,
    read_columns,
    unjoinable_columns,
)
from opdvr.data.text import OTHER_FORM, asks_for_nothing, asks_for_other_form, levelled, problem_of
from opdvr.data.tokens import prompt_lengths

COLUMNS = ["prompt", "data_source", "reward_model"]
# As the configuration of training has them (data.max_prompt_length and its template options).
MAX_PROMPT_LENGTH = 1024
ENABLE_THINKING = False
_ROWS_NAMED = 10
# From here on comparing gold answers takes a while, and one line says what is going on.
_MANY_GOLDS = 2000
NEW = "--output NEW.parquet"


@dataclass(frozen=True)
class Finding:
    """One kind of mistake in one file; a note needs no action.

    `rows` are numbers from 0, none where the file as a whole is meant.
    """

    file: str
    kind: str
    text: str
    rows: tuple[int, ...] = ()
    is_note: bool = False

    def line(self, all_rows: bool = False) -> str:
        """FILE: KIND: N rows: 3, 17, 40 …: what is wrong; remedy."""
        if not self.rows:
            return f"{self.file}: {self.kind}: {self.text}"
        some = f"{len(self.rows):,} row{'s' if len(self.rows) > 1 else ''}"
        return f"{self.file}: {self.kind}: {some}: {_numbers(self.rows, all_rows)}: {self.text}"


@dataclass(frozen=True)
class TokenLimit:
    """The longest prompt that training takes, under which tokenizer and template option."""

    tokenizer: str
    max_prompt_length: int = MAX_PROMPT_LENGTH
    enable_thinking: bool = ENABLE_THINKING


@dataclass(frozen=True)
class LoadedFile:
    """A file in verl's form; `problems` are without instructions, `contexts` what comes before."""

    name: str
    schema: pa.Schema
    table: pa.Table
    prompts: list[str]
    contexts: list[str]
    problems: list[str]
    golds: list[object]

    def __len__(self) -> int:
        return len(self.prompts)


def load(name: str) -> LoadedFile:
    """Read what the checks need of one file.

    Raises:
        ValueError: the file is not in verl's form, as in `opdvr.data.table`.
    """
    table, schema = read_columns(name, name, COLUMNS)
    prompts = prompt_texts(table["prompt"], name, "prompt").to_pylist()
    parts = [prompt.rpartition(SEPARATOR) for prompt in prompts]
    return LoadedFile(
        name,
        schema,
        table,
        prompts,
        [context for context, _, _ in parts],
        [problem_of(last) for _, _, last in parts],
        gold_values(table["reward_model"]),
    )


def check(
    files: Sequence[str],
    against: Sequence[str] = (),
    limit: TokenLimit | None = None,
    boxes_only: bool = True,
) -> Iterator[Finding]:
    """Findings in these files, as they are found.

    Without `against` each two of the files are searched for common problems; with it, each of the
    files for problems of those, which are themselves only read. `boxes_only`: whether answers
    count in a box only (answer_forms=boxed).

    Raises:
        ValueError: a file is not there, or the tokenizer cannot be used.
    """
    for file in (*files, *against):
        if not Path(file).is_file():
            raise ValueError(f"file not found: {file}")
    loaded: dict[str, list[LoadedFile]] = {"files": [], "against": []}
    for role, names in (("files", files), ("against", against)):
        for name in names:
            try:
                loaded[role].append(load(name))
            except ValueError as error:
                yield _not_in_form(name, str(error))
    for file in loaded["files"]:
        yield from _check_golds(file)
        yield from _check_sources(file)
        yield from _check_forms(file, boxes_only)
        yield from _duplicates(file)
        if limit is not None:
            yield from _overlong(file, limit)
    for group in loaded.values():
        for one, other in combinations(group, 2):
            yield from _mixed_schemas(one, other)
    for file, references in _compared(loaded["files"], loaded["against"], bool(against)):
        yield from _overlaps(file, references)


def _compared(
    files: list[LoadedFile], against: list[LoadedFile], has_against: bool
) -> Iterator[tuple[LoadedFile, list[LoadedFile]]]:
    """Which file is searched for the problems of which others."""
    if has_against:
        for file in files:
            yield file, against
        return
    for one, other in combinations(files, 2):
        # In the larger file the smaller one's: that is training data and test data as a rule.
        larger, smaller = (one, other) if len(one.problems) >= len(other.problems) else (other, one)
        yield larger, [smaller]


def _not_in_form(name: str, error: str) -> Finding:
    text = error.removeprefix(name).lstrip(": ")
    remedy = f"{COMMAND} prepare user --source {name} --question-column … --answer-column … {NEW}"
    return Finding(name, "schema", f"{text}; make such a file with: {remedy}")


def _check_golds(file: LoadedFile) -> Iterator[Finding]:
    from opdvr.verifier import check_golds

    if len(file.golds) > _MANY_GOLDS:
        print(f"opdvr data: checking {len(file.golds):,} gold answers", file=sys.stderr, flush=True)
    by_reason: dict[str, list[int]] = {}
    for row, reason in enumerate(check_golds(file.golds)):
        if reason is not None:
            by_reason.setdefault(reason, []).append(row)
    for reason, rows in by_reason.items():
        text = (
            f"the gold answer cannot be scored, {reason}; correct it, or leave such rows out: "
            f"{COMMAND} prepare user --source {file.name} --skip-bad {NEW}"
        )
        yield Finding(file.name, "gold", text, tuple(rows))


def _check_sources(file: LoadedFile) -> Iterator[Finding]:
    sources = file.table["data_source"].to_pylist()
    unnamed = tuple(row for row, source in enumerate(sources) if not source)
    if unnamed:
        remedy = f"{COMMAND} prepare user --source {file.name} --data-source NAME {NEW}"
        yield Finding(file.name, "data_source", f"none; name it: {remedy}", unnamed)


def _check_forms(file: LoadedFile, boxes_only: bool) -> Iterator[Finding]:
    other_form = tuple(
        row for row, prompt in enumerate(file.prompts) if asks_for_other_form(prompt)
    )
    if other_form and boxes_only:
        text = (
            f"the prompt asks for {OTHER_FORM!r}, but answers count in \\boxed{{}} only (unless "
            f"ANSWER_FORMS=any); {COMMAND} prepare user --source {file.name} {NEW}"
        )
        yield Finding(file.name, "answer form", text, other_form)
    no_box = tuple(row for row, prompt in enumerate(file.prompts) if asks_for_nothing(prompt))
    if no_box:
        text = (
            "the prompt asks for no \\boxed{}; well where the model boxes its answers unasked, "
            f"else {COMMAND} prepare user --source {file.name} {NEW}"
        )
        yield Finding(file.name, "note", text, no_box, is_note=True)


def _duplicates(file: LoadedFile) -> Iterator[Finding]:
    first: dict[tuple[str, str], int] = {}
    repeats: list[int] = []
    conflicts: list[int] = []
    for row, problem in enumerate(file.problems):
        earlier = first.setdefault((file.contexts[row], levelled(problem)), row)
        if earlier == row:
            continue
        repeats.append(row)
        if not same_answer(file.golds[earlier], file.golds[row]):
            conflicts.append(row)
    if repeats:
        text = (
            f"the problem of an earlier row again ({len(first):,} distinct in "
            f"{len(file.problems):,}); such problems weigh more; "
            f"{COMMAND} prepare user --source {file.name} --deduplicate {NEW}"
        )
        yield Finding(file.name, "duplicate", text, tuple(repeats))
    if conflicts:
        text = "the problem of an earlier row with another gold answer; one of the two is wrong"
        yield Finding(file.name, "conflict", text, tuple(conflicts))


def _overlong(file: LoadedFile, limit: TokenLimit) -> Iterator[Finding]:
    lengths = prompt_lengths(
        file.table["prompt"].to_pylist(), limit.tokenizer, limit.enable_thinking
    )
    rows = tuple(row for row, tokens in enumerate(lengths) if tokens > limit.max_prompt_length)
    if rows:
        text = (
            f"the prompt is over {limit.max_prompt_length} tokens (the longest has {max(lengths)});"
            " training leaves it out; raise MAX_PROMPT_LENGTH, or take it out"
        )
        yield Finding(file.name, "overlong", text, rows)


def _mixed_schemas(one: LoadedFile, other: LoadedFile) -> Iterator[Finding]:
    for path, kind, other_kind in unjoinable_columns(one.schema, other.schema):
        text = (
            f"column {path} is {kind} here and {other_kind} in {other.name}, so one run cannot "
            f"train on both; write each anew: {COMMAND} prepare user --source {one.name} {NEW}"
        )
        yield Finding(one.name, "mixed schemas", text)


def _overlaps(file: LoadedFile, references: list[LoadedFile]) -> Iterator[Finding]:
    places = [(reference.name, row) for reference in references for row in range(len(reference))]
    problems = [problem for reference in references for problem in reference.problems]
    progress = Progress(len(file), f"rows of {file.name} compared with {len(problems):,} others")
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row, match in find_overlaps(progress.over(file.problems), problems).items():
        name, reference_row = places[match.row]
        found.setdefault((match.kind, name), []).append((row, reference_row))
    for (kind, name), pairs in sorted(found.items()):
        there = _numbers(sorted({row for _, row in pairs}), False)
        text = (
            f"{_OVERLAP_TEXTS[kind]} rows {there} of {name}; take such rows out: "
            f"{COMMAND} prepare user --source {file.name} --against {name} {NEW}"
        )
        yield Finding(file.name, f"overlap, {kind}", text, tuple(row for row, _ in pairs))


_OVERLAP_TEXTS = {
    "exact": "the same problem as",
    "contained": "holds the whole problem of",
    "n-gram": "shares long passages with",
}


def _numbers(rows: Sequence[int], all_rows: bool) -> str:
    shown = rows if all_rows else rows[:_ROWS_NAMED]
    return ", ".join(map(str, shown)) + (" …" if len(shown) < len(rows) else "")
