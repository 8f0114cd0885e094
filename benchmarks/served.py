"""`opdvr teacher serve` processes for benchmarks: started, killed, started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_READY = "ready at"


class ServedTeacher:
    """One server process on a free port of this machine; `lines` is what it has said."""

    def __init__(self, model: str, port: int | None = None):
        self.port = port or _free_port()
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "opdvr", "teacher", "serve", model, "--port", str(self.port)],
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def _read(self) -> None:
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            if _READY in line:
                self._ready.set()
        self._ready.set()  # it has ended: nobody should wait on

    def wait(self, seconds: float = 240) -> None:
        """Until it can be asked.

        Raises:
            RuntimeError: it ended, or took too long; its last lines are in the message.
        """
        self._ready.wait(seconds)
        if self._process.poll() is not None or not self._ready.is_set():
            raise RuntimeError("the server did not start:\n" + "\n".join(self.lines[-20:]))

    def kill(self) -> None:
        """SIGKILL, as the kernel does it when memory is out."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
