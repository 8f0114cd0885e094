"""The command line's shared options, and how it reads numbers."""

import argparse
from pathlib import Path
from typing import NoReturn

from opdvr.data.check import ENABLE_THINKING, MAX_PROMPT_LENGTH
from opdvr.data.products import COMMAND
from opdvr.verifier.extract import ANSWER_FORMS, BOXED

OWN_FILE = "a .parquet, .jsonl, .json or .csv file"


class Parser(argparse.ArgumentParser):
    """Refuses usage mistakes as every other mistake is refused."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {COMMAND} --help)")


def add_user(parser: argparse.ArgumentParser) -> None:
    """Options of `prepare user` alone."""
    parser.add_argument("--source", type=Path, required=True, metavar="FILE", help=OWN_FILE)
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="the .parquet file to write"
    )
    parser.add_argument("--question-column", help="a.b is field b of a (default: verl's form)")
    parser.add_argument("--answer-column", help="the gold answers, named likewise")
    parser.add_argument("--data-source", help="name of the data in scores (default: the file's)")
    parser.add_argument(
        "--split", default="train", help="stands in extra_info.split (default %(default)s)"
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out rows without a usable problem or gold answer, and say which",
    )
    parser.add_argument("--deduplicate", action="store_true", help="each problem once")


def add_writing(parser: argparse.ArgumentParser) -> None:
    """Options of everything that writes a file."""
    parser.add_argument("--force", action="store_true", help="replace any output file")
    # For those who change what a product is.
    parser.add_argument("--update-manifest", action="store_true", help=argparse.SUPPRESS)


def add_against(parser: argparse.ArgumentParser, default: str) -> None:
    """Options about test problems to leave out."""
    parser.add_argument(
        "--against",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"leave out problems that stand in this test file; repeatable ({default})",
    )
    parser.add_argument("--keep-overlap", action="store_true", help="leave out none of them")


def add_check(parser: argparse.ArgumentParser) -> None:
    """Options of `check`."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="data files as training reads them: .parquet, or .json with a row a line",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="FILE",
        help="search only for the problems of these files, which are not checked themselves",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        help="a model folder: find prompts over the token limit",
    )
    parser.add_argument(
        "--max-prompt-length",
        type=positive,
        default=MAX_PROMPT_LENGTH,
        metavar="TOKENS",
        help="the limit, with --tokenizer (default %(default)s)",
    )
    parser.add_argument(
        "--enable-thinking",
        choices=("true", "false"),
        default=str(ENABLE_THINKING).lower(),
        help="the chat template's option, as in training (default %(default)s)",
    )
    parser.add_argument(
        "--answer-forms",
        choices=ANSWER_FORMS,
        default=BOXED,
        help="what counts as an answer, as ANSWER_FORMS in training (default %(default)s)",
    )
    parser.add_argument("--all-rows", action="store_true", help="name every row")


def count(text: str) -> int:
    """A number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return int(text)


def positive(text: str) -> int:
    """A number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)
