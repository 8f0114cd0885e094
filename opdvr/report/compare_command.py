"""`opdvr compare A B`: two training runs, benchmark by benchmark and step by step."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from opdvr.eval.options import Parser
from opdvr.report.compare import LAST, compare_runs, render
from opdvr.report.step_records import write_atomically

USER_MISTAKE = 2


def main(arguments: list[str]) -> int:
    """Entry of `opdvr compare`; a user's mistake is one line and exit code 2."""
    try:
        parser = Parser(prog="opdvr compare", description=__doc__)
        parser.add_argument("one", type=Path, metavar="A", help="a training run's folder")
        parser.add_argument("other", type=Path, metavar="B", help="another's")
        parser.add_argument(
            "--at",
            default=LAST,
            metavar="STEP",
            help="last: the last that both validated (default); best: each run's own; or a number",
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it there")
        given = parser.parse_args(arguments)
        found = compare_runs(given.one, given.other, given.at)
        if given.json is not None:
            _write(given.json, found)
    except ValueError as mistake:
        print(f"opdvr compare: {' '.join(str(mistake).split())}", file=sys.stderr)
        return USER_MISTAKE
    print(render(found))
    return 0


def _write(path: Path, found: dict) -> None:
    text = json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    try:
        write_atomically(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise ValueError(
            f"--json {path} cannot be written ({error.strerror}); choose another file"
        ) from None
