"""`opdvr data check`: what is wrong with data files, by row."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from opdvr.data.clean import same_answer
from opdvr.data.loaded import Finding, LoadedFile, load
from opdvr.data.overlap import find_overlaps
from opdvr.data.progress import Progress
from opdvr.data.table import rewrite, unjoinable_columns
from opdvr.data.text import OTHER_FORM, asks_for_nothing, asks_for_other_form, levelled
from opdvr.data.tokens import load_tokenizer, prompt_lengths
from opdvr.data.wording import row_numbers

# As the configuration of training has them (data.max_prompt_length and its template options).
MAX_PROMPT_LENGTH = 1024
ENABLE_THINKING = False
# From here on comparing gold answers takes a while, and one line says what is going on.
_MANY_GOLDS = 2000


@dataclass(frozen=True)
class TokenLimit:
    """The longest prompt that training takes, under which tokenizer and template option."""

    tokenizer: str
    max_prompt_length: int = MAX_PROMPT_LENGTH
    enable_thinking: bool = ENABLE_THINKING


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
        ValueError: a file is not there or given twice, or the tokenizer cannot be used.
    """
    _refuse_names([*files, *against])
    measure = None if limit is None else _overlong(limit)
    loaded: dict[str, list[LoadedFile]] = {"files": [], "against": []}
    for role, names in (("files", files), ("against", against)):
        for name in names:
            file, findings = load(name)
            yield from findings
            if file is not None:
                loaded[role].append(file)
    for file in loaded["files"]:
        yield from _check_golds(file)
        yield from _check_sources(file)
        yield from _check_forms(file, boxes_only)
        yield from _duplicates(file)
        if measure is not None:
            yield from measure(file)
    for group in loaded.values():
        for one, other in combinations(group, 2):
            yield from _mixed_schemas(one, other)
    for file, references in _compared(loaded["files"], loaded["against"], bool(against)):
        yield from _overlaps(file, references)


def _refuse_names(names: Sequence[str]) -> None:
    seen: set[Path] = set()
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            raise ValueError(f"{name} is a folder; name its files")
        if not path.is_file():
            raise ValueError(f"file not found: {name}")
        if path.resolve() in seen:
            raise ValueError(f"{name} is given twice; name each file once")
        seen.add(path.resolve())


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
            f"{rewrite(file.name, '--skip-bad')}"
        )
        yield file.finding("gold", text, rows)


def _check_sources(file: LoadedFile) -> Iterator[Finding]:
    sources = file.table["data_source"].to_pylist()
    unnamed = [row for row, source in enumerate(sources) if not source]
    if unnamed:
        remedy = rewrite(file.name, "--data-source NAME")
        yield file.finding("data_source", f"none; name it: {remedy}", unnamed)


def _check_forms(file: LoadedFile, boxes_only: bool) -> Iterator[Finding]:
    other_form = [row for row, prompt in enumerate(file.prompts) if asks_for_other_form(prompt)]
    if other_form and boxes_only:
        text = (
            f"the prompt asks for {OTHER_FORM!r}, but answers count in \\boxed{{}} only (unless "
            f"ANSWER_FORMS=any); {rewrite(file.name)}"
        )
        yield file.finding("answer form", text, other_form)
    no_box = [row for row, prompt in enumerate(file.prompts) if asks_for_nothing(prompt)]
    if no_box:
        text = (
            "the prompt asks for no \\boxed{}; well where the model boxes its answers unasked, "
            f"else {rewrite(file.name)}"
        )
        yield file.finding("note", text, no_box, is_note=True)


def _duplicates(file: LoadedFile) -> Iterator[Finding]:
    first: dict[tuple[str, str], int] = {}
    repeats: list[int] = []
    conflicts: list[int] = []
    for row, problem in enumerate(file.problems):
        earlier = first.setdefault((file.contexts[row], levelled(problem)), row)
        if earlier == row:
            continue
        same = same_answer(file.golds[earlier], file.golds[row])
        (repeats if same else conflicts).append(row)
    if repeats:
        text = (
            f"the problem of an earlier row again ({len(first):,} distinct in "
            f"{len(file.problems):,}); such problems weigh more; "
            f"{rewrite(file.name, '--deduplicate')}"
        )
        yield file.finding("duplicate", text, repeats)
    if conflicts:
        text = (
            "the problem of an earlier row with another gold answer; one of the two is wrong; "
            f"correct it, or leave both out: {rewrite(file.name, '--deduplicate')}"
        )
        yield file.finding("conflict", text, conflicts)


def _overlong(limit: TokenLimit) -> Callable[[LoadedFile], Iterator[Finding]]:
    """Finds long prompts. The tokenizer is loaded here, before any file is read."""
    tokenizer = load_tokenizer(limit.tokenizer)

    def measure(file: LoadedFile) -> Iterator[Finding]:
        lengths = prompt_lengths(file.table["prompt"].to_pylist(), tokenizer, limit.enable_thinking)
        rows = [row for row, tokens in enumerate(lengths) if tokens > limit.max_prompt_length]
        if rows:
            text = (
                f"the prompt is over {limit.max_prompt_length} tokens (the longest has "
                f"{max(lengths)}); training leaves it out; raise MAX_PROMPT_LENGTH, or take it out"
            )
            yield file.finding("overlong", text, rows)

    return measure


def _mixed_schemas(one: LoadedFile, other: LoadedFile) -> Iterator[Finding]:
    for path, kind, other_kind in unjoinable_columns(one.schema, other.schema):
        text = (
            f"column {path} is {kind} here and {other_kind} in {other.name}, so one run cannot "
            f"train on both; write each anew: {rewrite(one.name)}"
        )
        yield Finding(one.name, "mixed schemas", text)


def _overlaps(file: LoadedFile, references: list[LoadedFile]) -> Iterator[Finding]:
    places = [(reference.name, row) for reference in references for row in reference.numbers]
    problems = [problem for reference in references for problem in reference.problems]
    progress = Progress(len(file), f"rows of {file.name} compared with {len(problems):,} others")
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row, match in find_overlaps(progress.over(file.problems), problems).items():
        name, reference_row = places[match.row]
        found.setdefault((match.kind, name), []).append((row, reference_row))
    for (kind, name), pairs in sorted(found.items()):
        there = sorted({row for _, row in pairs})
        text = (
            f"{_OVERLAP_TEXTS[kind]} row{'s' if len(there) > 1 else ''} {row_numbers(there)} of "
            f"{name}; take such rows out: {rewrite(file.name, f'--against {shlex.quote(name)}')}"
        )
        yield file.finding(f"overlap, {kind}", text, [row for row, _ in pairs])


_OVERLAP_TEXTS = {
    "exact": "the same problem as",
    "contained": "holds the whole problem of",
    "n-gram": "shares long passages with",
}
