"""python -m benchmarks.run NAME [--json FILE] [--quick] [--rounds N] [options of NAME]"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import engine, head, hostile, observe, peers, step, teacher, topk, verifier
from benchmarks.measure import note, table

BENCHMARKS = {
    "head": head,
    "teacher": teacher,
    "engine": engine,
    "step": step,
    "observe": observe,
    "peers": peers,
    "topk": topk,
    "verifier": verifier,
    "hostile": hostile,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of one benchmark, those of all and its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in BENCHMARKS.items():
        summary = module.__doc__.strip().splitlines()[0]
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        command.add_argument("--json", metavar="FILE", help="also write the results there")
        command.add_argument("--quick", action="store_true", help="small, to see that it runs")
        command.add_argument("--rounds", type=int, help="measured rounds")
        module.add_options(command)
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def describe_machine() -> str:
    """What figures depend on, without names."""
    device = "CPU"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    cores = len(os.sched_getaffinity(0))
    threads = torch.get_num_threads()
    return f"{device}, {cores} CPU cores, {threads} threads for torch {torch.__version__}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one benchmark, print its table and write its JSON."""
    options = parse(arguments)
    note(describe_machine())
    with contextlib.redirect_stdout(sys.stderr):  # verl prints as it loads
        results = BENCHMARKS[options.name].run(options)
    print(table(results))
    if options.json:
        text = json.dumps([asdict(result) for result in results], indent=1)
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
