"""A Python environment of the peer's own, made once from pinned requirements and kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import note

FOLDER = Path(__file__).resolve().parent / "peers"
REQUIREMENTS = FOLDER / "trl.txt"
OLDEST_PYTHON = (3, 11)  # that this TRL runs on
_STAMP, _LOCK = "complete", "lock"


def folder_of(requirements: Path) -> Path:
    """Where the environment with these requirements lies or will lie, in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    return cache / "opdvr" / f"peers-{digest[:12]}"


def python_of(requirements: Path) -> Path | None:
    """The finished environment's interpreter, or None where there is no such environment."""
    folder = folder_of(requirements)
    python = folder / "bin" / "python"
    return python if (folder / _STAMP).exists() and python.exists() else None


def prepare(requirements: Path = REQUIREMENTS, version: tuple[int, int] | None = None) -> Path:
    """The environment's interpreter; makes the environment where it is missing.

    It needs a package registry, as pip or uv is configured, and some 7 GB the first time.

    Raises:
        ValueError: this Python is too old for the peer.
        RuntimeError: the environment could not be made; the tool's last lines are in the message.
    """
    python = python_of(requirements)
    if python is not None:
        return python
    if (version or sys.version_info[:2]) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise ValueError(f"the peer needs Python {oldest} or newer: run the benchmark with one")
    folder = folder_of(requirements)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(f".{_LOCK}"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making it
        if python_of(requirements) is None:
            _make(folder, requirements)
    return folder / "bin" / "python"


def _make(folder: Path, requirements: Path) -> None:
    packages = sum("==" in line for line in requirements.read_text().splitlines())
    note(f"making the peer's environment, {packages} pinned packages, in {folder} (once)")
    python = str(folder / "bin" / "python")
    with_uv = shutil.which("uv")
    if with_uv:
        _run(with_uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        install = (with_uv, "pip", "install", "--python", python, "--compile-bytecode")
    else:
        note("uv was not found; pip does the same, more slowly")
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        install = (python, "-m", "pip", "install", "--disable-pip-version-check")
    # Nothing is resolved: the requirements are complete.
    _run(*install, "--no-deps", "--requirement", str(requirements))
    (folder / _STAMP).touch()


def _run(*command: str) -> None:
    """Run a tool, its progress on stderr."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []
    for line in child.stdout:
        lines.append(line.rstrip())
        note(f"  {lines[-1]}")
    if child.wait() != 0:
        tool = " ".join(command[:4])
        raise RuntimeError(
            f"the peer's environment could not be made: {tool} failed. It needs a package registry "
            "that can be reached and has these versions. Its last lines:\n" + "\n".join(lines[-5:])
        )
