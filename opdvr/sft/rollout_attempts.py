"""rollouts.jsonl and rejected.jsonl: every attempt, so that a killed rollout goes on from there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from opdvr.eval.jsonl import damaged, read_lines
from opdvr.eval.samples import sample_seed
from opdvr.sft.rejection import REASONS

ACCEPTED_FILE = "rollouts.jsonl"
REJECTED_FILE = "rejected.jsonl"


@dataclass(frozen=True)
class Attempt:
    """One line of either file.

    Attributes:
        key: the prompt's.
        slot: which of the prompt's responses it was to be, 0 to n - 1.
        attempt: 0 for the slot's first.
        seed: what its random numbers started from; None when decoded greedily.
        tokens: sampled tokens, the end token included.
        finish: "stop", or "length" for a completion that was cut.
        reason: why it was rejected; None for an accepted one.
        text: the completion without special tokens.
    """

    key: str
    slot: int
    attempt: int
    seed: int | None
    tokens: int
    finish: str
    reason: str | None
    text: str


_TYPES = get_type_hints(Attempt)


def attempt_seed(seed: int, key: str, slot: int, attempt: int) -> int:
    """The seed of one attempt: the same in a resumed rollout, another for every other attempt."""
    return sample_seed(seed, f"{key}/{slot}", attempt)


@dataclass
class Written:
    """What the two files hold.

    Attributes:
        attempts: of each slot (key, slot) that was tried, how often.
        accepted: the slots that are filled.
    """

    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    accepted: set[tuple[str, int]] = field(default_factory=set)


def read_written(folder: Path, keys: Collection[str], n: int, attempts: int) -> Written:
    """Read both files, with a torn last line set aside.

    Args:
        folder: the rollout's.
        keys: of its prompts.
        n: slots a prompt.
        attempts: at most, a slot.

    Raises:
        ValueError: a line is damaged, none of this rollout's, there twice, or one is missing.
    """
    tries: dict[tuple[str, int], list[int]] = {}
    found = Written()
    for name in (ACCEPTED_FILE, REJECTED_FILE):
        for number, attempt in _numbered(folder / name, repair=True):
            slot = (attempt.key, attempt.slot)
            which = f"attempt {attempt.attempt} of slot {attempt.slot} of {attempt.key}"
            if attempt.key not in keys or attempt.slot not in range(n):
                raise damaged(folder / name, number, f"{which} is not of this rollout")
            if attempt.attempt in tries.get(slot, ()):
                raise damaged(folder / name, number, f"{which} twice")
            tries.setdefault(slot, []).append(attempt.attempt)
            if attempt.reason is None:
                found.accepted.add(slot)
    for slot, made in tries.items():
        if sorted(made) != list(range(len(made))) or len(made) > attempts:
            raise ValueError(
                f"{folder} has attempts {sorted(made)} of slot {slot[1]} of {slot[0]}, of which "
                "some are missing; restore its files, or choose another --output"
            )
        found.attempts[slot] = len(made)
    return found


def read_attempts(path: Path) -> Iterator[Attempt]:
    """All whole lines of one of the files, in the order written.

    Raises:
        ValueError: a line is damaged.
    """
    for _number, attempt in _numbered(path):
        yield attempt


def _numbered(path: Path, repair: bool = False) -> Iterator[tuple[int, Attempt]]:
    for number, content in read_lines(path, repair):
        yield number, _attempt_of(content, path, number)


def _attempt_of(content: dict[str, Any], path: Path, number: int) -> Attempt:
    """The line's attempt, if it has every field, each of its type, and is in the right file."""
    try:
        attempt = Attempt(**content)
    except TypeError as error:
        raise damaged(path, number, f"no attempt: {error}") from None
    wrong = [name for name, kind in _TYPES.items() if not isinstance(getattr(attempt, name), kind)]
    if wrong:
        raise damaged(path, number, f"no attempt: {', '.join(wrong)} of a wrong type")
    accepted = path.name == ACCEPTED_FILE
    if accepted != (attempt.reason is None) or attempt.reason not in (None, *REASONS):
        raise damaged(path, number, f"reason {attempt.reason!r} does not belong here")
    return attempt
