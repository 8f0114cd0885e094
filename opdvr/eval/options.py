"""The command line of `opdvr eval`: its options, their defaults, and what contradicts itself."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from opdvr.eval.problems import BENCHMARKS
from opdvr.verifier.extract import ANSWER_FORMS

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")
SAMPLE_USAGE = """\
opdvr eval --model MODEL --data FILE_OR_BENCHMARK... [--n N] [--output DIR] [...]
       opdvr eval score DIR [--verifier V] [--judge-model M]
       opdvr eval compare A B [--json]"""


@dataclass(frozen=True)
class JudgeOptions:
    """A model that is asked about answers which the rules reject.

    `model` is a name at the address `url`, or without one a model as `--model` takes it, which then
    runs on `device` (None: found out).
    """

    model: str
    url: str | None
    max_tokens: int
    device: str | None = None


@dataclass(frozen=True)
class EvalOptions:
    """What to sample, as asked for; see `opdvr eval --help`."""

    model: str
    data: tuple[str, ...]
    output: Path | None
    n: int
    temperature: float
    top_p: float
    max_tokens: int
    thinking: bool
    limit: int | None
    seed: int
    verifier: str | None
    answer_forms: str | None
    judge: JudgeOptions | None
    device: str | None
    dtype: str | None
    engines: int | None
    tensor_parallel: int
    max_num_seqs: int
    gpu_memory: float
    cpu_cache_gib: int


class Parser(argparse.ArgumentParser):
    """Says a mistake in one line."""

    def error(self, message: str) -> None:
        """Raise instead of printing the usage."""
        raise ValueError(message)


def sample_parser() -> Parser:
    """The parser of `opdvr eval --model …`."""
    parser = Parser(
        prog="opdvr eval",
        usage=SAMPLE_USAGE,
        description="Sample from a model, score with the verifier, write results.json, results.md "
        "and accuracy.png. The same command goes on with an interrupted evaluation.",
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--model", required=True, help="folder, global_step_N, run folder, or hub name owner/name"
    )
    what.add_argument(
        "--data",
        required=True,
        nargs="+",
        metavar="FILE",
        help=f"parquet files in verl's schema, or benchmarks: {', '.join(BENCHMARKS)}",
    )
    what.add_argument("--limit", type=int, help="only the first so many problems a benchmark")
    what.add_argument(
        "--output", type=Path, help="folder (default: evaluations/<model>, for any data and n)"
    )
    how = parser.add_argument_group("sampling (defaults: as the trainer's validation)")
    how.add_argument("--n", type=int, default=16, help="samples a problem (16)")
    how.add_argument("--temperature", type=float, default=0.7, help="0 is greedy (0.7)")
    how.add_argument("--top-p", type=float, default=0.95, help="(0.95)")
    how.add_argument("--max-tokens", type=int, default=8192, help="longest response (8192)")
    how.add_argument("--thinking", action="store_true", help="with the chat template's thinking on")
    how.add_argument("--seed", type=int, default=0, help="every sample's seed comes from it (0)")
    add_scoring(parser)
    add_machine(parser)
    return parser


def add_machine(parser: argparse.ArgumentParser) -> None:
    """How the engines run; whatever samples with them has these options."""
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", choices=DEVICES, help="(cuda where there is a GPU)")
    machine.add_argument("--dtype", choices=DTYPES, help="(bfloat16; float32 on CPU)")
    machine.add_argument("--engines", type=int, help="copies of the model (one a GPU; 1 on CPU)")
    machine.add_argument("--tensor-parallel", type=int, default=1, help="GPUs an engine (1)")
    machine.add_argument("--max-num-seqs", type=int, default=256, help="at once, an engine (256)")
    machine.add_argument("--gpu-memory", type=float, default=0.9, help="share to use (0.9)")
    machine.add_argument("--cpu-cache-gib", type=int, default=4, help="attention cache on CPU (4)")


def add_scoring(parser: argparse.ArgumentParser) -> None:
    """The options that `opdvr eval` and `opdvr eval score` share."""
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument(
        "--verifier", help="your own, module:function or file.py:function, as verl's custom reward"
    )
    scoring.add_argument(
        "--answer-forms", choices=ANSWER_FORMS, help="what our verifier reads (boxed)"
    )
    scoring.add_argument("--judge-model", help="ask this model about answers that the rules reject")
    scoring.add_argument(
        "--judge-url", help="its OpenAI-compatible address; key: OPDVR_JUDGE_API_KEY"
    )
    scoring.add_argument("--judge-max-tokens", type=int, default=1024, help="of a verdict (1024)")


def read_sample_options(arguments: list[str]) -> EvalOptions:
    """Parsed and checked options.

    Raises:
        ValueError: an unknown, missing or impossible option, in one line.
    """
    given = sample_parser().parse_args(arguments)
    named = {
        name: getattr(given, name) for name in EvalOptions.__dataclass_fields__ if name != "judge"
    }
    named["data"] = tuple(named["data"])
    options = EvalOptions(judge=judge_options(given), **named)
    for name in ("n", "max_tokens", "tensor_parallel", "max_num_seqs", "cpu_cache_gib"):
        _positive(name, getattr(options, name))
    for name in ("limit", "engines"):
        if getattr(options, name) is not None:
            _positive(name, getattr(options, name))
    if not (math.isfinite(options.temperature) and options.temperature >= 0):
        raise ValueError(f"--temperature {options.temperature}: give 0 or more")
    if not 0 < options.top_p <= 1:
        raise ValueError(f"--top-p {options.top_p}: give more than 0, up to 1")
    if not 0 < options.gpu_memory <= 1:
        raise ValueError(f"--gpu-memory {options.gpu_memory}: give more than 0, up to 1")
    if options.temperature == 0 and options.n > 1:
        raise ValueError(
            f"--temperature 0 decodes greedily, so --n {options.n} samples would be copies; use "
            "--n 1, or a temperature above 0"
        )
    return options


def judge_options(given: argparse.Namespace) -> JudgeOptions | None:
    """The judge, if one is named.

    Raises:
        ValueError: an address without a model.
    """
    _positive("judge_max_tokens", given.judge_max_tokens)
    if given.judge_model is None:
        if given.judge_url is not None:
            raise ValueError("--judge-url needs --judge-model, the model's name at that address")
        return None
    device = getattr(given, "device", None)
    return JudgeOptions(given.judge_model, given.judge_url, given.judge_max_tokens, device)


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"--{name.replace('_', '-')} {value}: give 1 or more")
