"""Command line: `opdvr COMMAND ...` or `python -m opdvr COMMAND ...`."""

from __future__ import annotations

import importlib
import sys

# Command: module with `main(arguments) -> exit code`, what it does. Imported when asked for.
COMMANDS = {
    "train": ("opdvr.integration.launch", "train; Hydra overrides key=value, see README.md"),
    "check": ("opdvr.integration.preflight.command", "look at what a training starts with"),
    "data": ("opdvr.data.command", "build, check, show, deduplicate and align data sets"),
    "eval": ("opdvr.eval.command", "sample from a model, score it, compare two evaluations"),
    "compare": ("opdvr.report.compare_command", "two training runs, with intervals"),
    "sft": ("opdvr.sft.command", "teacher rollouts, and supervised training on them"),
    "pipeline": ("opdvr.pipeline.command", "rollouts, cold start, OPDVR, evaluation in one"),
    "diagnose": ("opdvr.diagnose.command", "whether a student can be distilled from a teacher"),
    "report": ("opdvr.report.command", "one or more runs as one HTML file"),
    "teacher": ("opdvr.teacher.command", "serve a teacher to runs on this or other machines"),
}


def usage() -> str:
    """The commands, one a line."""
    lines = [f"  {name:<10}{summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["usage: opdvr COMMAND ...", "", "commands:", *lines]) + "\n"


def main() -> int:
    """Dispatch a command; returns the exit code."""
    name, arguments = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if name in COMMANDS:
        return importlib.import_module(COMMANDS[name][0]).main(arguments)
    asked = name in ("-h", "--help")
    if name and not asked:
        print(f"opdvr: unknown command {name!r}", file=sys.stderr)
    print(usage(), end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
