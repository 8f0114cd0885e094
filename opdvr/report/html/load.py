"""Run folders read for the page, and runs that differ in nothing but the seed put together."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from opdvr.report.panels import PALETTE
from opdvr.report.run_folder import read_metrics
from opdvr.report.series import Run
from opdvr.report.step_records import (
    ALARMS_NAME,
    ANATOMY_NAME,
    TOKEN_SAMPLE_KEYS,
    TOKEN_SAMPLES_NAME,
    VALIDATION_KEYS,
    VALIDATION_NAME,
    read_records,
    require_keys,
)

MOST_GROUPS = len(PALETTE)
# Options that two runs of one experiment may differ in: names, places, loggers.
_NAMES = frozenset(
    "experiment_name project_name default_local_dir default_hdfs_dir logger rollout_data_dir "
    "validation_data_dir resume_mode resume_from_path".split()
)
_SEED = re.compile(r"(?:.*_)?seeds?")
# What is left of two runs' common name once the seed's number is gone.
_NAME_END = re.compile(r"[\W_]*(?:seed|run|s|rep)?[\W_]*$", re.IGNORECASE)


@dataclass(frozen=True)
class LoadedRun:
    """A run folder's files. All but the metrics may be missing: None or empty then.

    Attributes:
        config: the resolved configuration, option by dotted name.
        versions: of every start, the last one first.
    """

    folder: Path
    label: str
    metrics: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any] | None = None
    versions: Sequence[Mapping[str, Any]] = ()
    git: Mapping[str, Any] | None = None
    summary: str | None = None
    anatomy: Sequence[Mapping[str, Any]] = ()
    token_samples: Sequence[Mapping[str, Any]] = ()
    validation: Sequence[Mapping[str, Any]] = ()
    alarms: Sequence[Mapping[str, Any]] = ()

    def series(self, metric_names: Sequence[str]) -> tuple[list[int], list[float]]:
        """Steps and values of the first of the names that each step logged."""
        return Run(self.label, "", self.metrics).series(metric_names)

    def option(self, name: str, default: Any = None) -> Any:
        """An option of the configuration by its dotted name."""
        return (self.config or {}).get(name, default)


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, seeds apart; `number` from 0 is its place and its colour."""

    label: str
    number: int
    runs: Sequence[LoadedRun] = field(default_factory=tuple)

    @property
    def title(self) -> str:
        """The label, and of how many runs it is."""
        return self.label if len(self.runs) == 1 else f"{self.label} ({len(self.runs)} runs)"


def load_runs(folders: Sequence[Path | str]) -> list[LoadedRun]:
    """Read run folders; labels are their names, with the folder above where names are equal.

    Raises:
        ValueError: none is given, one is given twice, one is no run folder, or a file in it is
            damaged.
    """
    if not folders:
        raise ValueError("no run folder given: name one, such as checkpoints/<EXPERIMENT_NAME>")
    resolved = [Path(folder).resolve() for folder in folders]
    if len(set(resolved)) < len(resolved):
        twice = next(str(folder) for folder in resolved if resolved.count(folder) > 1)
        raise ValueError(f"{twice} is given twice: name each run once")
    labels = [folder.name for folder in resolved]
    if len(set(labels)) < len(labels):
        labels = [f"{folder.parent.name}/{folder.name}" for folder in resolved]
    return [_load(folder, label) for folder, label in zip(resolved, labels, strict=True)]


def _load(folder: Path, label: str) -> LoadedRun:
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: name a run's, such as checkpoints/<run>")
    metrics = read_metrics(folder)
    if not metrics:
        raise ValueError(f"{folder / 'metrics.jsonl'} is empty: wait for the run's first step")
    config = _parsed(folder / "config.yaml", yaml.safe_load)
    earlier = sorted(folder.glob("versions.*.json"), key=_start_number, reverse=True)
    starts = [_parsed(file, json.loads) for file in (folder / "versions.json", *earlier)]
    summary = folder / "summary.txt"
    return LoadedRun(
        folder,
        label,
        metrics,
        flattened(config) if config else None,
        [start for start in starts if start],
        _parsed(folder / "git.json", json.loads),
        summary.read_text(encoding="utf-8", errors="replace") if summary.is_file() else None,
        read_records(folder / ANATOMY_NAME),
        require_keys(folder / TOKEN_SAMPLES_NAME, TOKEN_SAMPLE_KEYS),
        require_keys(folder / VALIDATION_NAME, VALIDATION_KEYS),
        read_records(folder / ALARMS_NAME),
    )


def _start_number(file: Path) -> int:
    number = file.name.split(".")[1]
    return int(number) if number.isdigit() else 0


def _parsed(file: Path, parse: Any) -> dict[str, Any] | None:  # noqa: ANN401
    if not file.is_file():
        return None
    try:
        content = parse(file.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, yaml.YAMLError):
        raise ValueError(f"{file} is damaged: restore it, or remove it to do without") from None
    return content if isinstance(content, dict) else None


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by dotted name; lists and empty mappings stay values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def grouped(runs: Sequence[LoadedRun]) -> list[Group]:
    """Runs of equal configurations together, in the order given.

    Names, folders, loggers, seeds and what to resume do not count. A run without a config.yaml
    stays alone.

    Raises:
        ValueError: there are more groups than colours.
    """
    members: dict[Any, list[LoadedRun]] = {}
    for run in runs:
        members.setdefault(_key(run), []).append(run)
    if len(members) > MOST_GROUPS:
        raise ValueError(
            f"{len(members)} runs of different configurations given: at most {MOST_GROUPS} can be "
            "told apart, so name fewer"
        )
    return [
        Group(_common_name([run.label for run in group]), number, tuple(group))
        for number, group in enumerate(members.values())
    ]


def _key(run: LoadedRun) -> Any:  # noqa: ANN401
    if not run.config:
        return run.folder
    own = {str(run.folder), str(run.option("trainer.default_local_dir", ""))} - {"", "None"}
    kept = {}
    for name, value in run.config.items():
        last = name.rsplit(".", 1)[-1]
        if last in _NAMES or _SEED.fullmatch(last):
            continue
        lies_in_the_run = isinstance(value, str) and any(
            value == part or value.startswith(f"{part}/") for part in own
        )
        if not lies_in_the_run:
            kept[name] = value
    return json.dumps(kept, sort_keys=True, default=str)


def _common_name(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    return _NAME_END.sub("", os.path.commonprefix(list(labels))) or labels[0]


def different_options(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Options in which groups differ, with each group's value (None where it has none).

    Names and folders do not count, and groups without a configuration hold None everywhere.
    """
    names = dict.fromkeys(name for group in groups for name in group.runs[0].config or {})
    found = {}
    for name in names:
        last = name.rsplit(".", 1)[-1]
        values = [group.runs[0].option(name) for group in groups]
        if last not in _NAMES and any(value != values[0] for value in values):
            found[name] = values
    return found
