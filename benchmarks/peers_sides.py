"""The sides of the `peers` benchmark as processes that do one step each time they are told to."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.measure import CPU, TOTAL, Seconds, note
from benchmarks.memory import KIBIBYTE, MEBIBYTE
from benchmarks.peers_gate import STEP

ROOT = Path(__file__).resolve().parents[1]
LONGEST_WAIT = 600  # seconds for a start or a step
_TO_STOP = 60


@dataclass
class Side:
    """A process, and all that it started, behind a gate (peers_gate.py).

    reports: what it said after each step: tokens and rows generated, seconds by phase, and a
    fingerprint of the prompts.
    """

    name: str
    command: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    reports: list[dict] = field(default_factory=list)
    _process: subprocess.Popen | None = None
    _waiting: bool = False

    def start(self) -> None:
        """Start it and wait until it is ready for its first step.

        Raises:
            RuntimeError: it ended, or took too long; its log's last lines are in the message.
        """
        note(f"starting {self.name}")
        with open(self.log, "w") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=os.environ | self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._read()

    def step(self) -> Seconds:
        """Let it do one step; wall and processor seconds, and those of its own phases."""
        before = self._processor_seconds()
        start = time.perf_counter()
        self._process.stdin.write(f"{STEP}\n".encode())
        self._process.stdin.flush()
        report = self._read()
        total = time.perf_counter() - start
        self.reports.append(report)
        cpu = self._processor_seconds() - before
        return {TOTAL: total, CPU: cpu, **report["phases"]}

    def reset_peak(self) -> None:
        """Let the kernel's high-water marks of its processes start from here."""
        for process in self._processes():
            with suppress(OSError):  # one that ends meanwhile
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def memory(self) -> dict[str, float]:
        """Its processes, the sum of their peaks in MiB, and of what they hold now, shared once."""
        peaks, held = [], []
        for process in self._processes():
            with suppress(OSError):
                peaks.append(_kibibytes(process.pid, "status", "VmHWM"))
                held.append(_kibibytes(process.pid, "smaps_rollup", "Pss"))
        in_mebibytes = KIBIBYTE / MEBIBYTE
        return {
            "processes": len(peaks),
            "peak": sum(peaks) * in_mebibytes,
            "held": sum(held) * in_mebibytes,
        }

    def close(self) -> None:
        """Stop it by closing its pipe, and whatever outlives that by force."""
        if self._process is None:
            return
        started = self._processes()
        self._process.stdin.close()
        try:
            self._process.wait(_TO_STOP)
        except subprocess.TimeoutExpired:
            note(f"{self.name} did not stop by itself")
        for process in psutil.wait_procs(started, timeout=5)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.stdout.close()

    def _read(self) -> dict:
        ready, _, _ = select.select([self._process.stdout], [], [], LONGEST_WAIT)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            why = "ended" if ready else f"did not answer in {LONGEST_WAIT} s"
            last = self.log.read_text(errors="replace").splitlines()[-15:]
            raise RuntimeError(f"{self.name} {why}; its last lines:\n" + "\n".join(last))
        return json.loads(line)

    def _processes(self) -> list[psutil.Process]:
        try:
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _processor_seconds(self) -> float:
        seconds = 0.0
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system
        return seconds


def check_same_prompts(sides: list[Side]) -> None:
    """The steps of all sides began from the same prompts, token for token, in the same numbers.

    Raises:
        RuntimeError: they did not; a comparison would mean nothing.
    """
    for number, reports in enumerate(zip(*(side.reports for side in sides), strict=True), 1):
        for side, report in zip(sides, reports, strict=True):
            for what in ("prompts", "rows"):
                if report[what] != reports[0][what]:
                    raise RuntimeError(
                        f"step {number}: {side.name} and {sides[0].name} differ in their {what}"
                    )


def environment(threads: int) -> dict[str, str]:
    """For every side: no GPU, no network, equally many threads."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": path,
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }


def python_module(module: str, *arguments: str) -> list[str]:
    """A command in this environment."""
    return [sys.executable, "-m", module, *arguments]


def _kibibytes(process: int, file: str, name: str) -> int:
    text = Path(f"/proc/{process}/{file}").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) if found else 0
