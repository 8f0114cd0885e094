"""The command `opdvr check`: everything that a training looks at before it starts, and no more."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from opdvr.data.files import write_text
from opdvr.integration.config import REPO_ROOT, compose
from opdvr.integration.demo_data import make_demo_data
from opdvr.integration.options import preflight_mode
from opdvr.integration.preflight.checks import Report, look, summary
from opdvr.integration.preflight.finding import ERROR, WARNING, Finding

METHODS = ("opdvr", "grpd", "opd_baseline", "ablation_inverse_gated", "grpo")
MISTAKE, INTERRUPTED = 1, 130
# A shell reads the line that a launcher prints: it is quoted as only a shell reads it.
_READ_WORDS = 'words() { printf "%s\\0" "$@"; }; eval "words $1"'


class _Parser(argparse.ArgumentParser):
    """Refuses usage mistakes as every other mistake is refused."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see opdvr check --help)")


def say(line: str) -> None:
    """Print a line about the command's doings, apart from its results."""
    print(f"opdvr check: {line}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Run `opdvr check ARGUMENTS`; returns the exit code.

    0: a training would start (with PREFLIGHT=strict: without a warning). 1: it would not.
    """
    try:
        options = _parser().parse_intermixed_args(arguments)
        return _check(options)
    except (ValueError, OSError, HydraException, OmegaConfBaseException) as error:
        say(" ".join(str(error).split()))
        return MISTAKE
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def _parser() -> _Parser:
    parser = _Parser(
        prog="opdvr check",
        description="Look at what a training would start with, from the same variables and "
        "overrides, and start nothing. See docs/preflight.md",
        allow_abbrev=False,
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="Hydra's key=value")
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=METHODS[0],
        help="whose launcher reads the variables (default %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the findings there")
    parser.add_argument(
        "--composed", action="store_true", help="the overrides are a launcher's: read no variable"
    )
    return parser


def _check(options: argparse.Namespace) -> int:
    if options.json is not None and options.json.is_dir():
        raise ValueError(f"--json {options.json} is a folder; name a file")
    overrides = options.overrides
    if not options.composed:
        overrides = launcher_overrides(options.method, overrides)
    config = compose(overrides)
    report = check(config)
    print(f"opdvr check: {summary(report)}")
    if options.json is not None:
        findings = [asdict(found) for found in report.findings]
        write_text(json.dumps(findings, indent=2, ensure_ascii=False) + "\n", options.json)
    strict = preflight_mode(config.opdvr.preflight) == "strict"
    return MISTAKE if report.count(ERROR) or (strict and report.count(WARNING)) else 0


def check(config: DictConfig) -> Report:
    """Look, and print every finding with its level as it comes."""
    if config.opdvr.demo:
        make_demo_data(config)
    return look(config, hear=_print)


def launcher_overrides(method: str, overrides: list[str]) -> list[str]:
    """The overrides that a method's launcher makes of the variables, followed by `overrides`.

    Raises:
        ValueError: the launcher refuses a variable; its line is the message.
    """
    environment = {name: value for name, value in os.environ.items() if name != "CHECK"}
    done = subprocess.run(
        ["bash", str(REPO_ROOT / f"{method}.sh"), *overrides],
        env=environment | {"DRY_RUN": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        # What it said before is about what it would have run.
        raise ValueError(done.stderr.strip().splitlines()[-1].removeprefix("opdvr: "))
    sys.stderr.write(done.stderr)
    command = ["bash", "-c", _READ_WORDS, "-", done.stdout]
    read = subprocess.run(command, capture_output=True, text=True, check=True)
    words = read.stdout.split("\0")[:-1]
    return words[words.index("train") + 1 :]


def _print(found: Finding) -> None:
    print(f"{found.level}: {found}", flush=True)
