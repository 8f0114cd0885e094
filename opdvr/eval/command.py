"""`opdvr eval`: sample and score, score again, compare. Heavy imports come when they are needed."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from opdvr.eval.options import Parser, add_scoring, judge_options, read_sample_options

USER_MISTAKE = 2
INTERRUPTED = 130


def say(line: str) -> None:
    """Print a line about the command's doings, apart from its results."""
    print(f"opdvr eval: {line}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Entry of `opdvr eval`; a user's mistake is one line and exit code 2."""
    commands: dict[str, Callable[[list[str]], int]] = {"compare": compare, "score": score_again}
    if arguments and arguments[0] in commands:
        run, rest = commands[arguments[0]], arguments[1:]
    else:
        run, rest = evaluate, arguments
    try:
        return run(rest)
    except UserMistake as mistake:
        say(str(mistake))
        return USER_MISTAKE
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return INTERRUPTED


class UserMistake(Exception):
    """One line that names the option or file, and the remedy."""


def evaluate(arguments: list[str]) -> int:
    """`opdvr eval --model …`: sample what is missing, then score everything."""
    try:
        options = read_sample_options(arguments)
        from opdvr.eval.prepare import prepare

        evaluation = prepare(options, arguments, say)
    except ValueError as mistake:
        raise UserMistake(_in_a_line(mistake)) from None
    from opdvr.eval.prepare import rules_of
    from opdvr.eval.samples import SAMPLES, read_samples
    from opdvr.eval.sampling import ENGINE_LOG, sample

    judge_is_local = options.judge is not None and options.judge.url is None
    finished = False
    with evaluation.lock:
        try:
            sample(evaluation, say, apart=judge_is_local)
            finished = True
        except KeyboardInterrupt:
            kept = sum(1 for _ in read_samples(evaluation.folder / SAMPLES))
            total = len(evaluation.problems) * evaluation.n
            again = shlex.join(["python", "-m", "opdvr", "eval", *arguments])
            say(f"interrupted with {kept:,} of {total:,} samples; go on with: {again}")
            finished = True
            return INTERRUPTED
        finally:
            if not finished:
                say(f"stopped; what the engine said is in {evaluation.folder / ENGINE_LOG}")
        rules = rules_of(options.verifier, options.answer_forms)
        _score(evaluation.folder, evaluation.problems, rules, options.judge)
    return 0


def _score(folder: Path, problems: list, rules: object, judge: object) -> None:
    from opdvr.eval.samples import SAMPLES, read_run, read_samples
    from opdvr.eval.scoring import CHART, RESULTS_JSON, score, validation_line

    run = read_run(folder)
    print(score(folder, problems, list(read_samples(folder / SAMPLES)), run, rules, judge, say))
    if run["trainer_validation"]:
        print(f"the trainer's own validation: {validation_line(run)}")
    say(f"{folder / RESULTS_JSON}, results.md, {CHART}, scored.jsonl")


def score_again(arguments: list[str]) -> int:
    """`opdvr eval score DIR`: score finished samples again, say with another verifier."""
    try:
        parser = Parser(prog="opdvr eval score", description=score_again.__doc__)
        parser.add_argument("folder", type=Path, metavar="DIR", help="a finished evaluation")
        add_scoring(parser)
        given = parser.parse_args(arguments)
        judge = judge_options(given)
        from opdvr.eval import samples
        from opdvr.eval.grading import load_verifier
        from opdvr.eval.prepare import check_judge, rules_of

        check_judge(judge, given.folder)
        run = samples.read_run(given.folder)
        rules = rules_of(
            given.verifier or run["verifier"], given.answer_forms or run["answer_forms"]
        )
        load_verifier(rules)
        problems = _problems_of(run, given.folder, rules.is_own)
        lock = samples.hold(given.folder)
        there = sum(1 for _ in samples.read_samples(given.folder / samples.SAMPLES, repair=True))
        total = len(problems) * run["settings"]["n"]
        if there < total:
            raise ValueError(
                f"{given.folder} has {there:,} of {total:,} samples; first finish it with: "
                f"{shlex.join(['python', '-m', *run['command']])}"
            )
    except ValueError as mistake:
        raise UserMistake(_in_a_line(mistake)) from None
    with lock:
        _score(given.folder, problems, rules, judge)
    return 0


def _problems_of(run: dict, folder: Path, own_verifier: bool) -> list:
    """The problems of an evaluation, from files that must still be what they were."""
    from opdvr.eval.problems import load_problems

    problems, files, _ = load_problems(
        run["data"], run["settings"]["limit"], own_verifier=own_verifier
    )
    hashes = "".join(file.sha256 for file in files)
    if hashlib.sha256(hashes.encode()).hexdigest()[:32] != run["settings"]["data"]["fingerprint"]:
        raise ValueError(
            f"{folder}: {' '.join(run['data'])} changed since it was sampled; restore it"
        )
    return problems


def compare(arguments: list[str]) -> int:
    """`opdvr eval compare A B`: what B gains over A, problem by problem."""
    from opdvr.eval.compare import compare_folders, render

    try:
        parser = Parser(prog="opdvr eval compare", description=compare.__doc__)
        parser.add_argument("before", type=Path, metavar="A", help="an evaluation's folder")
        parser.add_argument("after", type=Path, metavar="B", help="another, of the same problems")
        parser.add_argument("--json", action="store_true", help="print JSON, every problem in it")
        parser.add_argument("--show", type=int, default=5, help="problems to list each way (5)")
        given = parser.parse_args(arguments)
        found = compare_folders(given.before, given.after)
    except ValueError as mistake:
        raise UserMistake(_in_a_line(mistake)) from None
    print(render(found, given.show, as_json=given.json))
    return 0


def _in_a_line(mistake: ValueError) -> str:
    return " ".join(str(mistake).split())
