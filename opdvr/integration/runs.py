"""Run folders over several starts: one process at a time, an interrupted run taken up again."""

from __future__ import annotations

import glob
import hashlib
import json
import re
from pathlib import Path
from typing import TextIO

from opdvr.integration.checkpoints import complete_steps, write_atomically
from opdvr.report.lock import lock_folder
from opdvr.report.redact import redact_command

RECORD = "run.json"  # what the run was started with, and whether it has finished
LOCK = "run.lock"  # held (flock) by the process that trains; the kernel frees it on any death
# A lost teacher comes back elsewhere, one waits longer for the next, and a run that a watchdog
# stopped goes on without; what is checked before says nothing about it: still the same run.
_AROUND_THE_RUN = tuple(
    f"opdvr.{name}="
    for name in (
        *(f"teacher_{name}" for name in ("urls", "timeout", "patience", "max_in_flight")),
        "watchdog",
        "preflight",
    )
)
TIME_STAMP = r"\d{8}-\d{6}"


def interrupted_run(
    parent: Path, prefix: str, overrides: list[str], total_steps: int | None = None
) -> str | None:
    """Name of the newest run called <prefix>_<time> that the same command should go on with.

    It was started with the same overrides, has a complete checkpoint before the last step (of
    `total_steps`, where known), did not finish, and no process holds it.
    """
    pattern = re.compile(rf"{re.escape(prefix)}_{TIME_STAMP}")
    for folder in sorted(parent.glob(f"{glob.escape(prefix)}_*"), reverse=True):
        record = folder / RECORD
        if not pattern.fullmatch(folder.name) or not record.is_file():
            continue
        if _unfinished_command(record) != fingerprint(overrides):
            continue
        steps = complete_steps(folder)
        if steps and (total_steps is None or steps[-1] < total_steps) and not _is_held(folder):
            return folder.name
    return None


def is_unfinished(folder: Path) -> bool:
    """Whether a run was started in the folder and did not come to its end."""
    record = folder / RECORD
    return record.is_file() and _unfinished_command(record) is not None


def _unfinished_command(record: Path) -> str | None:
    """Fingerprint of the command of a run that did not finish; None too for a torn record."""
    try:
        content = json.loads(record.read_text())
    except json.JSONDecodeError:
        return None
    return None if content.get("finished", True) else content.get("command")


def fingerprint(overrides: list[str]) -> str:
    """The same for the same overrides in the same order; what is around a run does not count."""
    overrides = [text for text in overrides if not text.lstrip("+").startswith(_AROUND_THE_RUN)]
    return hashlib.sha256(json.dumps(overrides).encode()).hexdigest()


def hold(folder: Path) -> TextIO:
    """Lock a run folder for this process; keep the returned file open.

    Raises:
        ValueError: another process trains in it.
    """
    return lock_folder(
        folder,
        LOCK,
        f"the run folder {folder} cannot be written ({{error}}); set FINAL_CKPT_DIR or "
        "EXPERIMENT_NAME",
        f"another process is training in {folder}; choose another EXPERIMENT_NAME",
    )


def record(folder: Path, overrides: list[str], finished: bool) -> None:
    """Write down what the run was started with, and whether it has finished."""
    shown = redact_command(overrides)  # an address may hold a password
    content = {"command": fingerprint(overrides), "overrides": shown, "finished": finished}
    write_atomically(folder / RECORD, json.dumps(content, indent=2, ensure_ascii=False))


def _is_held(folder: Path) -> bool:
    try:
        hold(folder).close()
    except ValueError:
        return True
    return False
