"""Records of any file as rows of ours: where problem and answer stand, and what is neither."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opdvr.data.reading import Broken
from opdvr.data.rows import Place, Row, Unusable
from opdvr.data.table import ROLES
from opdvr.data.text import SUFFIX, problem_of

_ABSENT = object()
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Columns:
    """Where problem, answer and difficulty stand; `a.b` is field b of column a.

    Without question and answer rows are in verl's form: prompt and reward_model.ground_truth.
    """

    question: str | None = None
    answer: str | None = None
    difficulty: str | None = None

    @property
    def verl(self) -> bool:
        """Whether rows are read in verl's form."""
        return self.question is None

    @property
    def needed(self) -> tuple[str, str]:
        """The columns without which a row is none."""
        if self.question is None or self.answer is None:
            return "prompt", "reward_model.ground_truth"
        return self.question, self.answer


class _Unfit(Exception):
    """A record that is no row: the reason, and more about this one."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def to_rows(
    records: Iterable[dict | Broken],
    file: str,
    columns: Columns,
    data_source: str | None,
    split: str,
) -> Iterator[tuple[Row, float | None] | Unusable]:
    """Each record as a row with its difficulty where `columns` names one, or why it is none.

    Args:
        file: how messages and sidecars name the file.
        data_source: the name that rows get; None keeps that of rows in verl's form.
    """
    for number, record in enumerate(records):
        place = Place(file, number)
        if isinstance(record, Broken):
            yield Unusable(place, record.reason, record.content, record.detail, record.line)
            continue
        try:
            row = _row(record, place, columns, data_source, split)
            difficulty = _pick(record, columns.difficulty) if columns.difficulty else None
        except _Unfit as unfit:
            yield Unusable(place, unfit.reason, record, unfit.detail)
        else:
            yield row, difficulty


def strict_rows(
    items: Iterable[tuple[Row, float | None] | Unusable],
) -> Iterator[tuple[Row, float | None]]:
    """The rows of a source in which each record must be one.

    Raises:
        ValueError: the first that is none, by its number.
    """
    for item in items:
        if isinstance(item, Unusable):
            more = f" ({item.detail})" if item.detail else ""
            raise ValueError(
                f"{item.place.file}: row {item.place.row} (the first row is 0): {item.reason}{more}"
            )
        yield item


def refuse_unknown_columns(columns: Columns, records: Sequence[dict], file: str) -> None:
    """Raise ValueError for a column that none of these records has, with those found."""
    for column in columns.needed:
        if records and all(_find(record, column) is _ABSENT for record in records):
            raise ValueError(
                f"{file} lacks the column {column} (found: {_names(records[0])}); name others with "
                "--question-column and --answer-column"
            )


def _row(record: dict, place: Place, columns: Columns, data_source: str | None, split: str) -> Row:
    question, answer = columns.needed
    if columns.verl:
        return _verl_row(record, place, data_source, split)
    name = data_source or Path(place.file).stem
    return Row(
        place=place,
        data_source=name,
        before=(),
        problem=problem_of(_problem(_pick(record, question))),
        rewritten=False,
        gold=_pick(record, answer),
        index=f"{name}-{place.row}",
        split=split,
    )


def _verl_row(record: dict, place: Place, data_source: str | None, split: str) -> Row:
    *before, last = _messages(_pick(record, "prompt"))
    name = data_source or str(record.get("data_source") or Path(place.file).stem)
    extra_info = record.get("extra_info")
    index = extra_info.get("index") if isinstance(extra_info, dict) else None
    text = _problem(last[1])
    problem = problem_of(text)
    return Row(
        place=place,
        data_source=name,
        before=tuple(before),
        problem=problem,
        rewritten=text not in (problem, f"{problem} {SUFFIX}"),
        gold=_pick(record, "reward_model.ground_truth"),
        index=f"{name}-{place.row}" if index is None else str(index),
        split=split,
    )


def _messages(prompt: object) -> list[tuple[str, str]]:
    if not isinstance(prompt, list) or not prompt or not all(isinstance(m, dict) for m in prompt):
        raise _Unfit("prompt is no list of messages", _shown(prompt))
    messages = [(message.get("role"), message.get("content")) for message in prompt]
    for role, content in messages:
        if role not in ROLES:
            raise _Unfit(f"a role that is none of {', '.join(ROLES)}", _shown(role))
        if not isinstance(content, str):
            raise _Unfit("a message's content is no text", _shown(content))
    if messages[-1][0] != "user":
        raise _Unfit("the last message of prompt is not the user's")
    return messages


def _problem(value: object) -> str:
    if value is None:
        raise _Unfit("the problem is null")
    if not isinstance(value, str):
        raise _Unfit("the problem is no text", _shown(value))
    if not value.strip():
        raise _Unfit("the problem is empty")
    return value


def _pick(record: dict, column: str) -> object:
    value = _find(record, column)
    if value is _ABSENT:
        raise _Unfit(f"lacks the column {column}", f"found: {_names(record)}")
    return value


def _find(record: dict, column: str) -> object:
    """The value in `column`, None inside a missing struct; a name with dots wins over a path."""
    if column in record:
        return record[column]
    head = column
    while "." in head:
        head = head.rpartition(".")[0]
        if head not in record:
            continue
        value = record[head]
        if value is None:
            return None
        if isinstance(value, dict):
            found = _find(value, column[len(head) + 1 :])
            if found is not _ABSENT:
                return found
    return _ABSENT


def _names(record: dict) -> str:
    return ", ".join(map(str, record))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
