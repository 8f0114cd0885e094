"""Who decides what is right: the project's verifier, or a function of the user's own."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdvr.eval.problems import Problem
from opdvr.eval.samples import Sample
from opdvr.verifier import compute_scores
from opdvr.verifier.custom import OWN
from opdvr.verifier.custom import load_verifier as load_function
from opdvr.verifier.extract import ANSWER_FORMS

_SHOWN_CHARS = 300
_PACKAGE = Path(__file__).parents[1]

# Verdicts (score, acc, pred) on samples, each beside its problem.
Verifier = Callable[[Sequence[Problem], Sequence[Sample]], list[dict[str, Any]]]


class VerifierFailure(Exception):
    """A user's verifier failed: one line about it. `trace` is its traceback, "" without one."""

    def __init__(self, line: str, trace: str = ""):
        super().__init__(line)
        self.trace = trace


@dataclass(frozen=True)
class Rules:
    """Who decides what is right.

    Attributes:
        verifier: ``module:function`` or ``file.py:function``; the project's own by default.
        answer_forms: what our own reads as an answer: "boxed", or "any".
    """

    verifier: str = OWN
    answer_forms: str = ANSWER_FORMS[0]

    @property
    def is_own(self) -> bool:
        """Whether the project's verifier decides."""
        return self.verifier == OWN

    def __str__(self) -> str:
        if self.answer_forms == ANSWER_FORMS[0]:
            return self.verifier
        return f"{self.verifier} with answer forms {self.answer_forms!r}"


def rules_of(verifier: str | None, answer_forms: str | None) -> Rules:
    """`Rules` of a verifier's name and answer forms, None for those not given."""
    given = {"verifier": verifier, "answer_forms": answer_forms}
    return Rules(**{name: text for name, text in given.items() if text})


def load_verifier(rules: Rules) -> Verifier:
    """The project's verifier, or a user's function under verl's custom-reward contract.

    What it returns raises `VerifierFailure` where the user's function raises, or returns what is
    no verdict (`as_verdict`).

    Raises:
        ValueError: the function cannot be imported, found or called as a verifier is; or it has
            answer forms and is not ours.
    """
    if rules.is_own:
        return lambda problems, samples: compute_scores(
            [problem.data_source for problem in problems],
            [sample.text for sample in samples],
            [problem.gold for problem in problems],
            answer_forms=rules.answer_forms,
        )
    if rules.answer_forms != ANSWER_FORMS[0]:
        raise ValueError(
            f"--answer-forms is for the project's own verifier (--verifier {OWN}), not for "
            f"{rules.verifier}"
        )
    try:
        function = _of_others(load_function, rules.verifier)
    except VerifierFailure as failure:
        raise ValueError(f"--verifier {rules.verifier}: {failure}") from failure

    def verify(problems: Sequence[Problem], samples: Sequence[Sample]) -> list[dict[str, Any]]:
        pairs = zip(problems, samples, strict=True)
        return [_verdict_on(function, rules.verifier, *pair) for pair in pairs]

    return verify


def _verdict_on(function: Callable, name: str, problem: Problem, sample: Sample) -> dict[str, Any]:
    where = f"--verifier {name}, sample {sample.sample} of {sample.key} ({problem.data_source})"
    try:
        verdict = _of_others(
            function,
            data_source=problem.data_source,
            solution_str=sample.text,
            ground_truth=problem.gold,
            extra_info=problem.extra_info,
        )
    except VerifierFailure as failure:
        raise VerifierFailure(f"{where}: {failure}", failure.trace) from failure
    try:
        return as_verdict(verdict)
    except ValueError as wrong:
        raise VerifierFailure(f"{where}: {wrong}") from None


def _of_others(function: Callable, *given: object, **named: object) -> Any:  # noqa: ANN401
    """Call what may be anybody's code: whatever it raises comes out as a `VerifierFailure`."""
    try:
        return function(*given, **named)
    except (Exception, SystemExit) as error:
        # The boundary to code that is not ours, which may raise anything, or exit: the user gets
        # one line on it, and its traceback in a file.
        trace = traceback.format_exc()
        raise VerifierFailure(f"{_in_a_line(error)}{_origin(error)}", trace) from error


def _in_a_line(error: BaseException) -> str:
    # load_function says a user's mistake in a sentence of its own.
    name = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{name}{' '.join(str(error).split())[:_SHOWN_CHARS]}"


def _origin(error: BaseException) -> str:
    """Where in code that is not ours it was raised; "" where ours did."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or Path(frames[-1].filename).is_relative_to(_PACKAGE):
        return ""
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def as_verdict(verdict: Any) -> dict[str, Any]:  # noqa: ANN401
    """A number or a dict with `score` as score, acc and pred, as the trainer completes it.

    Raises:
        ValueError: it is neither, or a number in it is not finite.
    """
    if not isinstance(verdict, dict):
        score = _number(verdict, "a number or a dict with 'score'")
        return {"score": score, "acc": score, "pred": None}
    if "score" not in verdict:
        raise ValueError(f"returned a dict without 'score': {_shown(verdict)}")
    score = _number(verdict["score"], "a number as score")
    acc = _number(verdict.get("acc", score), "a number as acc")
    return {"score": score, "acc": acc, "pred": verdict.get("pred")}


def _number(value: Any, wanted: str) -> float:  # noqa: ANN401
    try:
        # float() would take the text "1.0", which is no score in training either.
        number = None if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, RuntimeError):  # the last from a tensor of several numbers
        number = None
    if number is None:
        raise ValueError(f"returned {_shown(value)}, not {wanted}")
    if not math.isfinite(number):
        raise ValueError(f"returned {number}, not {wanted}: scores must be finite")
    return number


def _shown(value: Any) -> str:  # noqa: ANN401
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
