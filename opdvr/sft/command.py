"""`opdvr sft`: make a teacher's rollouts, and train a student on them."""

from __future__ import annotations

import importlib
import sys

# Command: module with `main(arguments) -> exit code`, what it does. Imported when asked for.
COMMANDS = {
    "rollout": ("opdvr.sft.rollout_command", "sample a teacher, keep the good answers"),
    "train": ("opdvr.integration.sft.launch", "train on them; Hydra overrides key=value"),
}
USER_MISTAKE = 2


def usage() -> str:
    """The commands, one a line."""
    lines = [f"  {name:<9}{summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["usage: opdvr sft COMMAND ...", "", "commands:", *lines]) + "\n"


def main(arguments: list[str]) -> int:
    """Dispatch a command; returns the exit code."""
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        return importlib.import_module(COMMANDS[name][0]).main(arguments[1:])
    asked = name in ("-h", "--help")
    if name and not asked:
        print(f"opdvr sft: unknown command {name!r}", file=sys.stderr)
    print(usage(), end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else USER_MISTAKE
