"""Judges completions: which are kept, and why the others are not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opdvr.eval.grading import CORRECT_ABOVE
from opdvr.eval.problems import Problem
from opdvr.eval.samples import Sample, sample_of
from opdvr.eval.verdicts import Rules, VerifierFailure, load_verifier
from opdvr.inference import Completion
from opdvr.sft.rejection import INCORRECT, Rejection

# Neither Python, vLLM nor Ray handle it, and unlike SIGALRM no verifier sets it for itself.
_SIGNAL = signal.SIGUSR2


class _Late(BaseException):
    """A user's verifier ran into the limit; none of its `except Exception` may swallow this."""


class Judge:
    """Finds the reason for rejecting a completion, or none.

    Args:
        rejection: what is asked of a completion.
        rules: who decides what is right.
        limit_s: seconds for one verdict of a user's verifier; the project's own has its limits.

    Raises:
        ValueError: the verifier cannot be loaded.
    """

    def __init__(self, rejection: Rejection, rules: Rules, limit_s: float):
        self._rejection = rejection
        self._rules = rules
        self._verifier = load_verifier(rules)
        self._limit_s = limit_s

    def reasons(
        self, problems: Sequence[Problem], completions: Sequence[Completion]
    ) -> list[str | None]:
        """The reason for each completion beside its problem; None where it is kept.

        Raises:
            VerifierFailure: a user's verifier failed, or gave no verdict in time.
        """
        forms = self._rules.answer_forms
        found = [self._rejection.before_verdict(c.text, c.finish, forms) for c in completions]
        if self._rejection.correct:
            asked = [
                place
                for place, reason in enumerate(found)
                if reason is None and problems[place].gold is not None
            ]
            right = self._right([problems[i] for i in asked], [completions[i] for i in asked])
            for place, is_right in zip(asked, right, strict=True):
                if not is_right:
                    found[place] = INCORRECT
        return [
            self._rejection.after_verdict(completion.text) if reason is None else reason
            for reason, completion in zip(found, completions, strict=True)
        ]

    def _right(self, problems: list[Problem], completions: list[Completion]) -> list[bool]:
        samples = [sample_of(*pair) for pair in zip(problems, completions, strict=True)]
        if self._rules.is_own:
            verdicts = self._verifier(problems, samples)
        else:
            pairs = zip(problems, samples, strict=True)
            verdicts = [self._of_users(problem, sample) for problem, sample in pairs]
        return [verdict["score"] > CORRECT_ABOVE for verdict in verdicts]

    def _of_users(self, problem: Problem, sample: Sample) -> dict[str, Any]:
        try:
            with _at_most(self._limit_s):
                return self._verifier([problem], [sample])[0]
        except _Late:
            raise VerifierFailure(
                f"--verifier {self._rules.verifier}, slot {sample.sample} of {sample.key}: no "
                f"verdict within {self._limit_s:g} s (--verifier-limit)"
            ) from None


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise `_Late` in the block after so many seconds, also while it sleeps or waits.

    In the main thread, where a verifier may use alarms of its own.
    """
    running = True

    def raise_late(_number: int, _frame: object) -> None:
        if running:
            raise _Late

    main = threading.main_thread().ident
    assert main == threading.get_ident() and main is not None
    timer = threading.Timer(seconds, lambda: running and signal.pthread_kill(main, _SIGNAL))
    timer.daemon = True
    # Left in place: a signal that comes a moment late must not meet the default, which ends the
    # process.
    signal.signal(_SIGNAL, raise_late)
    timer.start()
    try:
        yield
    finally:
        running = False
        timer.cancel()
