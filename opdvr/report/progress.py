"""One readable line a training step, and one a validation accuracy."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from opdvr.report import metrics as names
from opdvr.report.metrics import number_of, validation_accuracies


def format_step(
    step: int,
    total: int,
    metrics: Mapping[str, Any],
    elapsed_s: float,
    steps_done: int | None = None,
) -> str:
    """A training step as one line; what is not in `metrics` is left out.

    Args:
        step: The step just done, counted from 1.
        total: Steps of the whole run.
        metrics: The step's metrics by verl's names.
        elapsed_s: Seconds that the last `steps_done` steps took, validation and checkpoints
            included.
        steps_done: Steps that `elapsed_s` covers; by default all `step` of them. After a resume
            it is fewer.

    Returns:
        The line, without a newline: of supervised training the loss (nats a token) and the
        learning rate; batch accuracy, mean log-ratio teacher over student (nats),
        with FULL_VOCABULARY the divergence (nats),
        shares of non-zero token rewards that passed the gate in correct and incorrect responses,
        entropy (nats), mean response length (tokens), truncated responses, seconds of the step,
        tokens a second for one worker, and the time the remaining steps will take.
    """
    width = len(str(total))
    parts = [
        f"step {step:>{width}}/{total}",
        _part("loss", number_of(metrics, names.SFT_LOSS), ".4f"),
        _part("lr", number_of(metrics, names.SFT_LR), ".2e"),
        _part("acc", number_of(metrics, names.CORRECT_FRAC, names.SCORE_MEAN), ".2f"),
        _part("log-ratio", number_of(metrics, names.LOG_RATIO_MEAN), "+.3f"),
        _part("divergence", number_of(metrics, names.DIVERGENCE), ".4f"),
        _gate_part(metrics),
        _part("entropy", number_of(metrics, names.ACTOR_ENTROPY), ".3f"),
        _part("length", number_of(metrics, names.RESPONSE_LENGTH), ".1f"),
        _part("truncated", number_of(metrics, names.TRUNCATED_FRAC, names.CLIP_RATIO), ".1%"),
        _part("", number_of(metrics, names.STEP_SECONDS), ".1f", " s"),
        _part("", number_of(metrics, names.THROUGHPUT), ",.0f", " tok/s"),
    ]
    covered = step if steps_done is None else steps_done
    if step < total and covered > 0:
        parts.append(f"ETA {format_duration(elapsed_s / covered * (total - step))}")
    return " | ".join(part for part in parts if part)


def format_validation(step: int, metrics: Mapping[str, Any]) -> str | None:
    """The validation of a step, a line a data source, or its loss; None where it has none."""
    loss = number_of(metrics, names.SFT_VALIDATION_LOSS)
    lines = [] if loss is None else [f"val loss {loss:.4f} (step {step})"]
    lines += [
        f"val {key} {accuracy:.3f} (step {step})"
        for key, accuracy in validation_accuracies(metrics).items()
    ]
    return "\n".join(lines) or None


def format_duration(seconds: float) -> str:
    """Seconds in the two largest units: "42s", "3m05s", "2h07m", "1d03h"."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = max(round(seconds), 0)
    for unit, size, smaller_unit, smaller_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller_size:02d}{smaller_unit}"
    return f"{whole}s"


def _part(label: str, value: float | None, spec: str, unit: str = "") -> str:
    if value is None:
        return ""
    text = f"{value:{spec}}" if math.isfinite(value) else str(value)
    return f"{label} {text}{unit}".strip()


def _gate_part(metrics: Mapping[str, Any]) -> str:
    passed = [
        _part("", number_of(metrics, names.GATE_PASS_CORRECT), ".2f", " correct"),
        _part("", number_of(metrics, names.GATE_PASS_INCORRECT), ".2f", " incorrect"),
    ]
    shown = " ".join(part for part in passed if part)
    return f"gate passed {shown}" if shown else ""


class StepLine:
    """Formats what a run logs, step after step, and keeps the clock for the remaining time.

    Args:
        total_steps: Steps of the whole run.
        resumed_step: The checkpoint's step that training goes on from; 0 for a fresh run.
        clock: Seconds from any start.
    """

    def __init__(
        self,
        total_steps: int,
        resumed_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_steps = total_steps
        self._resumed_step = resumed_step
        self._clock = clock
        self._started = clock()

    def lines(self, step: int, metrics: Mapping[str, Any]) -> list[str]:
        """The lines to print for what was logged at `step`: the step's, then its validation's.

        Metrics without a step's time are a validation, and give no step line. With one before
        training the clock starts over, so that it and the start-up are not taken for training.
        """
        shown = []
        if number_of(metrics, names.STEP_SECONDS) is None:
            if step <= self._resumed_step:
                self._started = self._clock()
        else:
            elapsed_s = self._clock() - self._started
            steps_done = step - self._resumed_step
            shown.append(format_step(step, self._total_steps, metrics, elapsed_s, steps_done))
        validation = format_validation(step, metrics)
        return shown + (validation.splitlines() if validation else [])
