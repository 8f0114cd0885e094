"""Peak memory of one call, above what was there before it, in a process of its own.

The child is told a `module:function`; that function gets the case and returns the call to measure.
"""

from __future__ import annotations

import gc
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

KIBIBYTE, MEBIBYTE = 1024, 1024 * 1024
_ROOT = Path(__file__).resolve().parents[1]


def peak_mebibytes(target: str, **case: object) -> float:
    """Peak of the call that `target` ("module:function") prepares from `case`, in MiB.

    Process memory on a CPU (the kernel's high-water mark, reset just before), allocated memory on
    a GPU. Linux only.

    Raises:
        RuntimeError: the child failed; its last lines are in the message.
    """
    command = [sys.executable, "-m", "benchmarks.memory", target, json.dumps(case)]
    child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        raise RuntimeError(f"{target} {case} failed:\n{child.stderr[-2000:]}")
    return json.loads(child.stdout.splitlines()[-1]) / MEBIBYTE


def measure(call: Callable[[], object]) -> int:
    """Bytes by which the peak exceeds what is held before `call`, in this process."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from here
    before = _high_water_mark()
    call()
    return _high_water_mark() - before


def _high_water_mark() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * KIBIBYTE


def main(target: str, case: str) -> None:
    """Measure in this process and print bytes as the last line."""
    module, function = target.split(":")
    call = getattr(importlib.import_module(module), function)(**json.loads(case))
    print(measure(call))


if __name__ == "__main__":
    main(*sys.argv[1:])
