"""`opdvr data align`: prompts in the teacher's words, on which it is right and the student follows.

Teacher-aligned prompts are one of the two remedies of Rethinking OPD (arXiv 2604.13016) for a
distillation that fails: the words around a problem that the teacher was post-trained with, and
problems that it can solve. The measures are those of `opdvr diagnose`, kept for every prompt.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from opdvr.data.align_filters import KEPT, LIMITS, add_limits, reasons_to_drop
from opdvr.data.align_measured import (
    measured_file,
    mistakes_of_the_disk,
    read_measured,
    require_same,
)
from opdvr.data.align_templates import (
    KEEP,
    PLACE,
    TEMPLATES,
    check_template,
    rewrite_messages,
)
from opdvr.data.dedup import check_new, dropped_file, read_whole
from opdvr.data.files import sha256_of, write_parquet, write_text
from opdvr.data.options import positive
from opdvr.data.text import asks_for_other_form
from opdvr.data.wording import how_many
from opdvr.diagnose.options import Measuring, add_measuring, read_measuring
from opdvr.verifier.extract import ANY

if TYPE_CHECKING:
    from opdvr.diagnose.prompt_measure import PromptMeasure
    from opdvr.eval.problems import Problem

# Columns of the file of dropped rows, beside the file's own.
ROW, REASON = "align_row", "align_reason"
INTERRUPTED = 130
# Prompts between two lines of progress: each time two engines start, which takes half a minute.
_AT_ONCE = 256
# Of the settings those that change no measure.
_OF_THE_MACHINE = ("tensor_parallel", "max_num_seqs", "gpu_memory", "device", "dtype")


def add_align(parser: argparse.ArgumentParser) -> None:
    """Options of `align`."""
    templates = ", ".join(f"{name} ({what})" for name, (_, what) in TEMPLATES.items())
    parser.add_argument("file", type=Path, metavar="FILE", help="a .parquet file in verl's schema")
    parser.add_argument("--student", help="folder, checkpoint, run or hub name")
    parser.add_argument("--teacher", help="likewise")
    parser.add_argument("--output", type=Path, required=True, metavar="C.parquet")
    parser.add_argument(
        "--template", default=KEEP, help=f"{templates}, or a text with {PLACE} (%(default)s)"
    )
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="measures of an earlier run, in place of new"
    )
    parser.add_argument(
        "--at-once", type=positive, default=_AT_ONCE, help="prompts a round (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the counts there")
    parser.add_argument("--force", action="store_true", help="replace output files")
    add_limits(parser)
    add_measuring(parser)
    parser.set_defaults(run=_run)


def say(line: str) -> None:
    """Print a line about the command's doings, apart from its results."""
    print(f"opdvr data: {line}", file=sys.stderr, flush=True)


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    check_template(options.template)
    measuring = read_measuring(options)
    aside, picture = dropped_file(options.output), options.output.with_suffix(".png")
    beside = [aside, picture, *([options.json] if options.json else [])]
    check_new(options.output, [options.file], options.force, beside)
    table = read_whole(options.file)
    _refuse_taken(options.file, table)
    problems, measuring = _problems(options, measuring)
    try:
        with mistakes_of_the_disk():
            measures = _measures(options, problems, measuring)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return INTERRUPTED
    bounds = {name: getattr(options, name) for name in LIMITS}
    rows = [figures(measures[row]) for row in range(len(table))]
    reasons = reasons_to_drop(rows, bounds)
    counts = Counter(reasons)
    from opdvr.data.align_chart import draw_histograms

    draw_histograms(rows, reasons, bounds, picture)
    if not counts[KEPT]:
        raise ValueError(
            f"{options.output} is not written: no prompt stays ({_counted(counts)}); see {picture} "
            f"and set other limits with --measured {measured_file(options.output)}; where no "
            "prompt agrees the student needs a cold start first (opdvr diagnose, docs/sft.md)"
        )
    kept, dropped = split(table, problems, rows, reasons)
    write_parquet(kept, options.output)
    write_parquet(dropped, aside)
    if options.json:
        found = _found(options, measuring, bounds, counts, len(table))
        write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", options.json)
    for reason in LIMITS:
        name = reason.replace("_", "-")
        if counts[name]:
            bound = f"{bounds[reason]:g}"
            print(f"dropped {how_many(counts[name], 'row')}: --{name} {bound}")
    print(f"{aside}: {how_many(len(dropped), 'row')}")
    print(f"{picture}: what was measured, kept and dropped")
    seconds = time.monotonic() - started
    print(f"{options.output}: {how_many(len(kept), 'row')} ({seconds:.1f} s)")
    return 0


def _refuse_taken(file: Path, table: pa.Table) -> None:
    taken = [name for name in table.column_names if name.startswith("align_")]
    if taken:
        raise ValueError(f"{file} has a column {taken[0]} already; rename it")


def _problems(options: argparse.Namespace, measuring: Measuring) -> tuple[list[Problem], Measuring]:
    """All problems in the template's words, and with which answer forms they are judged."""
    from opdvr.diagnose.measure import choose_problems

    problems = [
        replace(problem, messages=rewrite_messages(problem.messages, options.template))
        for problem in choose_problems(str(options.file), None, measuring)
    ]
    is_open = measuring.answer_forms is None and measuring.verifier is None
    if is_open and any(asks_for_other_form(problem.question) for problem in problems):
        measuring = replace(measuring, answer_forms=ANY)
        say("prompts ask for 'Answer:': such answers count here; train with ANSWER_FORMS=any")
    return problems, measuring


def _measures(
    options: argparse.Namespace, problems: Sequence[Problem], measuring: Measuring
) -> dict[int, PromptMeasure]:
    """A measure of every row, read or made.

    Raises:
        ValueError: measures of other data or models, or not of every row.
    """
    settings = _settings(options, measuring)
    if options.measured is not None:
        if not options.measured.is_file():
            raise ValueError(f"--measured {options.measured}: file not found")
        found, measures = read_measured(options.measured)
        wanted = {name: settings[name] for name in ("data", "template")}
        require_same(options.measured, found or {}, wanted, "give those of this file and template")
        missing = len(problems) - len(measures)
        if missing:
            raise ValueError(
                f"--measured {options.measured} lacks {how_many(missing, 'row')}; finish it with "
                "the command that began it"
            )
        return measures
    if options.student is None or options.teacher is None:
        raise ValueError("--student and --teacher are needed, or --measured FILE of an earlier run")
    return _measure(options, problems, measuring, settings)


def _settings(options: argparse.Namespace, measuring: Measuring) -> dict[str, Any]:
    """What a file of measures must have been made with."""
    kept = {name: value for name, value in asdict(measuring).items() if name not in _OF_THE_MACHINE}
    return {"data": sha256_of(options.file), "template": options.template, **kept}


def _measure(
    options: argparse.Namespace,
    problems: Sequence[Problem],
    measuring: Measuring,
    settings: dict[str, Any],
) -> dict[int, PromptMeasure]:
    """Measure what is missing, some prompts at a time, each written down at once."""
    from opdvr.diagnose.measure import find_models, load_pair, measure
    from opdvr.diagnose.tokenizers import compare_vocabularies
    from opdvr.eval.jsonl import LineWriter
    from opdvr.eval.models import fingerprint
    from opdvr.eval.verdicts import VerifierFailure

    student, teacher = find_models(options.student, options.teacher, say)
    vocabularies = compare_vocabularies(student, teacher)
    if vocabularies.difference is not None:
        raise ValueError(f"do not distill token by token: {vocabularies.difference}")
    settings |= {
        role: fingerprint(m.folder) for role, m in (("student", student), ("teacher", teacher))
    }
    path = measured_file(options.output)
    found, measures = read_measured(path, repair=True)
    if found is not None:
        require_same(path, found, settings, "take it away, or name another --output")
    pair = load_pair(student, teacher, vocabularies.length)
    missing = [problem for problem in problems if problem.row not in measures]
    if measures:
        say(f"{how_many(len(measures), 'prompt')} measured already in {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with LineWriter(path) as file:
        if found is None:
            file.append({"settings": settings})
        for start in range(0, len(missing), options.at_once):
            round_ = missing[start : start + options.at_once]
            say(f"prompts {start + 1:,} to {start + len(round_):,} of {len(missing):,}")
            try:
                done = measure(pair, round_, measuring, say)
            except VerifierFailure as failure:
                raise ValueError(str(failure)) from None
            for one in done:
                file.append(one.as_json())
                measures[one.row] = one
    return measures


def figures(measure: PromptMeasure) -> dict[str, float]:
    """What LIMITS bound, of one prompt: means over its responses, and over the student's tokens."""
    from opdvr.diagnose.numbers import pass_rate, token_numbers

    tokens = token_numbers([measure])
    return {
        "teacher_pass": pass_rate(measure.teacher_correct),
        "student_pass": pass_rate(measure.student_correct),
        **{name: tokens[name] for name in ("overlap_ratio", "agreement", "log_ratio_mean")},
    }


def split(
    table: pa.Table,
    problems: Sequence[Problem],
    rows: Sequence[dict[str, float]],
    reasons: Sequence[str],
) -> tuple[pa.Table, pa.Table]:
    """Kept rows, of the table's schema, with the problems' messages as prompts; and dropped ones.

    Dropped rows are as they were, with their row, reason and figures as columns beside.
    """
    keep = [row for row, reason in enumerate(reasons) if reason == KEPT]
    drop = [row for row, reason in enumerate(reasons) if reason != KEPT]
    kept = table.take(pa.array(keep, pa.int64()))
    place = table.column_names.index("prompt")
    field = table.schema.field("prompt")
    prompts = pa.array([problems[row].messages for row in keep], field.type)
    kept = kept.set_column(place, field, prompts)
    dropped = table.take(pa.array(drop, pa.int64()))
    dropped = dropped.append_column(ROW, pa.array(drop, pa.int64()))
    dropped = dropped.append_column(REASON, pa.array([reasons[row] for row in drop], pa.string()))
    for name in rows[0]:
        values = pa.array([rows[row][name] for row in drop], pa.float64())
        dropped = dropped.append_column(f"align_{name}", values)
    return kept, dropped


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{rows:,} by --{reason}" for reason, rows in counts.items())


def _found(
    options: argparse.Namespace,
    measuring: Measuring,
    bounds: dict[str, float | None],
    counts: Counter[str],
    rows: int,
) -> dict[str, Any]:
    return {
        "file": str(options.file),
        "rows": rows,
        "kept": counts[KEPT],
        "dropped_by": {reason: n for reason, n in counts.items() if reason != KEPT},
        "template": options.template,
        "limits": bounds,
        "student": options.student,
        "teacher": options.teacher,
        "measured": str(options.measured or measured_file(options.output)),
        "settings": asdict(measuring),
    }
