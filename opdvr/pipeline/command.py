"""`opdvr pipeline`: runs what is not done yet, stage by stage, and sums it up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from opdvr.integration.checkpoints import write_atomically
from opdvr.pipeline.options import Options, read_options
from opdvr.pipeline.stages import Stage, plan
from opdvr.report.lock import lock_folder
from opdvr.report.redact import redact_command

RECORD, LOCK = "pipeline.json", "pipeline.lock"
USER_MISTAKE, FAILED, INTERRUPTED = 2, 1, 130
USAGE = """\
usage: bash pipeline.sh        (settings are environment variables, as for opdvr.sh; docs/sft.md)

Rollouts of the teacher, cold start (SFT), OPDVR, evaluations and a summary, in
checkpoints/<EXPERIMENT_NAME>. A stage whose output is there is skipped."""


def say(line: str) -> None:
    """Print a line about the pipeline's doings."""
    print(f"opdvr pipeline: {line}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Entry of `opdvr pipeline`; a user's mistake is one line and exit code 2."""
    if arguments:
        asked = arguments[0] in ("-h", "--help")
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else USER_MISTAKE
    try:
        options = read_options()
        _make_demo_data(options)
        stages = plan(options)
        lock = lock_folder(
            options.folder,
            LOCK,
            f"{options.folder} cannot be written ({{error}}); set EXPERIMENT_NAME",
            f"another pipeline is running in {options.folder}; choose another EXPERIMENT_NAME",
        )
        _check_launchers(stages)
        record = _read_record(options.folder, stages)
        _refuse_outdated(options.folder, stages)
    except ValueError as mistake:
        say(str(mistake))
        return USER_MISTAKE
    with lock:
        try:
            return _run(options, stages, record)
        except KeyboardInterrupt:
            say("interrupted; the same command goes on from here")
            return INTERRUPTED


def _run(options: Options, stages: list[Stage], record: dict[str, Any]) -> int:
    for number, stage in enumerate(stages, start=1):
        label = f"[{number}/{len(stages)}] {stage.what}"
        if stage.done():
            say(f"{label}: there already")
            continue
        say(f"{label} ({options.folder})")
        record.setdefault(stage.name, {"minutes": 0.0})["command"] = _shown(stage)
        _write_record(options.folder, record)
        started = time.monotonic()
        try:
            code = subprocess.call(stage.command, env={**stage.environment, **stage.variables})
        finally:
            record[stage.name]["minutes"] += (time.monotonic() - started) / 60
            _write_record(options.folder, record)
        if code:
            say(f"{stage.what} ended with exit code {code}; the same command goes on from here")
            return INTERRUPTED if code == INTERRUPTED else FAILED
        if not stage.done():
            say(f"{stage.what} ended well but left no output; its command: {_shown(stage)}")
            return FAILED
    _sum_up(options, stages, record)
    return 0


def _sum_up(options: Options, stages: list[Stage], record: dict[str, Any]) -> None:
    from opdvr.pipeline.summary import PICTURE, accuracy_by_stage, table, write_summary

    folder = options.folder
    evaluations = {s.model: folder / "evaluations" / s.model for s in stages if s.model}
    accuracies = accuracy_by_stage(evaluations)
    minutes = {s.name: record.get(s.name, {}).get("minutes", 0.0) for s in stages}
    settings = {
        "student": options.student,
        "teacher": options.teacher,
        "train": options.train,
        "test": options.test,
        "seed": options.seed,
    }
    written = write_summary(folder, accuracies, minutes, settings)
    print(table(accuracies, minutes))
    say(f"{written}, {PICTURE}")


def _make_demo_data(options: Options) -> None:
    """The embedded task's files, made where they are missing (under a second, the same bytes)."""
    if options.demo and not all(Path(file).exists() for file in (options.train, options.test)):
        from opdvr.demo.task import write_parquet

        write_parquet(Path(options.train).parent)


def _shown(stage: Stage) -> str:
    """The command with the variables that the pipeline sets, as it is written down."""
    variables = [f"{name}={text}" for name, text in sorted(stage.variables.items())]
    return " ".join(redact_command([*variables, *stage.command]))


def _read_record(folder: Path, stages: list[Stage]) -> dict[str, Any]:
    """Minutes and commands of earlier starts.

    Raises:
        ValueError: a finished stage was run with other settings than now.
    """
    path = folder / RECORD
    if not path.exists():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))
    for stage in stages:
        before = record.get(stage.name, {}).get("command")
        if before is not None and before != _shown(stage) and stage.done():
            then, now = (
                _differing(*pair) for pair in ((before, _shown(stage)), (_shown(stage), before))
            )
            raise ValueError(
                f"{folder}: stage {stage.name!r} was run with {then}, now it would be with {now}; "
                "choose another EXPERIMENT_NAME, or restore the settings"
            )
    return record


def _differing(command: str, other: str) -> str:
    """The words of a command that the other one lacks."""
    words = other.split()
    return " ".join(word for word in command.split() if word not in words) or "nothing of it"


def _check_launchers(stages: list[Stage]) -> None:
    """Let each launcher look at its settings now.

    Raises:
        ValueError: its own line about one of them.
    """
    for stage in stages:
        if stage.check is None:
            continue
        environment = {**stage.environment, **stage.variables, **stage.check, "DRY_RUN": "1"}
        done = subprocess.run(stage.command, env=environment, capture_output=True, text=True)
        if done.returncode:
            line = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise ValueError(f"{stage.what}: {line.removeprefix('opdvr: ')}")


def _refuse_outdated(folder: Path, stages: list[Stage]) -> None:
    """Raise ValueError where a stage has to be made and what was made from it is still there."""
    missing = {stage.name for stage in stages if not stage.done()}
    for stage in stages:
        lacking = missing.intersection(stage.inputs)
        if lacking and stage.done():
            raise ValueError(
                f"{folder}: stage {lacking.pop()!r} is missing, but {stage.name!r}, made from it, "
                "is there; remove that output too, or restore the input"
            )


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    write_atomically(folder / RECORD, json.dumps(record, indent=2, ensure_ascii=False))
