"""`opdvr sft rollout`: a teacher's responses, the good ones kept, as data for fine-tuning."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from opdvr.eval.command import VERIFIER_LOG, UserMistake, exit_code
from opdvr.eval.jsonl import Unwritable, writing
from opdvr.sft.rollout_options import read_rollout_options

if TYPE_CHECKING:
    from opdvr.eval.verdicts import VerifierFailure
    from opdvr.sft.rollout_prepare import Rollout

NOTHING_ACCEPTED = 1


def say(line: str) -> None:
    """Print a line about the command's doings, apart from its results."""
    print(f"opdvr sft rollout: {line}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Entry of `opdvr sft rollout`; a user's mistake is one line and exit code 2."""
    return exit_code(
        lambda: _roll_out(arguments), say, f"interrupted; go on with: {_again(arguments)}"
    )


def _again(arguments: list[str]) -> str:
    return shlex.join(["python", "-m", "opdvr", "sft", "rollout", *arguments])


def _roll_out(arguments: list[str]) -> int:
    try:
        options = read_rollout_options(arguments)
        from opdvr.sft.rollout_prepare import prepare

        rollout = prepare(options, arguments, say)
    except ValueError as mistake:
        raise UserMistake(_in_a_line(mistake)) from None
    with rollout.lock:
        _sample(rollout, arguments)
        try:
            return _export(rollout)
        except ValueError as mistake:
            raise UserMistake(_in_a_line(mistake)) from None


def _sample(rollout: Rollout, arguments: list[str]) -> None:
    from opdvr.eval.verdicts import VerifierFailure
    from opdvr.sft.rollout_attempts import ACCEPTED_FILE, read_attempts
    from opdvr.sft.rollout_run import ENGINE_LOG, roll_out

    explained = False
    try:
        roll_out(rollout, say)
        explained = True
    except KeyboardInterrupt:
        explained = True
        kept = sum(1 for _ in read_attempts(rollout.folder / ACCEPTED_FILE))
        say(f"interrupted with {kept:,} of {rollout.slots:,} responses accepted")
        raise
    except Unwritable:
        explained = True
        raise
    except VerifierFailure as failure:
        explained = True
        raise UserMistake(_way_on(failure, rollout, arguments)) from None
    finally:
        if not explained:
            say(f"stopped; what the engine said is in {rollout.folder / ENGINE_LOG}")


def _way_on(failure: VerifierFailure, rollout: Rollout, arguments: list[str]) -> str:
    """A line about a verifier that failed; its traceback goes to a file."""
    line = f"{failure}; mend it and go on with: {_again(arguments)}"
    if not failure.trace:
        return line
    log = rollout.folder / VERIFIER_LOG
    with writing(log):
        log.write_text(failure.trace, encoding="utf-8", errors="replace")
    return f"{line} (traceback: {log})"


def _export(rollout: Rollout) -> int:
    """Write what follows from the two files of attempts; print the table of counts."""
    from opdvr.sft import exports, rollout_counts
    from opdvr.sft.exports_llamafactory import write_llamafactory
    from opdvr.sft.rollout_attempts import ACCEPTED_FILE, REJECTED_FILE, read_attempts

    options, folder = rollout.options, rollout.folder
    accepted = list(read_attempts(folder / ACCEPTED_FILE))
    counts = rollout_counts.count(
        rollout.problems,
        options.n,
        accepted,
        read_attempts(folder / REJECTED_FILE),
        rollout.watch.seconds(),
    )
    rollout_counts.write_counts(folder, counts)
    print(rollout_counts.render(counts))
    if not accepted:
        say(
            f"no response was accepted, so there is nothing to train on; {folder / REJECTED_FILE} "
            "has each with its reason"
        )
        return NOTHING_ACCEPTED
    rows = exports.rows_of(rollout.problems, accepted)
    train, val = exports.split(rows, options.val_fraction, options.seed)
    exports.write_verl(folder, train, val, options.thinking)
    lengths = {
        problem.key: len(ids)
        for problem, ids in zip(rollout.problems, rollout.prompts, strict=True)
    }
    write_llamafactory(folder, train, val, options, rollout.template, lengths, say)
    exports.say_exports(folder, train, val, say)
    return 0


def _in_a_line(mistake: ValueError) -> str:
    return " ".join(str(mistake).split())
