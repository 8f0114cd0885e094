"""samples.jsonl and run.json: what was sampled, so that a killed evaluation goes on from there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from opdvr.eval.jsonl import read_lines
from opdvr.integration.checkpoints import write_atomically

SAMPLES = "samples.jsonl"
RUN = "run.json"
LOCK = "eval.lock"  # held (flock) by the process that evaluates; the kernel frees it on any death
_SEED_BITS = 62  # fits a signed 64-bit integer
_SHOWN_CHARS = 120


@dataclass(frozen=True)
class Sample:
    """One line of samples.jsonl.

    Attributes:
        key: the problem's.
        sample: 0 to n - 1.
        data_source: the problem's benchmark.
        tokens: sampled tokens, the end token included.
        finish: "stop", or "length" for a completion that was cut.
        seed: what its random numbers started from; None when decoded greedily.
        text: the completion without special tokens.
    """

    key: str
    sample: int
    data_source: str
    tokens: int
    finish: str
    seed: int | None
    text: str


def sample_seed(seed: int, key: str, sample: int) -> int:
    """The seed of one sample: the same in a resumed evaluation, another for every other sample."""
    digest = hashlib.sha256(f"{seed}/{key}/{sample}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)


def hold(folder: Path) -> TextIO:
    """Lock an output folder, made if missing; keep the returned file open.

    Raises:
        ValueError: another process evaluates into it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "w")  # noqa: SIM115  (open as long as the process evaluates)
    except OSError as error:
        raise ValueError(f"--output {folder} cannot be written ({error})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(
            f"another process is evaluating into {folder}; choose another --output"
        ) from None
    return file


def read_samples(path: Path, repair: bool = False) -> Iterator[Sample]:
    """All whole lines of samples.jsonl, in the order written; `repair` as in `read_lines`.

    Raises:
        ValueError: a line is damaged, or a sample is there twice.
    """
    seen: set[tuple[str, int]] = set()
    for number, content in read_lines(path, repair):
        try:
            sample = Sample(**content)
        except TypeError as error:
            raise ValueError(f"{path}, line {number} is no sample ({error})") from None
        if (sample.key, sample.sample) in seen:
            raise ValueError(f"{path}, line {number}: sample {sample.sample} of {sample.key} twice")
        seen.add((sample.key, sample.sample))
        yield sample


def check_settings(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds an evaluation already; if so, with the same settings.

    Of a setting with a name and a fingerprint only the fingerprint has to be the same.

    Raises:
        ValueError: it was begun with other settings: one line that names the first difference.
    """
    if not (folder / RUN).exists():
        if (folder / SAMPLES).exists():
            raise ValueError(f"{folder} has {SAMPLES} but no {RUN}; choose another --output")
        return False
    saved = read_run(folder)["settings"]
    for name in sorted({*saved, *settings}):
        before, now = saved.get(name), settings.get(name)
        if _compared(before) != _compared(now):
            raise ValueError(
                f"{folder} was begun with {name} {_shown(before)}, not {_shown(now)}; choose "
                "another --output"
            )
    return True


def _compared(value: Any) -> Any:  # noqa: ANN401
    return value["fingerprint"] if isinstance(value, dict) else value


def _shown(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, dict):
        return f"{value['name']} ({value['fingerprint'][:8]})"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def read_run(folder: Path) -> dict[str, Any]:
    """The content of run.json.

    Raises:
        ValueError: the folder holds no evaluation, or a damaged one.
    """
    path = folder / RUN
    if not path.is_file():
        raise ValueError(f"{folder} holds no evaluation (it has no {RUN})")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error})") from None


def write_run(folder: Path, settings: dict[str, Any], details: dict[str, Any]) -> None:
    """Write run.json: the settings that a resume must repeat, and what is good to know besides."""
    content = {"settings": settings, "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **details}
    write_atomically(folder / RUN, json.dumps(content, indent=2, ensure_ascii=False))


def missing_samples(
    keys: Iterable[str], n: int, done: Collection[tuple[str, int]]
) -> list[tuple[int, int]]:
    """(place of the problem, sample index) of what is not `done`, problem by problem."""
    return [
        (place, index)
        for place, key in enumerate(keys)
        for index in range(n)
        if (key, index) not in done
    ]
