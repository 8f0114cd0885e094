"""samples.jsonl and run.json: what was sampled, so that a killed evaluation goes on from there."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, get_type_hints

from opdvr.eval.jsonl import damaged, read_lines, read_object, write_whole
from opdvr.eval.problems import Problem
from opdvr.inference import Completion
from opdvr.report.lock import lock_folder

SAMPLES = "samples.jsonl"
RUN = "run.json"
LOCK = "eval.lock"  # held (flock) by the process that evaluates; the kernel frees it on any death
_SEED_BITS = 62  # fits a signed 64-bit integer
_SHOWN_CHARS = 120
# What scoring reads of run.json and of its settings.
_RUN_KEYS = ("settings", "data", "verifier", "answer_forms", "trainer_validation", "command")
_SETTINGS_KEYS = {"model", "data", "limit", "n", "temperature", "top-p", "max-tokens", "thinking"}


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


def sample_of(problem: Problem, completion: Completion, seed: int | None = None) -> Sample:
    """What was sampled for a problem."""
    return Sample(
        key=problem.key,
        sample=completion.sample,
        data_source=problem.data_source,
        tokens=len(completion.token_ids),
        finish=completion.finish,
        seed=seed,
        text=completion.text,
    )


_TYPES = get_type_hints(Sample)


def sample_seed(seed: int, key: str, sample: int) -> int:
    """The seed of one sample: the same in a resumed evaluation, another for every other sample."""
    digest = hashlib.sha256(f"{seed}/{key}/{sample}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)


def hold(folder: Path) -> TextIO:
    """Lock an output folder, made if missing; keep the returned file open.

    Raises:
        ValueError: another process evaluates into it, or it cannot be written.
    """
    return lock_folder(
        folder,
        LOCK,
        f"--output {folder} cannot be written ({{error}}); free space, make it writable, or "
        "choose another --output",
        f"another process is evaluating into {folder}; wait for it, or choose another --output",
    )


def read_samples(
    path: Path, repair: bool = False, expected: tuple[Collection[str], int] | None = None
) -> Iterator[Sample]:
    """All whole lines of samples.jsonl, in the order written; `repair` as in `read_lines`.

    Args:
        path: of the file.
        repair: set a torn last line aside.
        expected: (the problems' keys, n) of the evaluation whose samples these must be.

    Raises:
        ValueError: a line is damaged, a sample is there twice, or it is none of the evaluation.
    """
    seen: set[tuple[str, int]] = set()
    for number, content in read_lines(path, repair):
        sample = _sample_of(content, path, number)
        if (sample.key, sample.sample) in seen:
            twice = f"sample {sample.sample} of {sample.key} twice"
            raise damaged(path, number, twice)
        seen.add((sample.key, sample.sample))
        if expected is not None:
            keys, n = expected
            if sample.key not in keys or not 0 <= sample.sample < n:
                other = f"sample {sample.sample} of {sample.key} is not of this evaluation"
                raise damaged(path, number, other)
        yield sample


def _sample_of(content: dict[str, Any], path: Path, number: int) -> Sample:
    """The line's sample, if it has every field, each of its type."""
    try:
        sample = Sample(**content)
    except TypeError as error:
        raise damaged(path, number, f"no sample: {error}") from None
    wrong = [name for name, kind in _TYPES.items() if not isinstance(getattr(sample, name), kind)]
    if wrong:
        raise damaged(path, number, f"no sample: {', '.join(wrong)} of a wrong type")
    return sample


def check_settings(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds an evaluation already; if so, with the same settings.

    Of a setting with a name and a fingerprint only the fingerprint has to be the same. Settings
    that are not given are not compared.

    Raises:
        ValueError: it was begun with other settings: one line that names all that differ.
    """
    if not (folder / RUN).exists():
        if (folder / SAMPLES).exists():
            raise ValueError(f"{folder} has {SAMPLES} but no {RUN}; choose another --output")
        return False
    saved = read_run(folder)["settings"]
    differing = [
        f"{name} {_shown(saved.get(name))}, not {_shown(now)}"
        for name, now in sorted(settings.items())
        if _compared(saved.get(name)) != _compared(now)
    ]
    if differing:
        raise ValueError(f"{folder} was begun with {'; '.join(differing)}; choose another --output")
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
    remedy = "restore it, or choose another --output and sample anew"
    run = read_object(path, _RUN_KEYS, remedy)
    if not are_settings(run["settings"]):
        raise ValueError(f"{path} is damaged (its settings are not whole); {remedy}")
    return run


def are_settings(value: Any) -> bool:  # noqa: ANN401
    """Whether it holds what is read of an evaluation's settings."""
    return (
        isinstance(value, dict)
        and _SETTINGS_KEYS <= value.keys()
        and isinstance(value["n"], int)
        and all(isinstance(value[name], dict) for name in ("model", "data"))
        and all({"name", "fingerprint"} <= value[name].keys() for name in ("model", "data"))
    )


def write_run(folder: Path, settings: dict[str, Any], details: dict[str, Any]) -> None:
    """Write run.json: the settings that a resume must repeat, and what is good to know besides."""
    content = {"settings": settings, "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **details}
    write_whole(folder / RUN, json.dumps(content, indent=2, ensure_ascii=False))


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
