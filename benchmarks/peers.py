"""One whole OPDVR step against one step of TRL's on-policy distillation trainers.

Generation, teacher, verdicts, update and the hand-over of weights are all inside the clock. Every
side is a process of its own; steps alternate in rounds and begin from the same prompts. On CPUs
only. The peer's environment is made once, from a package registry.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import CPU, TOTAL, Result, Seconds, interleaved, note, over_rounds
from benchmarks.peers_environment import FOLDER, prepare

if TYPE_CHECKING:
    from benchmarks.peers_cases import Case
    from benchmarks.peers_sides import Side

OURS = "OPDVR"
TRAINERS = ("DistillationTrainer", "IWOPDTrainer")  # of TRL; the second is experimental
CASES = ("embedded", "bigger")
GENERATION, REST = "generation", "all but generation"


def add_options(parser: argparse.ArgumentParser) -> None:
    """This benchmark's options."""
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS))
    parser.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of every side")
    parser.add_argument("--bigger-rounds", type=int, default=3, help="measured rounds of bigger")
    parser.add_argument("--prompts", type=int, default=2, help="prompts a step of bigger")
    parser.add_argument("--group-size", type=int, default=4, help="responses a prompt of bigger")
    parser.add_argument("--response-tokens", type=int, default=256, help="of bigger")
    parser.add_argument("--vocabulary", type=int, default=32768, help="of bigger")
    parser.add_argument("--hidden", type=int, default=512, help="of bigger")
    parser.add_argument("--layers", type=int, default=12, help="of bigger")
    parser.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable of our launcher, such as FULL_VOCABULARY=reverse_kl",
    )


def run(options: argparse.Namespace) -> list[Result]:
    """Seconds, throughput and memory of our step, with the ratio of each of TRL's trainers.

    Raises:
        ValueError: a --knob without a value, or a Python that the peer does not run on.
        RuntimeError: the peer's environment cannot be made, or a side failed.
    """
    knobs = parse_knobs(options.knob)
    python = prepare()
    # our own imports take seconds, which a refusal need not wait for
    from benchmarks import peers_cases
    from benchmarks.random_model import Shape

    results = []
    with tempfile.TemporaryDirectory(prefix="peers-", dir="/tmp") as name:
        folder = Path(name)
        if "embedded" in options.cases:
            case = peers_cases.embedded(4, 4) if options.quick else peers_cases.embedded()
            rounds = (1, 2) if options.quick else (3, options.rounds or 11)
            results += compare(case, options, python, folder / "embedded", rounds, knobs)
        if "bigger" in options.cases and not options.quick:
            shape = Shape(options.vocabulary, options.hidden, options.layers)
            case = peers_cases.bigger(
                folder, shape, options.prompts, options.group_size, options.response_tokens
            )
            rounds = (1, options.bigger_rounds)
            results += compare(case, options, python, folder / "bigger", rounds, knobs)
    return results


def parse_knobs(knobs: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE as a dictionary.

    Raises:
        ValueError: one without a name or an equals sign.
    """
    pairs = [knob.partition("=") for knob in knobs]
    for knob, (name, equals, _) in zip(knobs, pairs, strict=True):
        if not (name and equals):
            raise ValueError(f"--knob {knob} is not of the form NAME=VALUE")
    return {name: value for name, _, value in pairs}


def compare(
    case: Case,
    options: argparse.Namespace,
    python: Path,
    folder: Path,
    rounds: tuple[int, int],
    knobs: Mapping[str, str],
) -> list[Result]:
    """All sides of one case, started, warmed up, measured and stopped; rounds: of these two."""
    from benchmarks.peers_sides import check_same_prompts

    folder.mkdir()
    sides = make_sides(case, options, python, folder, knobs)
    warm_up, measured = rounds
    with ExitStack() as running:
        for side in sides:
            running.callback(side.close)
            side.start()
        steps = {side.name: side.step for side in sides}
        note(f"{case.name}: {case.rows} responses a step; warming up")
        interleaved(steps, 0, warm_up)
        for side in sides:
            side.reset_peak()
        seconds = interleaved(steps, measured, 0)
        memory = {side.name: side.memory() for side in sides}
    check_same_prompts(sides)
    tokens = {side.name: [report["tokens"] for report in side.reports[warm_up:]] for side in sides}
    return list(summarise(case.name, seconds, tokens, memory))


def make_sides(
    case: Case,
    options: argparse.Namespace,
    python: Path,
    folder: Path,
    knobs: Mapping[str, str],
) -> list[Side]:
    """Ours, and one of each of TRL's trainers."""
    from benchmarks import peers_cases
    from benchmarks.peers_sides import Side, environment, python_module

    parquet, lines = peers_cases.write_problems(folder)
    arguments = peers_cases.launcher_arguments(case, parquet, folder / "run", knobs)
    command = python_module("benchmarks.peers_ours", *arguments)
    common = environment(options.threads)
    sides = [Side(OURS, command, folder / "ours.log", common)]
    for trainer in options.trainers:
        settings = {
            "trainer": trainer,
            "student": case.student,
            "teacher": case.teacher,
            "problems": str(lines),
            "output": str(folder / trainer),
            "rows": case.rows,
            "group_size": case.group_size,
            # this one generates for each micro-batch alone, so it gets one of all rows
            "micro_batch": case.rows if trainer == "IWOPDTrainer" else case.micro_batch,
            "response_tokens": case.response_tokens,
            "learning_rate": case.learning_rate,
        }
        command = [str(python), str(FOLDER / "trl_side.py"), json.dumps(settings)]
        sides.append(Side(f"TRL {trainer}", command, folder / f"{trainer}.log", common))
    return sides


def summarise(
    case: str,
    seconds: Mapping[str, Sequence[Seconds]],
    tokens: Mapping[str, Sequence[int]],
    memory: Mapping[str, Mapping[str, float]],
) -> Iterator[Result]:
    """Every figure of ours with the ratio of each peer, then the peers' own figures."""
    peers = [name for name in seconds if name != OURS]
    for metric, unit, value in _metrics():
        values = {
            name: [value(*step) for step in zip(seconds[name], tokens[name], strict=True)]
            for name in seconds
        }
        for peer in peers:
            pairs = zip(values[peer], values[OURS], strict=True)
            ratios = [theirs / mine for theirs, mine in pairs]
            yield over_rounds(f"{case}: {OURS}", metric, unit, values[OURS], peer, ratios)
        for peer in peers:
            yield over_rounds(f"{case}: {peer}", metric, unit, values[peer])
    for name in seconds:
        pairs = zip(seconds[name], tokens[name], strict=True)
        rates = [count / step[TOTAL] for step, count in pairs]
        yield over_rounds(f"{case}: {name}", "throughput", "response tokens/s", rates)
    for phase in seconds[OURS][0]:
        if phase not in (TOTAL, CPU, GENERATION):
            values = [step[phase] for step in seconds[OURS]]
            yield over_rounds(f"{case}: {OURS}", phase, "s", values)
    for metric, unit in (("peak", "MiB"), ("held", "MiB"), ("processes", "")):
        mine = memory[OURS][metric]
        name = {"peak": "peak memory", "held": "memory at the end"}.get(metric, metric)
        for peer in peers:
            theirs = memory[peer][metric]
            yield Result(f"{case}: {OURS}", name, mine, unit, peer, theirs / mine)
        for peer in peers:
            yield Result(f"{case}: {peer}", name, memory[peer][metric], unit)


def _metrics() -> Iterator[tuple[str, str, Callable[[Seconds, int], float]]]:
    """Metric, unit, and how it follows from a step's seconds and its response tokens."""
    yield "step", "s", lambda step, _: step[TOTAL]
    yield "step, CPU", "s", lambda step, _: step[CPU]
    yield "1,000 response tokens", "s", lambda step, tokens: 1000 * step[TOTAL] / tokens
    yield GENERATION, "s", lambda step, _: step[GENERATION]
    yield REST, "s", lambda step, _: step[TOTAL] - step[GENERATION]
