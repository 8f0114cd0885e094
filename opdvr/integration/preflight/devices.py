"""What this machine has: GPUs as nvidia-smi lists them, memory, room on a disk. No torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
_MIB = 1 << 20
_SMI_SECONDS = 20
_HIDDEN = ("", "-1", "NoDevFiles")
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi lists it; bytes."""

    index: str
    uuid: str
    total: int
    free: int


def visible_count() -> int | None:
    """GPUs that a process started here would see; None where nothing says so."""
    named = _named_devices()
    if named is not None:
        return len(named)
    gpus = list_gpus()
    return None if gpus is None else len(gpus)


def visible_gpus() -> list[Gpu]:
    """Those of CUDA_VISIBLE_DEVICES, or all; empty where nvidia-smi does not list them."""
    gpus, named = list_gpus() or [], _named_devices()
    if named is None:
        return gpus
    return [
        gpu for gpu in gpus if any(name == gpu.index or gpu.uuid.startswith(name) for name in named)
    ]


def list_gpus() -> list[Gpu] | None:
    """All GPUs; None where nvidia-smi is missing or fails."""
    fields = "index,uuid,memory.total,memory.free"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    gpus = []
    for line in done.stdout.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[2].isdigit() and parts[3].isdigit():
            index, uuid, total, free = parts
            gpus.append(Gpu(index, uuid, int(total) * _MIB, int(free) * _MIB))
    return gpus


def _named_devices() -> list[str] | None:
    """CUDA_VISIBLE_DEVICES as a list, as CUDA reads it: up to the first entry that names none."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = []
    for name in (part.strip() for part in text.split(",")):
        if name in _HIDDEN:
            break
        names.append(name)
    return names


def available_memory() -> int | None:
    """Bytes of main memory that new processes may take; None where Linux does not say.

    MemAvailable, or what a container's limit leaves if that is less.
    """
    if not MEMINFO.is_file():
        return None
    lines = (line.split() for line in MEMINFO.read_text().splitlines())
    kib = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
    if "MemAvailable" not in kib:
        return None
    available = kib["MemAvailable"] << 10
    left = _left_in_container()
    return available if left is None else min(available, left)


def _left_in_container() -> int | None:
    """Bytes below the limit of this control group; its page cache gives way and does not count."""
    limit, stat = CGROUP / "memory.max", CGROUP / "memory.stat"
    if not limit.is_file() or not stat.is_file() or not limit.read_text().strip().isdigit():
        return None
    used = dict(line.split() for line in stat.read_text().splitlines())
    return max(int(limit.read_text()) - int(used.get("anon", 0)), 0)


def free_disk(folder: Path) -> tuple[Path, int]:
    """The nearest parent of a folder that exists, and the bytes that may be written there."""
    while not folder.exists():
        folder = folder.parent
    return folder, shutil.disk_usage(folder).free


def shown(size: float) -> str:
    """Bytes for a person, in the unit that fits."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB / 10 else f"{size / _MIB:,.1f} MiB"
