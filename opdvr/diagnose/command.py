"""The command `opdvr diagnose`: measure a pair on some prompts and say whether to distil."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from opdvr.data.files import write_text
from opdvr.diagnose.options import Measuring, add_measuring, option_of, read_measuring
from opdvr.diagnose.thresholds import THRESHOLDS

MISTAKE, INTERRUPTED = 2, 130
PROMPTS = 32


class _Parser(argparse.ArgumentParser):
    """Refuses usage mistakes as every other mistake is refused."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see opdvr diagnose --help)")


def say(line: str) -> None:
    """Print a line about the command's doings, apart from its results."""
    print(f"opdvr diagnose: {line}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Run `opdvr diagnose ARGUMENTS`; returns the exit code.

    0: there is a verdict, whichever. 2: a mistake, as one line on stderr.
    """
    try:
        options = _parser().parse_args(arguments)
        return _diagnose(options)
    except (ValueError, OSError) as error:
        say(" ".join(str(error).split()))
        return MISTAKE
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def _parser() -> _Parser:
    parser = _Parser(
        prog="opdvr diagnose",
        description="Can the student learn from the teacher on these prompts? See docs/recovery.md",
        allow_abbrev=False,
    )
    parser.add_argument("student", metavar="STUDENT", help="folder, checkpoint, run or hub name")
    parser.add_argument("teacher", metavar="TEACHER", help="likewise")
    parser.add_argument("data", metavar="DATA", help="a file in verl's schema, or a benchmark")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything there")
    parser.add_argument(
        "--prompts", type=int, default=PROMPTS, help="drawn from DATA (default %(default)s)"
    )
    limits = parser.add_argument_group("what decides")
    for name, threshold in THRESHOLDS.items():
        limits.add_argument(
            option_of(name),
            type=float,
            default=threshold.default,
            help=f"{threshold.reason.replace('%', '%%')} (default %(default)s)",
        )
    add_measuring(parser)
    return parser


def _diagnose(options: argparse.Namespace) -> int:
    started = time.monotonic()
    measuring = read_measuring(options)
    if options.prompts < 1:
        raise ValueError(f"--prompts {options.prompts}: give 1 or more")
    thresholds = {name: getattr(options, name) for name in THRESHOLDS}
    for name, value in thresholds.items():
        if not math.isfinite(value):
            raise ValueError(f"{option_of(name)} {value}: give a number")
    if options.json is not None and options.json.is_dir():
        raise ValueError(f"--json {options.json} is a folder; name a file")
    diagnosis = diagnose(options, measuring, thresholds)
    from opdvr.diagnose.report import render

    print(render(diagnosis))
    say(f"{time.monotonic() - started:.0f} s")
    if options.json is not None:
        write_text(json.dumps(diagnosis, indent=2, ensure_ascii=False) + "\n", options.json)
    return 0


def diagnose(
    options: argparse.Namespace, measuring: Measuring, thresholds: dict[str, float]
) -> dict[str, Any]:
    """verdict, reasons, numbers and settings, as `--json` writes them.

    Raises:
        ValueError: a model, the data or an option cannot be used.
    """
    from opdvr.diagnose import measure as measurement
    from opdvr.diagnose import numbers as summing
    from opdvr.diagnose import verdict as deciding
    from opdvr.diagnose.tokenizers import compare_vocabularies
    from opdvr.eval.verdicts import VerifierFailure, load_verifier, rules_of

    load_verifier(rules_of(measuring.verifier, measuring.answer_forms))
    student, teacher = measurement.find_models(options.student, options.teacher, say)
    settings = {
        "student": student.name,
        "teacher": teacher.name,
        "data": options.data,
        "prompts": options.prompts,
        "thresholds": thresholds,
        **asdict(measuring),
    }
    vocabularies = compare_vocabularies(student, teacher)
    numbers: dict[str, Any] = {
        "tokenizer": {"ids": vocabularies.length, "difference": vocabularies.difference}
    }
    if vocabularies.difference is not None:
        found = deciding.incompatible_ids(vocabularies.difference)
        return {**asdict(found), "numbers": numbers, "settings": settings}
    problems = measurement.choose_problems(options.data, options.prompts, measuring)
    measuring = measurement.on_this_machine(measuring)
    settings |= {"device": measuring.device, "dtype": measuring.dtype}
    pair = measurement.load_pair(student, teacher, vocabularies.length)
    numbers["tokenizer"] |= _agreement(pair, problems[0].messages, measuring.thinking)
    try:
        measures = measurement.measure(pair, problems, measuring, say)
    except VerifierFailure as failure:
        raise ValueError(str(failure)) from None
    numbers |= summing.all_numbers(measures)
    numbers["top_k"] = min(measuring.top_k, vocabularies.length)
    use_overlap = deciding.overlap_counts(numbers["top_k"], vocabularies.length)
    found = deciding.decide(measures, numbers, thresholds, use_overlap)
    return {**asdict(found), "numbers": numbers, "settings": settings}


def _agreement(pair: Any, messages: list[dict[str, Any]], thinking: bool) -> dict[str, Any]:  # noqa: ANN401
    """Special and end tokens of both, and where they render the first prompt differently."""
    from opdvr.diagnose.tokenizers import render, special_tokens, template_difference

    sides = {
        "student": (pair.student, pair.student_tokenizer),
        "teacher": (pair.teacher, pair.teacher_tokenizer),
    }
    for role, (_, tokenizer) in sides.items():
        if tokenizer.chat_template is None:
            raise ValueError(
                f"{role.upper()}: its tokenizer has no chat template; put chat_template.jinja into "
                "its folder"
            )
    special = {role: special_tokens(*side) for role, side in sides.items()}
    rendered = [render(tokenizer, messages, thinking) for _, tokenizer in sides.values()]
    return {
        "special": {
            name: {role: special[role][name] for role in sides} for name in special["student"]
        },
        "template": template_difference(*rendered),
    }
