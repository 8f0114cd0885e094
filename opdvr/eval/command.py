"""`opdvr eval`: sample and score, score again, compare. Heavy imports come when they are needed."""

from __future__ import annotations

import errno
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from opdvr.eval.jsonl import FREE_SPACE, Unwritable, writing
from opdvr.eval.options import (
    JudgeOptions,
    Parser,
    add_scoring,
    judge_options,
    read_sample_options,
)

if TYPE_CHECKING:
    from opdvr.eval.verdicts import Rules, VerifierFailure

USER_MISTAKE = 2
INTERRUPTED = 130
VERIFIER_LOG = "verifier.log"
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


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
    again = "interrupted; the same command goes on from here"
    return exit_code(lambda: run(rest), say, again)


def exit_code(run: Callable[[], int], say: Callable[[str], None], interrupted: str) -> int:
    """What `run` returns; a user's mistake, a full disk and Ctrl-C are one line and a code."""
    try:
        return run()
    except (UserMistake, Unwritable) as mistake:
        say(str(mistake))
        return USER_MISTAKE
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        # Written by a library, such as a temporary file of vLLM's.
        say(f"{error.filename or 'a file'} cannot be written ({error.strerror}); {FREE_SPACE}")
        return USER_MISTAKE
    except KeyboardInterrupt:
        say(interrupted)
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
    from opdvr.eval.samples import SAMPLES, read_samples
    from opdvr.eval.sampling import ENGINE_LOG, sample
    from opdvr.eval.verdicts import rules_of

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
        except Unwritable:
            finished = True
            raise
        finally:
            if not finished:
                say(f"stopped; what the engine said is in {evaluation.folder / ENGINE_LOG}")
        rules = rules_of(options.verifier, options.answer_forms)
        _score(evaluation.folder, evaluation.problems, rules, options.judge)
    return 0


def _score(folder: Path, problems: list, rules: Rules, judge: JudgeOptions | None) -> None:
    from opdvr.eval.samples import SAMPLES, read_run, read_samples
    from opdvr.eval.scoring import CHART, RESULTS_JSON, score
    from opdvr.eval.trained import validation_line
    from opdvr.eval.verdicts import VerifierFailure

    run = read_run(folder)
    _say_scored_anew(folder, rules)
    try:
        print(score(folder, problems, list(read_samples(folder / SAMPLES)), run, rules, judge, say))
    except VerifierFailure as failure:
        raise UserMistake(_way_on(failure, folder, rules)) from None
    if run["trainer_validation"]:
        print(f"the trainer's own validation: {validation_line(run, rules)}")
    say(f"{folder / RESULTS_JSON}, results.md, {CHART}, scored.jsonl")


def _say_scored_anew(folder: Path, rules: Rules) -> None:
    """Say it where results that are there were scored by another verifier."""
    from opdvr.eval.scoring import RESULTS_JSON, read_results
    from opdvr.eval.verdicts import Rules

    if not (folder / RESULTS_JSON).exists():
        return
    try:
        found = read_results(folder)
    except ValueError:
        say(f"{folder / RESULTS_JSON} is damaged and is written anew")
        return
    before = Rules(found["verifier"], found["answer_forms"])
    if before != rules:
        say(f"{folder} is scored anew with {rules} (before: {before})")


def _way_on(failure: VerifierFailure, folder: Path, rules: Rules) -> str:
    """A line about a verifier that failed; its traceback goes to a file."""
    command = ["python", "-m", "opdvr", "eval", "score", str(folder), "--verifier", rules.verifier]
    line = f"{failure}; mend it and score the same samples with: {shlex.join(command)}"
    if not failure.trace:
        return line
    log = folder / VERIFIER_LOG
    with writing(log):
        log.write_text(failure.trace, encoding="utf-8", errors="replace")
    return f"{line} (traceback: {log})"


def score_again(arguments: list[str]) -> int:
    """`opdvr eval score DIR`: score finished samples again, say with another verifier."""
    try:
        parser = Parser(prog="opdvr eval score", description=score_again.__doc__)
        parser.add_argument("folder", type=Path, metavar="DIR", help="a finished evaluation")
        add_scoring(parser)
        given = parser.parse_args(arguments)
        judge = judge_options(given)
        from opdvr.eval import samples
        from opdvr.eval.prepare import check_judge, say_other_verifier
        from opdvr.eval.verdicts import load_verifier, rules_of

        check_judge(judge, given.folder)
        run = samples.read_run(given.folder)
        rules = rules_of(given.verifier, given.answer_forms)
        if given.verifier is None:
            forms = given.answer_forms or run["answer_forms"]
            rules = rules_of(run["verifier"], forms)
        load_verifier(rules)
        problems = _problems_of(run, given.folder, rules.is_own)
        lock = samples.hold(given.folder)
        _check_finished(given.folder, problems, run)
        say_other_verifier(given.folder, rules, say)
    except ValueError as mistake:
        raise UserMistake(_in_a_line(mistake)) from None
    with lock:
        _score(given.folder, problems, rules, judge)
    return 0


def _check_finished(folder: Path, problems: list, run: dict) -> None:
    from opdvr.eval.samples import SAMPLES, read_samples

    n = run["settings"]["n"]
    expected = ({problem.key for problem in problems}, n)
    there = sum(1 for _ in read_samples(folder / SAMPLES, repair=True, expected=expected))
    total = len(problems) * n
    if there < total:
        raise ValueError(
            f"{folder} has {there:,} of {total:,} samples; first finish it with: "
            f"{shlex.join(['python', '-m', *run['command']])}"
        )


def _problems_of(run: dict, folder: Path, own_verifier: bool) -> list:
    """The problems of an evaluation, from files that must still be what they were."""
    from opdvr.eval.problems import data_fingerprint, load_problems

    problems, files, _ = load_problems(
        run["data"], run["settings"]["limit"], own_verifier=own_verifier
    )
    if data_fingerprint(files) != run["settings"]["data"]["fingerprint"]:
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
