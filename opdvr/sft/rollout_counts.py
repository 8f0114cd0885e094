"""What became of a rollout: how many responses, why the others were rejected, what it cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from opdvr.eval.jsonl import write_whole
from opdvr.eval.problems import Problem
from opdvr.sft.rejection import REASONS
from opdvr.sft.rollout_attempts import Attempt

COUNTS_FILE = "counts.json"


@dataclass(frozen=True)
class Counts:
    """The content of counts.json.

    Attributes:
        prompts: of the data.
        slots: responses that were wanted: n a prompt.
        accepted: slots that are filled.
        exhausted: slots of which every attempt was rejected.
        attempts: completions that were sampled; accepted and rejected ones together.
        rejected: attempts by the first reason that held.
        tokens: sampled tokens of all attempts.
        accepted_tokens: those of accepted ones.
        seconds: of sampling, over all the processes that worked on it.
        judged: prompts with a gold answer, whose responses were verified.
    """

    prompts: int
    slots: int
    accepted: int
    exhausted: int
    attempts: int
    rejected: dict[str, int]
    tokens: int
    accepted_tokens: int
    seconds: float
    judged: int


def count(
    problems: Sequence[Problem],
    n: int,
    accepted: Iterable[Attempt],
    rejected: Iterable[Attempt],
    seconds: float,
) -> Counts:
    """The counts of a rollout that is at its end, from the lines of its two files."""
    slots = len(problems) * n
    filled, accepted_tokens, other_tokens = 0, 0, 0
    reasons: Counter[str | None] = Counter()
    for attempt in accepted:
        filled += 1
        accepted_tokens += attempt.tokens
    for attempt in rejected:
        reasons[attempt.reason] += 1
        other_tokens += attempt.tokens
    return Counts(
        prompts=len(problems),
        slots=slots,
        accepted=filled,
        exhausted=slots - filled,
        attempts=filled + reasons.total(),
        rejected={reason: reasons[reason] for reason in REASONS},
        tokens=accepted_tokens + other_tokens,
        accepted_tokens=accepted_tokens,
        seconds=round(seconds, 1),
        judged=sum(problem.gold is not None for problem in problems),
    )


def write_counts(folder: Path, counts: Counts) -> None:
    """Write counts.json, or raise `Unwritable`."""
    write_whole(folder / COUNTS_FILE, json.dumps(asdict(counts), indent=2) + "\n")


def render(counts: Counts) -> str:
    """The table that is printed at the end."""
    lines = [
        "| responses | count | share |",
        "| --------- | ----- | ----- |",
        _line("wanted", counts.slots, counts.slots),
        _line("accepted", counts.accepted, counts.slots),
        _line("given up", counts.exhausted, counts.slots),
        "",
        "| attempts | count | share |",
        "| -------- | ----- | ----- |",
        _line("sampled", counts.attempts, counts.attempts),
        _line("accepted", counts.accepted, counts.attempts),
    ]
    lines += [_line(name, number, counts.attempts) for name, number in counts.rejected.items()]
    rate = counts.tokens / counts.seconds if counts.seconds else 0.0
    lines += [
        "",
        f"{counts.tokens:,} tokens sampled in {counts.seconds:,.1f} s ({rate:,.0f} tok/s); "
        f"{counts.accepted_tokens:,} of them accepted",
    ]
    return "\n".join(_aligned(lines))


def _line(name: str, number: int, total: int) -> str:
    return f"| {name} | {number:,} | {number / total if total else 0:.1%} |"


def _aligned(lines: list[str]) -> list[str]:
    """Rows of tables with columns of one width, numbers to the right."""
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    aligned = []
    for line in lines:
        if not line.startswith("|"):
            aligned.append(line)
            continue
        name, number, share = line.strip("| ").split(" | ")
        if set(name) == {"-"}:
            cells = ["-" * width for width in widths]
        else:
            cells = [name.ljust(widths[0]), number.rjust(widths[1]), share.rjust(widths[2])]
        aligned.append(f"| {' | '.join(cells)} |")
    return aligned
