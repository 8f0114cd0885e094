"""What LlamaFactory makes of an export of `opdvr sft rollout`: rows, tokens and loss mask as JSON.

    python -m benchmarks.llamafactory_check rollouts/demo --tokenizer opdvr/demo/models/student

LlamaFactory's own loader reads the export by its YAML, in an environment of its own that is made
once from requirements/llamafactory.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers_environment import FOLDER, prepare

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements" / "llamafactory.txt"
_SIDE = FOLDER / "llamafactory_side.py"
_LAST_LINES = 5


@dataclass(frozen=True)
class Export:
    """One to read: the rollout's folder, the folder of a tokenizer and config.json, and which
    training rows to show."""

    rollout: Path
    tokenizer: Path
    rows: Sequence[int] = (0,)

    def as_job(self) -> dict[str, Any]:
        """For the other side."""
        return {
            "folder": str(self.rollout.resolve() / "llamafactory"),
            "tokenizer": str(self.tokenizer.resolve()),
            "rows": list(self.rows),
        }


def check(exports: Sequence[Export], python: Path) -> list[dict[str, Any]]:
    """LlamaFactory's reading of exports, all in one process of `python`, its own interpreter.

    Returns:
        For each `llamafactory` (version), `rows` by data set, and `samples`: row, input_ids,
        labels (-100 without loss), loss_mask, tokens.

    Raises:
        RuntimeError: LlamaFactory failed; its last lines are in the message.
    """
    jobs = json.dumps([export.as_job() for export in exports])
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        done = subprocess.run(
            [str(python), str(_SIDE), jobs, scratch, str(result)],
            env=os.environ | {"HF_DATASETS_CACHE": scratch, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            last = "\n".join(done.stdout.strip().splitlines()[-_LAST_LINES:])
            raise RuntimeError(f"LlamaFactory failed:\n{last}")
        return json.loads(result.read_text(encoding="utf-8"))


def main() -> int:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rollout", type=Path, metavar="DIR", help="a finished rollout's folder")
    parser.add_argument("--tokenizer", type=Path, required=True, help="the student's folder")
    parser.add_argument("--rows", type=int, nargs="+", default=[0], help="training rows (0)")
    given = parser.parse_args()
    try:
        export = Export(given.rollout, given.tokenizer, given.rows)
        (found,) = check([export], prepare(REQUIREMENTS))
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
