"""The folder of a run: its configs, versions, code state, and metrics.jsonl.

The folder is the one that verl keeps its `global_step_<N>` checkpoints in. Written here:

| file | what it holds |
| --- | --- |
| config.yaml | the resolved config, secrets redacted |
| versions.json | package versions, host, cores, start time, command line |
| git.json, git.diff | commit, branch, dirty or not; the uncommitted changes of tracked files |
| config.1.yaml, versions.1.json, ... | the same of earlier starts in this folder, 1 the first |
| metrics.jsonl | one JSON object a step, in step order |
| anatomy.jsonl, token_samples.jsonl, validation.jsonl | what the report shows beside them |
| alarms.jsonl | what the watchdogs said, a line each |
| metrics.discarded.jsonl | lines of steps that a later start went back behind |
"""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import opdvr
from opdvr.report.metrics import python_number
from opdvr.report.provenance import collect_git, collect_versions
from opdvr.report.redact import plain_config
from opdvr.report.step_records import (
    RECORD_NAMES,
    append_bytes,
    append_record,
    json_lines,
    keep_steps,
    parse_records,
    utf8,
    write_atomically,
)

METRICS_NAME = "metrics.jsonl"
DISCARDED_NAME = "metrics.discarded.jsonl"
# What every start writes anew, after moving the earlier start's aside.
_START_FILES = ("config.yaml", "versions.json", "git.json", "git.diff")
# Keys of a metrics.jsonl line that are not metrics.
_OWN_KEYS = ("step", "time", "non_finite")


class RunFolder:
    """Writes one run's folder. One process writes; any number may read meanwhile.

    Args:
        path: The run's folder, `checkpoints/<EXPERIMENT_NAME>`.
        source_dir: The code whose git state is recorded; by default the opdvr package.
    """

    def __init__(self, path: Path | str, source_dir: Path | str | None = None) -> None:
        self.path = Path(path)
        self._source_dir = Path(source_dir or opdvr.__path__[0]).resolve()
        # The last object of metrics.jsonl ({} for none); None while the file's end is unknown.
        self._last: dict[str, Any] | None = None

    def open(
        self,
        resolved_config: Mapping[str, Any],
        command: Sequence[str],
        resumed_step: int | None,
    ) -> "RunFolder":
        """Creates the folder, or takes up one that holds an earlier start, and describes the run.

        Files of an earlier start are renamed to the next free number, never overwritten. Metrics
        of steps after `resumed_step` (all of them, when the run starts afresh) move to
        metrics.discarded.jsonl, since the run now repeats those steps; the other files' lines of
        them are dropped.

        Args:
            resolved_config: Plain containers; see `plain_config` for what becomes of the rest.
            command: The command line, as in `sys.argv`.
            resumed_step: The checkpoint's step that training goes on from; None for a fresh run.

        Returns:
            This object.

        Raises:
            ValueError: The path is taken by a file, `resumed_step` is negative, or metrics.jsonl
                is damaged before its last line.
        """
        if resumed_step is not None and resumed_step < 0:
            raise ValueError(f"resumed_step is {resumed_step}: give a step of 0 or more, or None")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: move it, or choose another EXPERIMENT_NAME")
        self.path.mkdir(parents=True, exist_ok=True)
        self._keep_earlier_start()
        config = yaml.safe_dump(plain_config(resolved_config), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / "config.yaml", config.encode())
        write_atomically(self.path / "versions.json", _pretty(collect_versions(command)))
        git_record, git_diff = collect_git(self._source_dir)
        write_atomically(self.path / "git.json", _pretty(git_record))
        if git_diff is not None:
            write_atomically(self.path / "git.diff", git_diff)
        last_step = -1 if resumed_step is None else resumed_step
        self._discard_after(last_step)
        for name in RECORD_NAMES:
            keep_steps(self.path / name, last_step)
        return self

    def append_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds a step's metrics to metrics.jsonl as one line, on disk when this returns.

        The line holds "step", "time" (unix seconds) and each scalar metric under its own name.
        NaN and infinities, which JSON has no form for, become null, and "non_finite" lists their
        names. Values that are not scalars are left out. A step logged twice (say, validation and
        training apart) stays one line: the metrics are joined, the newer value wins.

        Raises:
            ValueError: The step comes before the last one logged, or a metric has one of the
                line's own names.
        """
        step = int(step)
        last = self._load_last()
        line = {"step": step, "time": round(time.time(), 3), **_json_metrics(metrics)}
        if last and step < last["step"]:
            raise ValueError(
                f"{self.path / METRICS_NAME} is at step {last['step']} and cannot take step {step}:"
                f" open the run folder with resumed_step={max(step - 1, 0)} to go back"
            )
        # Until the write is through, the file's end is unknown: a full disk may cut the line.
        self._last = None
        if last and step == last["step"]:
            line = _joined(last, line)
            self._replace_last_line(line)
        else:
            append_bytes(self.path / METRICS_NAME, json_lines(line))
        self._last = line

    def append_record(self, name: str, record: Mapping[str, Any]) -> None:
        """Adds a line to one of the files beside metrics.jsonl, on disk when this returns."""
        assert name in RECORD_NAMES, name
        append_record(self.path / name, record)

    def _keep_earlier_start(self) -> None:
        numbered = re.compile(r"(?:config|versions|git)\.(\d+)\.(?:yaml|json|diff)")
        matches = [numbered.fullmatch(entry.name) for entry in self.path.iterdir()]
        number = 1 + max((int(match[1]) for match in matches if match), default=0)
        for name in _START_FILES:
            file = self.path / name
            if file.exists():
                file.rename(self.path / f"{file.stem}.{number}{file.suffix}")

    def _load_last(self) -> dict[str, Any]:
        if self._last is None:
            self.path.mkdir(parents=True, exist_ok=True)
            records = self._repaired_records()
            self._last = records[-1] if records else {}
        return self._last

    def _repaired_records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, after mending a last one that was cut while written.

        A whole object that lacks only its newline gets one; a torn one moves, as the text it
        is, to metrics.discarded.jsonl.
        """
        file = self.path / METRICS_NAME
        content = file.read_bytes() if file.exists() else b""
        records, torn = parse_records(content, file, step_needed=True)
        if torn:
            append_bytes(self.path / DISCARDED_NAME, json_lines({"torn": torn}))
        repaired = json_lines(*records)
        if torn or (content and not content.endswith(b"\n")):
            write_atomically(file, repaired)
        return records

    def _discard_after(self, resumed_step: int) -> None:
        records = self._repaired_records()
        kept = [record for record in records if record["step"] <= resumed_step]
        discarded = [record for record in records if record["step"] > resumed_step]
        if discarded:
            # In this order a crash in between leaves lines twice, never lost.
            append_bytes(self.path / DISCARDED_NAME, json_lines(*discarded))
            write_atomically(self.path / METRICS_NAME, json_lines(*kept))
        self._last = kept[-1] if kept else {}

    def _replace_last_line(self, line: Mapping[str, Any]) -> None:
        file = self.path / METRICS_NAME
        records = read_metrics(file)
        write_atomically(file, json_lines(*records[:-1], line))


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The objects of a metrics.jsonl, one a step, in step order.

    Args:
        path: The file, or the run folder that holds it.

    Returns:
        What was logged; a metric that was NaN or infinite is None. A last line that is still
        being written, or was cut by a crash, is left out.

    Raises:
        ValueError: There is no such file, or a line before the last is damaged.
    """
    file = Path(path)
    if file.is_dir():
        file = file / METRICS_NAME
    if not file.is_file():
        raise ValueError(f"{file} does not exist: give the folder of a run that logged a step")
    return parse_records(file.read_bytes(), file, step_needed=True)[0]


def _json_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    non_finite = []
    for name, value in metrics.items():
        if name in _OWN_KEYS:
            raise ValueError(f'the metric "{name}" has a name that metrics.jsonl uses: rename it')
        number = python_number(value)
        if number is None:
            continue
        if not math.isfinite(number):
            non_finite.append(name)
            number = None
        converted[name] = number
    return {**converted, "non_finite": non_finite} if non_finite else converted


def _joined(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    joined = {**earlier, **later}
    non_finite = [name for name, value in joined.items() if value is None]
    joined.pop("non_finite", None)
    return {**joined, "non_finite": non_finite} if non_finite else joined


def _pretty(record: Mapping[str, Any]) -> bytes:
    return utf8(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
