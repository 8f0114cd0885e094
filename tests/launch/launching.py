"""Reads back the command that a launcher's dry run prints."""

import os
import subprocess
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ["opdvr.sh", "grpd.sh", "opd_baseline.sh", "ablation_inverse_gated.sh", "grpo.sh"]
SYSTEM_PATH = "/usr/bin:/bin"


class Launch:
    """A launcher's run: exit code, messages, and the command's words once a shell has read it."""

    def __init__(self, done: subprocess.CompletedProcess):
        self.code = done.returncode
        self.stdout = os.fsdecode(done.stdout)
        self.stderr = os.fsdecode(done.stderr)

    @property
    def words(self) -> list[str]:
        assert self.code == 0, self.stderr
        assert self.stdout.count("\n") == 1, "the command is one line"
        script = f'words() {{ printf "%s\\0" "$@"; }}; words {self.stdout}'
        read = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
        return os.fsdecode(read.stdout).split("\0")[:-1]

    @property
    def overrides(self) -> list[str]:
        words = self.words
        return words[words.index("train") + 1 :]

    @property
    def values(self) -> dict:
        """Option -> value as Hydra's own parser reads it; the last of two wins, as in Hydra."""
        parsed = OverridesParser.create().parse_overrides(self.overrides)
        assert not any(override.is_sweep_override() for override in parsed)
        return {override.key_or_group: override.value() for override in parsed}


def knob_lines(table: str = "KNOBS") -> list[list[str]]:
    """A table of knobs, a line a knob: variable, kind, option."""
    command = [
        "bash",
        "-c",
        'source "$1"; printf "%s" "${!2}"',
        "-",
        ROOT / "scripts" / "knobs.sh",
        table,
    ]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split() for line in table.split("\n") if line]
