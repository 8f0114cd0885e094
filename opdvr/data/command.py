"""The command `opdvr data`: prepare, check and show data files."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from opdvr.data import manifest, output, prepare, products
from opdvr.data.check import (
    ENABLE_THINKING,
    MAX_PROMPT_LENGTH,
    Finding,
    TokenLimit,
    check,
)
from opdvr.data.output import Product
from opdvr.data.prepare import Request
from opdvr.data.reading import Columns
from opdvr.data.rows import count_removed
from opdvr.data.show import show
from opdvr.data.sources import BENCHMARKS, DAPO, DEEPMATH, Source

_SHOWN_CHARACTERS = 600
_SOURCES: dict[str, tuple[Source, ...]] = {
    "valid": BENCHMARKS,
    "deepmath": (DEEPMATH,),
    "dapo": (DAPO,),
}
_OUTPUTS = {product: name for name, product in products.PRODUCTS.items()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {products.COMMAND} --help)")


def main(arguments: list[str]) -> int:
    """Run `opdvr data ARGUMENTS`; returns the exit code.

    0: done, and nothing found. 1: `check` found something. 2: a mistake, as one line on stderr.
    """
    try:
        options = _parser().parse_args(arguments)
        return options.run(options)
    except (ValueError, OSError) as error:
        print(f"opdvr data: {error}", file=sys.stderr)
        return 2


def _parser() -> _Parser:
    parser = _Parser(prog=products.COMMAND, description="Make, check and show data files.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_prepare(commands.add_parser("prepare", help="make a data file"))
    _add_check(commands.add_parser("check", help="say what is wrong with data files"))
    show_rows = commands.add_parser("show", help="print a few rows")
    show_rows.add_argument("file", type=Path)
    show_rows.add_argument("--start", type=_count, default=0, help="first row (default 0)")
    show_rows.add_argument("--rows", type=_count, default=3, help="how many (default 3)")
    show_rows.add_argument("--full", action="store_true", help="long texts whole")
    show_rows.set_defaults(run=_show)
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
        one.add_argument("--source", type=Path, help="a folder or file (default: the hub)")
        one.add_argument("--output", type=Path, default=default, help=f"default {default}")
        one.add_argument(
            "--revision",
            action="append",
            default=[],
            metavar="[NAME=]COMMIT",
            help="commit on the hub (default: that of the last time, else the newest)",
        )
        _add_writing(one)
        if kind != "valid":
            _add_against(one, f"default {products.FOLDER}/{products.VALID_FILE}")
        one.set_defaults(run=_prepare_product, kind=kind)
    user = kinds.add_parser("user", help="a file of your own: JSON lines, JSON, CSV or parquet")
    user.add_argument("--source", type=Path, required=True)
    user.add_argument("--output", type=Path, required=True)
    user.add_argument("--question-column", help="a.b is field b of a (default: verl's form)")
    user.add_argument("--answer-column")
    user.add_argument("--data-source", help="name of the data in scores (default: the file's)")
    user.add_argument("--split", default="train")
    user.add_argument("--skip-bad", action="store_true", help="leave out unusable gold answers")
    user.add_argument("--deduplicate", action="store_true", help="each problem once")
    _add_against(user, "default: none")
    _add_writing(user)
    user.set_defaults(run=_prepare_user)
    demo = kinds.add_parser("demo", help="the embedded task's two files")
    demo.add_argument("--output", type=Path, default=Path(products.FOLDER), metavar="FOLDER")
    demo.add_argument("--update-manifest", action="store_true", help=argparse.SUPPRESS)
    demo.set_defaults(run=_prepare_demo)


def _add_writing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace any output file")
    # For those who change what a product is.
    parser.add_argument("--update-manifest", action="store_true", help=argparse.SUPPRESS)


def _add_against(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--against",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"leave out problems that stand in this test file; repeatable ({default})",
    )
    parser.add_argument("--keep-overlap", action="store_true", help="leave out none of them")


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument(
        "--against", nargs="+", default=[], metavar="FILE", help="only search for its problems"
    )
    parser.add_argument("--tokenizer", help="a model folder: find prompts over the token limit")
    parser.add_argument("--max-prompt-length", type=_count, default=MAX_PROMPT_LENGTH)
    parser.add_argument(
        "--enable-thinking",
        choices=("true", "false"),
        default=str(ENABLE_THINKING).lower(),
        help="the chat template's option, as in training (default %(default)s)",
    )
    parser.add_argument(
        "--answer-forms",
        choices=("boxed", "any"),
        default="boxed",
        help="what counts as an answer, as ANSWER_FORMS in training (default %(default)s)",
    )
    parser.add_argument("--all-rows", action="store_true", help="name every row")
    parser.set_defaults(run=_check)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return int(text)


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
        print(f"{rewritten:,} prompts rewritten: other instructions replaced by ours")
    for reason, rows in count_removed(product.removed).items():
        print(f"left out {rows:,} rows: {reason}")
    if product.removed:
        print(f"rows left out: {output.removed_file(request.output)}")
    _say_written(request.output, product.entry, time.monotonic() - started)
    if options.kind in _SOURCES:
        _compare(request.output, product.entry, options.update_manifest)
    return 0


def _prepare_demo(options: argparse.Namespace) -> int:
    started = time.monotonic()
    for path, entry in prepare.make_demo(options.output).items():
        _say_written(path, entry, time.monotonic() - started)
        _compare(path, entry, options.update_manifest)
    return 0


def _say_written(path: Path, entry: dict, seconds: float) -> None:
    print(f"{path}: {entry['rows']:,} rows, sha256 {entry['sha256']} ({seconds:.1f} s)")


def _compare(path: Path, entry: dict, update: bool) -> None:
    if update:
        manifest.update_manifest(path.name, entry)
    print(f"{path}: {manifest.compare(entry, manifest.read_manifest().get(path.name))}")


def _check(options: argparse.Namespace) -> int:
    limit = None
    if options.tokenizer is not None:
        limit = TokenLimit(
            options.tokenizer, options.max_prompt_length, options.enable_thinking == "true"
        )
    findings: list[Finding] = []
    boxes_only = options.answer_forms == "boxed"
    for finding in check(options.files, options.against, limit, boxes_only):
        if not finding.is_note:
            findings.append(finding)
        print(finding.line(options.all_rows), flush=True)
    files = len(options.files)
    checked = f"{files} file{'s' if files > 1 else ''} checked"
    if findings:
        found = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
        print(f"{checked}: {found} (the first row is 0)")
        return 1
    print(f"{checked}: nothing found")
    return 0


def _show(options: argparse.Namespace) -> int:
    limit = None if options.full else _SHOWN_CHARACTERS
    for line in show(options.file, options.start, options.rows, limit):
        print(line)
    return 0
