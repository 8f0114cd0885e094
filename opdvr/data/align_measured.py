"""C.measured.jsonl: what was measured on each prompt, written as it comes and read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdvr.diagnose.prompt_measure import PromptMeasure

_SHOWN_CHARS = 80


def measured_file(output: Path) -> Path:
    """Where the measures of a data file go."""
    return output.with_suffix(".measured.jsonl")


def read_measured(
    path: Path, repair: bool = False
) -> tuple[dict[str, Any] | None, dict[int, PromptMeasure]]:
    """The settings on the first line, and the measures by row; (None, {}) where there is no file.

    Args:
        repair: set a torn last line aside, as a kill leaves it.

    Raises:
        ValueError: a line is damaged, or none of ours.
    """
    from opdvr.diagnose.prompt_measure import PromptMeasure
    from opdvr.eval.jsonl import damaged, read_lines

    settings: dict[str, Any] | None = None
    measures: dict[int, PromptMeasure] = {}
    for number, line in read_lines(path, repair):
        if settings is None:
            if "settings" not in line:
                raise damaged(path, number, "no settings", "give a .measured.jsonl")
            settings = line["settings"]
            continue
        try:
            measure = PromptMeasure.from_json(line)
        except TypeError as error:
            raise damaged(path, number, str(error)) from None
        measures[measure.row] = measure
    return settings, measures


def require_same(path: Path, found: dict[str, Any], wanted: dict[str, Any], remedy: str) -> None:
    """Raise ValueError, with the first setting that differs, for measures of something else."""
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ValueError(
                f"{path} was measured with {name} {_shown(found.get(name))}, not {_shown(value)}; "
                f"{remedy}"
            )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


@contextmanager
def mistakes_of_the_disk() -> Iterator[None]:
    """A file that cannot be written is refused as other mistakes are."""
    from opdvr.eval.jsonl import Unwritable

    try:
        yield
    except Unwritable as error:
        raise ValueError(str(error)) from None
