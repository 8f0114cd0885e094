"""Accepted responses as training data: sft.parquet and sft-val.parquet in verl's SFT format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from opdvr.data.files import write_parquet
from opdvr.eval.jsonl import writing
from opdvr.eval.problems import Problem
from opdvr.eval.samples import sample_seed
from opdvr.sft.rollout_attempts import Attempt

TRAIN_FILE, VAL_FILE = "sft.parquet", "sft-val.parquet"
SCHEMA = pa.schema(
    {
        "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "enable_thinking": pa.bool_(),
        "data_source": pa.string(),
        "extra_info": pa.struct(
            {
                "index": pa.int64(),
                "key": pa.string(),
                "slot": pa.int64(),
                "attempt": pa.int64(),
                "tokens": pa.int64(),
            }
        ),
    }
)


@dataclass(frozen=True)
class Row:
    """One accepted response after its prompt.

    Attributes:
        problem: the prompt.
        attempt: the response.
        messages: role and content of the prompt's messages and of the response.
    """

    problem: Problem
    attempt: Attempt
    messages: list[dict[str, str]]


def rows_of(problems: Sequence[Problem], accepted: Iterable[Attempt]) -> list[Row]:
    """Rows in the order of the data, a prompt's in the order of its slots."""
    places = {problem.key: place for place, problem in enumerate(problems)}
    ordered = sorted(accepted, key=lambda attempt: (places[attempt.key], attempt.slot))
    return [_row(problems[places[attempt.key]], attempt) for attempt in ordered]


def _row(problem: Problem, attempt: Attempt) -> Row:
    messages = [
        {"role": message["role"], "content": _encodable(message["content"])}
        for message in problem.messages
    ]
    answer = {"role": "assistant", "content": _encodable(attempt.text)}
    return Row(problem, attempt, [*messages, answer])


def _encodable(text: str) -> str:
    """Without halves of characters, which no file of text can hold."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def split(rows: Sequence[Row], fraction: float, seed: int) -> tuple[list[Row], list[Row]]:
    """(training, validation): a share of the prompts, one at least, is validation's, and one
    at least training's.

    Which ones depends on the seed and the prompt's text alone, so that a prompt which comes twice
    is on one side.

    Args:
        rows: in order, which is kept.
        fraction: of the prompts; 0 for no validation.
        seed: another one chooses other prompts.
    """
    prompts = {_prompt(row) for row in rows}
    count = min(max(1, round(fraction * len(prompts))), len(prompts) - 1) if fraction else 0
    chosen = set(sorted(prompts, key=lambda text: (sample_seed(seed, text, 0), text))[:count])
    train = [row for row in rows if _prompt(row) not in chosen]
    return train, [row for row in rows if _prompt(row) in chosen]


def _prompt(row: Row) -> str:
    return json.dumps(row.messages[:-1])


def write_verl(folder: Path, train: Sequence[Row], val: Sequence[Row], thinking: bool) -> None:
    """Write sft.parquet and, where there are rows for it, sft-val.parquet.

    Raises:
        ValueError: the operating system refuses to write.
    """
    for name, rows in ((TRAIN_FILE, train), (VAL_FILE, val)):
        if rows:
            contents = [_content(row, thinking) for row in rows]
            write_parquet(pa.Table.from_pylist(contents, SCHEMA), folder / name)
        else:
            remove(folder / name)


def remove(path: Path) -> None:
    """Take away what an earlier export left and this one does not have."""
    with writing(path):
        path.unlink(missing_ok=True)


def _content(row: Row, thinking: bool) -> dict[str, Any]:
    return {
        "messages": row.messages,
        "enable_thinking": thinking,
        "data_source": row.problem.data_source,
        "extra_info": {
            "index": row.problem.row,
            "key": row.problem.key,
            "slot": row.attempt.slot,
            "attempt": row.attempt.attempt,
            "tokens": row.attempt.tokens,
        },
    }


def say_exports(
    folder: Path, train: Sequence[Row], val: Sequence[Row], say: Callable[[str], None]
) -> None:
    """A line about what was written."""
    line = f"{folder / TRAIN_FILE} ({len(train):,} rows)"
    if val:
        line += f", {VAL_FILE} ({len(val):,})"
    say(f"{line}, llamafactory/, counts.json")
