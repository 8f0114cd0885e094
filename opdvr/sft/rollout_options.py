"""The command line of `opdvr sft rollout`: its options, their defaults, and what contradicts."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from pathlib import Path

from opdvr.eval.options import Parser, add_machine
from opdvr.sft.rejection import KEEP_ALL, Rejection
from opdvr.verifier.extract import ANSWER_FORMS

PROMPT_COLUMN = "prompt"
ANSWER_COLUMN = "reward_model.ground_truth"
_COUNTS = ("n", "attempts", "max_tokens", "tensor_parallel", "max_num_seqs", "cpu_cache_gib")
_REPETITIONS = ("line", "chunk", "block")


@dataclass(frozen=True)
class RolloutOptions:
    """What to roll out, as asked for; see `opdvr sft rollout --help`."""

    model: str
    data: tuple[str, ...]
    output: Path
    limit: int | None
    prompt_column: str
    answer_column: str
    n: int
    temperature: float
    top_p: float
    max_tokens: int
    thinking: bool
    seed: int
    attempts: int
    rejection: Rejection
    verifier: str | None
    answer_forms: str | None
    verifier_limit: float
    val_fraction: float
    student: str | None
    llamafactory_template: str | None
    device: str | None
    dtype: str | None
    engines: int | None
    tensor_parallel: int
    max_num_seqs: int
    gpu_memory: float
    cpu_cache_gib: int


def rollout_parser() -> Parser:
    """The parser of `opdvr sft rollout`."""
    parser = Parser(
        prog="opdvr sft rollout",
        usage="opdvr sft rollout --model TEACHER --data FILE... --output DIR [...]",
        description="Sample a teacher's responses, keep the good ones, write them as data for "
        "supervised fine-tuning with verl or LlamaFactory. The same command goes on with an "
        "interrupted one.",
        allow_abbrev=False,
    )
    _add_what(parser)
    _add_sampling(parser)
    _add_rejection(parser)
    _add_exports(parser)
    add_machine(parser)
    return parser


def _add_what(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument(
        "--model", required=True, help="the teacher: folder, checkpoint, run, or hub owner/name"
    )
    what.add_argument("--data", required=True, nargs="+", metavar="FILE", help="parquet files")
    what.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder")
    what.add_argument("--limit", type=int, help="only the first so many prompts a data_source")
    what.add_argument(
        "--prompt-column",
        default=PROMPT_COLUMN,
        help=f"messages, or text that becomes the user's ({PROMPT_COLUMN}); dotted in a struct",
    )
    what.add_argument(
        "--answer-column",
        default=ANSWER_COLUMN,
        help=f"gold answers ({ANSWER_COLUMN}); without it correctness is not judged",
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("sampling")
    how.add_argument("--n", type=int, default=1, help="responses wanted a prompt (1)")
    how.add_argument("--temperature", type=float, default=0.7, help="0 is greedy (0.7)")
    how.add_argument("--top-p", type=float, default=0.95, help="(0.95)")
    how.add_argument("--max-tokens", type=int, default=8192, help="longest response (8192)")
    how.add_argument("--thinking", action="store_true", help="with the chat template's thinking on")
    how.add_argument("--seed", type=int, default=0, help="every attempt's seed comes from it (0)")


def _add_rejection(parser: argparse.ArgumentParser) -> None:
    rules = Rejection()
    group = parser.add_argument_group("rejection sampling (0 times turns a rule off)")
    group.add_argument("--attempts", type=int, default=3, help="at most, for one response (3)")
    group.add_argument("--keep-all", action="store_true", help="reject nothing")
    group.add_argument(
        "--no-reject-truncated", action="store_true", help="keep what was cut at --max-tokens"
    )
    group.add_argument("--no-require-box", action="store_true", help="keep what has no answer")
    group.add_argument("--no-require-correct", action="store_true", help="keep wrong answers")
    for kind, what in zip(_REPETITIONS, ("a line", "a chunk anywhere", "a block in a row")):  # noqa: B905
        for part, unit in (("chars", "characters"), ("times", "times")):
            name = f"{kind}_{part}"
            group.add_argument(
                f"--{kind}-{part}",
                type=int,
                default=getattr(rules, name),
                help=f"{what}: {unit} ({getattr(rules, name)})",
            )
    group.add_argument(
        "--block-over",
        type=int,
        default=rules.block_over,
        help=f"blocks: only in texts of more characters ({rules.block_over})",
    )
    group.add_argument(
        "--verifier", help="your own, module:function or file.py:function, as verl's custom reward"
    )
    group.add_argument(
        "--answer-forms", choices=ANSWER_FORMS, help="what our verifier reads (boxed)"
    )
    group.add_argument(
        "--verifier-limit",
        type=float,
        default=60.0,
        help="seconds for a verdict of your own verifier (60)",
    )


def _add_exports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("exports")
    group.add_argument(
        "--val-fraction", type=float, default=0.05, help="of the prompts into sft-val (0.05)"
    )
    group.add_argument("--student", help="model_name_or_path in LlamaFactory's YAML (the teacher)")
    group.add_argument(
        "--llamafactory-template",
        help="its name there (found from the model; 'none' leaves it out)",
    )


def read_rollout_options(arguments: list[str]) -> RolloutOptions:
    """Parsed and checked options.

    Raises:
        ValueError: an unknown, missing or impossible option, in one line.
    """
    given = rollout_parser().parse_args(arguments)
    named = {
        field.name: getattr(given, field.name)
        for field in fields(RolloutOptions)
        if field.name != "rejection"
    }
    named["data"] = tuple(named["data"])
    options = RolloutOptions(rejection=_rejection(given), **named)
    _check_numbers(options)
    if options.temperature == 0 and options.n > 1:
        raise ValueError(
            f"--temperature 0 decodes greedily, so --n {options.n} responses would be copies; use "
            "--n 1, or a temperature above 0"
        )
    return options


def _rejection(given: argparse.Namespace) -> Rejection:
    names = [f"{kind}_{part}" for kind in _REPETITIONS for part in ("chars", "times")]
    for name in names:
        least = 1 if name.endswith("chars") else 2
        value = getattr(given, name)
        if value < least and not (name.endswith("times") and value == 0):
            off = ", or 0 for no such rule" if name.endswith("times") else ""
            raise ValueError(f"{_option(name)} {value}: give {least} or more{off}")
    if given.block_over < 0:
        raise ValueError(f"--block-over {given.block_over}: give 0 or more")
    if given.keep_all:
        return KEEP_ALL
    return Rejection(
        truncated=not given.no_reject_truncated,
        box=not given.no_require_box,
        correct=not given.no_require_correct,
        block_over=given.block_over,
        **{name: getattr(given, name) for name in names},
    )


def _check_numbers(options: RolloutOptions) -> None:
    for name in (*_COUNTS, "limit", "engines"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{_option(name)} {value}: give 1 or more")
    if not (math.isfinite(options.temperature) and options.temperature >= 0):
        raise ValueError(f"--temperature {options.temperature}: give 0 or more")
    for name in ("top_p", "gpu_memory"):
        if not 0 < getattr(options, name) <= 1:
            raise ValueError(f"{_option(name)} {getattr(options, name)}: give more than 0, up to 1")
    if not 0 <= options.val_fraction < 1:
        raise ValueError(f"--val-fraction {options.val_fraction}: give 0 or more, below 1")
    if not 0 < options.verifier_limit < math.inf:
        raise ValueError(f"--verifier-limit {options.verifier_limit}: give seconds above 0")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
