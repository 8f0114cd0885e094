"""A verifier of the user's own: it can be called, and it accepts a right answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from opdvr.data.text import OTHER_FORM, asks_for_nothing, asks_for_other_form
from opdvr.data.wording import how_many
from opdvr.integration.config import OWN_VERIFIER_PATH
from opdvr.integration.preflight.finding import (
    ERROR,
    WARNING,
    Finding,
    error,
    from_message,
    note,
    warning,
)
from opdvr.verifier.custom import load_verifier

VERIFIER = "VERIFIER (opdvr.verifier, custom_reward_function)"
# A verifier may ask a server or a model: what a few rows take has to stay short.
ROWS, SECONDS = 4, 5.0


@dataclass(frozen=True)
class Row:
    """What a verifier is told about a response's problem, and the prompt's text."""

    number: int
    prompt: str
    source: Any
    gold: Any
    extra: Any


def is_own(config: DictConfig) -> bool:
    """Whether the package's verifier scores the responses."""
    return config.custom_reward_function.path in (None, "", OWN_VERIFIER_PATH)


def load(config: DictConfig) -> Callable | list[Finding]:
    """The user's function, with verl's reward_kwargs bound; or what is wrong with it."""
    reward = config.custom_reward_function
    path = str(reward.path)
    source = path.removeprefix("file://")
    if path.startswith("pkg://"):
        source = path.removeprefix("pkg://").replace("/", ".")
    elif not source.endswith(".py"):
        return [error(VERIFIER, f"{source} is no Python file", remedy="name file.py:function")]
    further = dict(OmegaConf.to_container(reward.get("reward_kwargs") or OmegaConf.create({})))
    try:
        function = load_verifier(f"{source}:{reward.name}", further=further)
    except ValueError as reason:
        return [from_message(ERROR, VERIFIER, str(reason))]
    # A foreign file may raise anything while it is run, or exit.
    except (Exception, SystemExit) as reason:
        text = f"cannot be imported: it raises {type(reason).__name__} ({reason})"
        return [error(VERIFIER, text, remedy="mend the file")]
    return lambda **given: function(**given, **further)


def check_answers(function: Callable, rows: list[Row], threshold: float) -> Iterator[Finding]:
    """The verifier gets the gold answer as a response, in the form that each prompt asks for.

    Args:
        function: the user's, called with verl's four keywords.
        rows: of the training data; as many as fit into a few seconds are tried.
        threshold: a response is correct if its score is above it.
    """
    started = time.monotonic()
    tried, accepted = 0, 0
    for row in rows:
        if tried and time.monotonic() - started > SECONDS:
            yield note(VERIFIER, f"is slow: {how_many(tried, 'row')} took over {SECONDS:g} s")
            break
        tried += 1
        try:
            scores = [
                _score(function(**_keywords(row, response))) for response in right_answers(row)
            ]
        # Whatever a foreign function raises, or an exit, would end the run at its first step.
        except (Exception, SystemExit) as reason:
            yield error(
                VERIFIER,
                f"raises {type(reason).__name__} ({reason}) on row {row.number} of the training "
                "data, given its own gold answer",
                "in training that stops the run",
                "mend the function, or the row",
            )
            return
        accepted += max(scores) > threshold
    if tried and not accepted:
        yield _accepts_nothing(rows[:tried], threshold)
    elif accepted < tried:
        yield warning(
            VERIFIER,
            f"accepts the gold answer itself in {accepted} of {tried} rows of the training data",
            "right responses to the others may count as wrong",
        )


def _accepts_nothing(rows: list[Row], threshold: float) -> Finding:
    """An error where a prompt names a form that is known here, else a warning: it was guessed."""
    is_known = any(not asks_for_nothing(row.prompt) for row in rows)
    return Finding(
        ERROR if is_known else WARNING,
        VERIFIER,
        f"scores no gold answer above {threshold:g} (CORRECTNESS_THRESHOLD), in "
        f"{how_many(len(rows), 'row')} of the training data; the first was "
        f"'…{right_answers(rows[0])[0][-80:]}'",
        "if so, every response counts as wrong",
        "let prompts ask for the form that the verifier reads; if it wants more than the answer, "
        "PREFLIGHT=warn goes on",
    )


def right_answers(row: Row) -> list[str]:
    """Responses that give the gold answer as the prompt asks; both forms where it does not say."""
    gold = row.gold[0] if isinstance(row.gold, list | tuple) and row.gold else row.gold
    boxed, stated = f"So the answer is \\boxed{{{gold}}}", f"So this is it.\n{OTHER_FORM} {gold}"
    if asks_for_nothing(row.prompt):
        return [boxed, stated, str(gold)]
    return [stated] if asks_for_other_form(row.prompt) else [boxed]


def _keywords(row: Row, response: str) -> dict[str, Any]:
    return {
        "data_source": row.source,
        "solution_str": response,
        "ground_truth": row.gold,
        "extra_info": row.extra,
    }


def _score(verdict: Any) -> float:  # noqa: ANN401
    """As the reward manager reads it: a number, or a dictionary's `score`."""
    return float(verdict["score"] if isinstance(verdict, dict) else verdict)
