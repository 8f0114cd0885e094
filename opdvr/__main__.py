"""Command line: `opdvr train ...` or `python -m opdvr train ...`."""

from __future__ import annotations

import sys

USAGE = """usage: opdvr COMMAND ...

commands:
  train [key=value ...]   train; Hydra overrides, see README.md
"""


def main() -> int:
    """Dispatch a command; returns the exit code."""
    command, arguments = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if command == "train":
        from opdvr.integration.launch import main as train

        return train(arguments)
    print(USAGE, end="", file=sys.stdout if command in ("-h", "--help") else sys.stderr)
    return 0 if command in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main())
