"""The command `opdvr data`: prepare, check, show, deduplicate and align data files."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from opdvr.data import manifest, output, prepare, products
from opdvr.data.align import add_align
from opdvr.data.check import TokenLimit, check
from opdvr.data.convert import Columns
from opdvr.data.dedup import add_dedup
from opdvr.data.options import (
    OWN_FILE,
    Parser,
    add_against,
    add_check,
    add_user,
    add_writing,
    count,
    positive,
)
from opdvr.data.output import Product
from opdvr.data.prepare import Request
from opdvr.data.rows import count_removed
from opdvr.data.show import show
from opdvr.data.sources import BENCHMARKS, DAPO, DEEPMATH, Source
from opdvr.data.wording import escaped, how_many
from opdvr.verifier.extract import BOXED

_SHOWN_CHARACTERS = 600
_SOURCE = "a file, or a folder with files named after the data sets (default: the hub)"
_FOLDER = "where to write them (default %(default)s)"
_SOURCES: dict[str, tuple[Source, ...]] = {
    "valid": BENCHMARKS,
    "deepmath": (DEEPMATH,),
    "dapo": (DAPO,),
}
_OUTPUTS = {product: name for name, product in products.PRODUCTS.items()}


def main(arguments: list[str]) -> int:
    """Run `opdvr data ARGUMENTS`; returns the exit code.

    0: done, and nothing found. 1: `check` found something. 2: a mistake, as one line on stderr.
    """
    try:
        options = _parser().parse_args(arguments)
        return options.run(options)
    except (ValueError, OSError) as error:
        # A message may quote the file, and what others raise may have several lines.
        message = escaped(str(error)).replace("\n", " ")
        print(f"opdvr data: {message}", file=sys.stderr)
        return 2


def _parser() -> Parser:
    parser = Parser(prog=products.COMMAND, description="Make, check and show data files.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_prepare(commands.add_parser("prepare", help="make a data file"))
    check_files = commands.add_parser("check", help="say what is wrong with data files")
    add_check(check_files)
    check_files.set_defaults(run=_check)
    show_rows = commands.add_parser("show", help="print a few rows")
    show_rows.add_argument("file", type=Path, metavar="FILE", help=OWN_FILE)
    show_rows.add_argument("--start", type=count, default=0, help="first row (default 0)")
    show_rows.add_argument("--rows", type=positive, default=3, help="how many (default 3)")
    show_rows.add_argument("--full", action="store_true", help="long texts whole")
    show_rows.set_defaults(run=_show)
    add_dedup(commands.add_parser("dedup", help="drop the rows whose problem is in another file"))
    add_align(commands.add_parser("align", help="keep the prompts on which a teacher can teach"))
    return parser


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    helps = {
        "valid": "the six benchmarks, 1,590 rows",
        "deepmath": "DeepMath-103K, difficulty 6 or more, without the test problems",
        "dapo": "DAPO-Math-17k, each problem once, without the test problems",
    }
    for kind, text in helps.items():
        one = kinds.add_parser(kind, help=text)
        default = Path(products.FOLDER) / _OUTPUTS[kind]
        one.add_argument("--source", type=Path, help=_SOURCE)
        one.add_argument(
            "--output", type=Path, default=default, help=f"the file to write (default {default})"
        )
        one.add_argument(
            "--revision",
            action="append",
            default=[],
            metavar="[NAME=]COMMIT",
            help="commit on the hub (default: that of the last time, else the newest)",
        )
        add_writing(one)
        if kind != "valid":
            add_against(one, f"default {products.FOLDER}/{products.VALID_FILE}")
        one.set_defaults(run=_prepare_product, kind=kind)
    user = kinds.add_parser("user", help="a file of your own: JSON lines, JSON, CSV or parquet")
    add_user(user)
    add_against(user, "default: none")
    add_writing(user)
    user.set_defaults(run=_prepare_user)
    demo = kinds.add_parser("demo", help="the embedded task's two files")
    demo.add_argument(
        "--output", type=Path, default=Path(products.FOLDER), metavar="FOLDER", help=_FOLDER
    )
    demo.add_argument("--update-manifest", action="store_true", help=argparse.SUPPRESS)
    demo.set_defaults(run=_prepare_demo)


def _prepare_product(options: argparse.Namespace) -> int:
    sources = _SOURCES[options.kind]
    revisions = _revisions(options.revision, sources)
    if options.source is None:
        revisions = {**output.pinned_commits(options.output), **revisions}
    request = Request(
        output=options.output,
        source=options.source,
        revisions=revisions,
        against=tuple(getattr(options, "against", ())),
        keep_overlap=getattr(options, "keep_overlap", False),
    )
    if options.kind == "valid":
        return _make(options, request, prepare.make_valid)
    return _make(options, request, lambda asked: prepare.make_training(sources[0], asked))


def _revisions(given: list[str], sources: tuple[Source, ...]) -> dict[str, str]:
    names = [source.name for source in sources]
    revisions: dict[str, str] = {}
    for text in given:
        name, equals, commit = text.rpartition("=")
        if not equals and len(names) == 1:
            name = names[0]
        if name not in names or not commit:
            raise ValueError(
                f"--revision {text} is not NAME=COMMIT with one of {', '.join(names)} as NAME"
            )
        revisions[name] = commit
    return revisions


def _prepare_user(options: argparse.Namespace) -> int:
    if (options.question_column is None) != (options.answer_column is None):
        raise ValueError("--question-column and --answer-column go together: give both or none")
    request = Request(
        output=options.output,
        source=options.source,
        against=tuple(options.against),
        keep_overlap=options.keep_overlap,
        columns=Columns(options.question_column, options.answer_column),
        data_source=options.data_source,
        split=options.split,
        skip_bad=options.skip_bad,
        deduplicate=options.deduplicate,
    )
    options.kind = "user"
    return _make(options, request, prepare.make_user)


def _make(options: argparse.Namespace, request: Request, make: Callable[[Request], Product]) -> int:
    started = time.monotonic()
    inputs = [path for path in (request.source, *request.against) if path is not None]
    output.check_output(request.output, inputs, options.force)
    product = make(request)
    output.write_product(product, f"prepare {options.kind}")
    rewritten = sum(row.rewritten for row in product.rows)
    if rewritten:
        print(f"{how_many(rewritten, 'prompt')} rewritten: other instructions replaced by ours")
    for reason, rows in count_removed(product.removed).items():
        print(escaped(f"left out {how_many(rows, 'row')}: {reason}"))
    if product.removed:
        print(f"rows left out: {output.removed_file(request.output)}")
    _say_written(request.output, product.entry, time.monotonic() - started)
    if options.kind not in _SOURCES:
        return 0
    name = _OUTPUTS[options.kind]
    if request.keep_overlap:
        print(f"{request.output}: not the manifest's {name}, which is made without --keep-overlap")
    else:
        _compare(request.output, product.entry, name, options.update_manifest)
    return 0


def _prepare_demo(options: argparse.Namespace) -> int:
    started = time.monotonic()
    for path, entry in prepare.make_demo(options.output).items():
        _say_written(path, entry, time.monotonic() - started)
        _compare(path, entry, path.name, options.update_manifest)
    return 0


def _say_written(path: Path, entry: dict, seconds: float) -> None:
    print(f"{path}: {how_many(entry['rows'], 'row')}, sha256 {entry['sha256']} ({seconds:.1f} s)")


def _compare(path: Path, entry: dict, name: str, update: bool) -> None:
    """Say how a file stands to the manifest's product `name`, whatever the file is called."""
    if update:
        manifest.update_manifest(name, entry)
    print(f"{path}: {manifest.compare(entry, name, manifest.read_manifest().get(name))}")


def _check(options: argparse.Namespace) -> int:
    limit = None
    if options.tokenizer is not None:
        limit = TokenLimit(
            options.tokenizer, options.max_prompt_length, options.enable_thinking == "true"
        )
    findings = notes = 0
    boxes_only = options.answer_forms == BOXED
    for finding in check(options.files, options.against, limit, boxes_only):
        notes += finding.is_note
        findings += not finding.is_note
        print(escaped(finding.line(options.all_rows)).replace("\n", " "), flush=True)
    checked = f"{how_many(len(options.files), 'file')} checked"
    if not findings and not notes:
        print(f"{checked}: nothing found")
        return 0
    counted = [how_many(findings, "finding") if findings else "no findings"]
    counted += [how_many(notes, "note")] if notes else []
    print(f"{checked}: {', '.join(counted)} (the first row is 0)")
    return 1 if findings else 0


def _show(options: argparse.Namespace) -> int:
    limit = None if options.full else _SHOWN_CHARACTERS
    for line in show(options.file, options.start, options.rows, limit):
        print(line)
    return 0
