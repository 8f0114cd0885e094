"""From parquet files of conversations to token ids on disk, before anything expensive starts.

Every row is read and tokenised here once, so that a bad one is named now and not in the middle of
an epoch; training maps the result into memory.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from opdvr.data.table import read_table
from opdvr.data.wording import how_many, row_numbers
from opdvr.sft.tokens import Conversations

MESSAGES, THINKING = "messages", "enable_thinking"
SCHEMA = pa.schema(
    {"input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.int8()), "row": pa.int64()}
)
_SUMMED = ("rows", "tokens", "loss_tokens", "too_long", "silent_turns", "second_thoughts")
# Rows that one process reads at a time; fewer rows than two such shares are read here.
_SHARE = 1000


@dataclass(frozen=True)
class Reading:
    """How rows become tokens.

    Attributes:
        tokenizer: folder or hub name of the student's.
        max_length: longest row that is kept, tokens.
        template: further keywords of the chat template.
        thinking: for all rows; None takes each row's enable_thinking, off where it has none.
        messages: the column of conversations.
    """

    tokenizer: str
    max_length: int
    template: dict[str, Any] = field(default_factory=dict)
    thinking: bool | None = None
    messages: str = MESSAGES
    trust_remote_code: bool = False


@dataclass
class Prepared:
    """What came out.

    Attributes:
        rows: kept.
        tokens: of all kept rows.
        loss_tokens: of these, those that carry the loss.
        longest: tokens of the longest kept row.
        too_long: rows left out, and the tokens of the longest of them.
        silent_turns: earlier turns of the assistant that carry no loss.
        second_thoughts: rows with a thought in the response and an empty one before it.
        end_ids: the tokens that end a response.
    """

    rows: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    longest: int = 0
    too_long: int = 0
    longest_left_out: int = 0
    silent_turns: int = 0
    second_thoughts: int = 0
    end_ids: tuple[int, ...] = ()

    def lines(self, option: str) -> list[str]:
        """What a person should know, one line each."""
        found = [
            f"{option}: {how_many(self.rows, 'row')}, {self.tokens:,} tokens of which "
            f"{self.loss_tokens:,} carry the loss, {self.longest:,} in the longest row"
        ]
        if self.too_long:
            found.append(
                f"{option}: left out {how_many(self.too_long, 'row')} over MAX_LENGTH "
                f"(data.max_length), of up to {self.longest_left_out:,} tokens"
            )
        if self.silent_turns:
            found.append(
                f"{option}: {how_many(self.silent_turns, 'earlier turn')} of the assistant without "
                "loss: the chat template shows them otherwise than they were written"
            )
        if self.second_thoughts:
            rows = how_many(self.second_thoughts, "row")
            found.append(
                f"{option}: {rows} with a thought (<think>) in the response while thinking is off, "
                "so that the prompt holds an empty one before it; set THINKING=True "
                "(sft.thinking), or write enable_thinking into the rows"
            )
        return found


def load_tokenizer(source: str, trust_remote_code: bool = False) -> Any:  # noqa: ANN401
    """The student's tokenizer.

    Raises:
        ValueError: there is none that loads.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"ACTOR_MODEL_PATH (model.path): {source} has no usable tokenizer: {reason}"
        ) from None


def prepare(files: list[str], option: str, target: Path, reading: Reading) -> Prepared:
    """Tokenise all rows of `files` into the Arrow file `target` (SCHEMA), which appears at once.

    Args:
        files: parquet or JSON with a column of messages.
        option: what messages call the files.
        target: the file to write; its folder exists.
        reading: how to read them.

    Raises:
        ValueError: one line: a file or its column is missing, rows cannot be learnt from (named),
            or all are too long.
    """
    conversations = Conversations(
        load_tokenizer(reading.tokenizer, reading.trust_remote_code), reading.template
    )
    done = Prepared(end_ids=tuple(conversations.end_ids))
    temporary = target.with_name(target.name + ".tmp")
    try:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for file in files:
                shares = _shares(file, option, reading)
                for kept in _tokenised(shares, conversations, reading, f"{option}: {file}", done):
                    writer.write_batch(kept)
        if not done.rows:
            raise ValueError(
                f"{option}: all {how_many(done.too_long, 'row')} are longer than MAX_LENGTH "
                f"(data.max_length) = {reading.max_length}; raise it to {done.longest_left_out}"
            )
        os.replace(temporary, target)
    except OSError as error:
        raise ValueError(
            f"{target} cannot be written ({error.strerror or error}); free space, or set "
            "FINAL_CKPT_DIR (trainer.default_local_dir)"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    return done


def _shares(file: str, option: str, reading: Reading) -> list[tuple[int, list[dict[str, Any]]]]:
    """(number of its first row, rows) of each share of a file."""
    where = f"{option}: {file}"
    if "://" in file:
        raise ValueError(f"{where} is remote; copy it here, and give the local file")
    if not Path(file).expanduser().is_file():
        raise ValueError(f"{option}: data file not found: {file}")
    table, schema = read_table(file, where, [reading.messages, THINKING])
    if reading.messages not in table.column_names:
        raise ValueError(
            f"{where} has no column {reading.messages!r} (it has {', '.join(schema.names)}); make "
            "it with `opdvr sft rollout`, or name its column by data.messages_key"
        )
    rows = table.to_pylist()
    return [(start, rows[start : start + _SHARE]) for start in range(0, len(rows), _SHARE)]


def _tokenised(
    shares: list[tuple[int, list[dict[str, Any]]]],
    conversations: Conversations,
    reading: Reading,
    where: str,
    done: Prepared,
) -> Iterator[pa.RecordBatch]:
    if len(shares) <= 2:
        results: Iterator[Any] = (_read_share(share, conversations, reading) for share in shares)
        yield from _collected(results, where, done)
        return
    processes = min(len(shares), len(os.sched_getaffinity(0)))
    # Not by fork: a tokenizer that has run holds threads.
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _start_reader, (reading,)) as pool:
        yield from _collected(pool.imap(_read_share_there, shares), where, done)


def _collected(results: Iterator[Any], where: str, done: Prepared) -> Iterator[pa.RecordBatch]:
    for batch, counts, bad in results:
        if bad:
            numbers, reason = [row for row, _ in bad], bad[0][1]
            raise ValueError(
                f"{where}: {how_many(len(bad), 'row')} cannot be learnt from, rows "
                f"{row_numbers(numbers)} (from 0): {reason}; leave them out"
            )
        done.longest = max(done.longest, counts.longest)
        done.longest_left_out = max(done.longest_left_out, counts.longest_left_out)
        for name in _SUMMED:
            setattr(done, name, getattr(done, name) + getattr(counts, name))
        yield batch


_reader: tuple[Conversations, Reading] | None = None


def _start_reader(reading: Reading) -> None:
    global _reader
    tokenizer = load_tokenizer(reading.tokenizer, reading.trust_remote_code)
    _reader = Conversations(tokenizer, reading.template), reading


def _read_share_there(share: tuple[int, list[dict[str, Any]]]) -> tuple:
    assert _reader is not None
    return _read_share(share, *_reader)


def _read_share(
    share: tuple[int, list[dict[str, Any]]], conversations: Conversations, reading: Reading
) -> tuple[pa.RecordBatch, Prepared, list[tuple[int, str]]]:
    """(tokens, counts, rows that cannot be learnt from with the reason) of a share."""
    start, rows = share
    counts = Prepared()
    kept: dict[str, list] = {name: [] for name in SCHEMA.names}
    bad: list[tuple[int, str]] = []
    for number, row in enumerate(rows, start=start):
        thinking = bool(row.get(THINKING)) if reading.thinking is None else reading.thinking
        try:
            example = conversations.example(_messages(row[reading.messages]), thinking)
        except ValueError as reason:
            bad.append((number, str(reason)))
            continue
        length = len(example.input_ids)
        if length > reading.max_length:
            counts.too_long += 1
            counts.longest_left_out = max(counts.longest_left_out, length)
            continue
        counts.rows += 1
        counts.tokens += length
        counts.loss_tokens += sum(example.loss_mask)
        counts.longest = max(counts.longest, length)
        counts.silent_turns += example.silent_turns
        counts.second_thoughts += example.second_thought
        for name, value in zip(
            SCHEMA.names, (example.input_ids, example.loss_mask, number), strict=True
        ):
            kept[name].append(value)
    return pa.RecordBatch.from_pydict(kept, schema=SCHEMA), counts, bad


def _messages(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Messages without the fields that only other rows of the file have."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise ValueError("it is no list of messages")
    return [
        {name: field for name, field in message.items() if field is not None} for message in value
    ]
