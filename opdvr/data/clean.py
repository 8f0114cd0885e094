"""Leave rows out of a training set: unusable gold answers, repeats, conflicts, test problems."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opdvr.data.convert import Columns, strict_rows, to_rows
from opdvr.data.files import sha256_of
from opdvr.data.overlap import find_overlaps
from opdvr.data.progress import Progress
from opdvr.data.reading import read_records
from opdvr.data.rows import LeftOut, Removed, Repeats, Row, gold_text
from opdvr.data.text import levelled
from opdvr.verifier import compute_score, validate_gold


def usable_golds(rows: Iterable[Row], removed: list[LeftOut]) -> Iterator[Row]:
    """Rows whose gold the verifier can use, with the gold as text; the others go to `removed`."""
    for row in rows:
        reason = validate_gold(row.gold)
        if reason is not None:
            removed.append(Removed(row, f"gold: {reason}"))
        elif isinstance(row.gold, str):
            yield row
        else:
            yield replace(row, gold=gold_text(row.gold))


def golds_equal_to_themselves(rows: Sequence[Row], removed: list[LeftOut]) -> list[Row]:
    """Rows whose gold the verifier finds equal to itself; the others go to `removed`.

    This reads every gold as mathematics, which takes seconds and hangs on the symbolic engine's
    version, so no file whose bytes are promised is made with it.
    """
    from opdvr.verifier import check_golds

    kept: list[Row] = []
    for row, reason in zip(rows, check_golds([row.gold for row in rows]), strict=True):
        if reason is None:
            kept.append(row)
        else:
            removed.append(Removed(row, f"gold: {reason}"))
    return kept


@dataclass
class _Group:
    """Rows of one problem: the first, one for each other gold answer, the numbers of the rest."""

    first: Row
    others: dict[str, Row] = field(default_factory=dict)
    repeats: list[int] = field(default_factory=list)


def deduplicate(rows: Iterable[Row], removed: list[LeftOut]) -> list[Row]:
    """One row for each problem, the first; none where its rows have different gold answers.

    Problems are the same when their levelled text is; answers when their text is, or when the
    verifier says so (0.5 and 1/2). The rows are of one file; what is left out goes to `removed`.
    """
    groups: dict[str, _Group] = {}
    for row in rows:
        group = groups.setdefault(levelled(row.problem), _Group(row))
        if group.first is row:
            continue
        if row.gold == group.first.gold or row.gold in group.others:
            group.repeats.append(row.place.row)
        else:
            group.others[row.gold] = row
    kept: list[Row] = []
    for group in groups.values():
        first = group.first
        conflict = any(not same_answer(first.gold, gold) for gold in group.others)
        if conflict:
            removed += [
                Removed(row, "conflict", first.place._asdict())
                for row in (first, *group.others.values())
            ]
        else:
            kept.append(first)
            group.repeats += [row.place.row for row in group.others.values()]
        if group.repeats:
            removed.append(Repeats(first.place, group.repeats, conflict))
    return kept


def same_answer(gold: object, other: object) -> bool:
    """Whether two gold answers are equal, as text or to the verifier; unusable ones are not."""
    if gold == other:
        return True
    if validate_gold(gold) is not None or validate_gold(other) is not None:
        return False
    return compute_score("", f"\\boxed{{{gold_text(other)}}}", gold)["score"] > 0


def decontaminate(
    rows: Sequence[Row], references: Sequence[Row], removed: list[LeftOut]
) -> list[Row]:
    """Rows that overlap with no reference problem (`opdvr.data.overlap`).

    Those that do go to `removed`.
    """
    progress = Progress(len(rows), "rows compared with the test problems")
    problems = (row.problem for row in progress.over(rows))
    matches = find_overlaps(problems, [reference.problem for reference in references])
    for number, match in matches.items():
        reference = references[match.row]
        found = {
            **reference.place._asdict(),
            "share": round(match.share, 3),
            "problem": reference.problem,
        }
        removed.append(Removed(rows[number], f"overlap: {match.kind}", found))
    return [row for number, row in enumerate(rows) if number not in matches]


def read_references(files: Sequence[Path]) -> tuple[list[Row], list[dict]]:
    """The problems of test files in verl's form, and name, rows and sha256 of each file."""
    references: list[Row] = []
    origins: list[dict] = []
    for file in files:
        items = to_rows(read_records(file), file.name, Columns(), None, "test")
        rows = [row for row, _ in strict_rows(items)]
        references += rows
        origins.append(
            {
                "name": "test problems that were left out",
                "files": [{"file": file.name, "sha256": sha256_of(file)}],
                "rows": len(rows),
            }
        )
    return references, origins
