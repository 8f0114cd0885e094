"""Names of the logged metrics, and how a logged value becomes a Python number."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

CORRECT_FRAC = "cg/correct_frac"
SCORE_MEAN = "critic/score/mean"
REWARD_ZEROED_FRAC = "cg/reward_zeroed_frac"
LOG_RATIO_MEAN = "opd/log_ratio_mean"
DIVERGENCE = "opd/divergence"
LOG_RATIO_ABS_MEAN = "opd/log_ratio_abs_mean"
GATE_PASS_CORRECT = "opd/gate_pass_frac_correct"
GATE_PASS_INCORRECT = "opd/gate_pass_frac_incorrect"
TRUNCATED_FRAC = "opd/truncated_frac"
CLIP_RATIO = "response_length/clip_ratio"
ACTOR_ENTROPY = "actor/entropy"
TEACHER_ENTROPY = "teacher/entropy"
RESPONSE_LENGTH = "response_length/mean"
# Tokens (prompt and response) a second for one worker: verl divides by the number of workers.
THROUGHPUT = "perf/throughput"
# verl's absolute difference, token by token, between the probability the rollout engine gave
# and the one the trainer computes.
ROLLOUT_DIFF_PREFIX = "training/rollout_probs_diff_"

# verl's SFT trainer: nats a token that carries the loss, in training and on the held-out rows.
SFT_LOSS, SFT_VALIDATION_LOSS, SFT_LR = "train/loss", "val/loss", "train/lr"
SFT_TOKENS, SFT_TOTAL_TOKENS = "train/global_tokens", "train/total_tokens(B)"
TEACHER_BUSY, TEACHER_WAIT = "opd/teacher_busy_seconds", "opd/teacher_wait_seconds"
TEACHER_HIDDEN = "opd/teacher_hidden_frac"
STEP_SECONDS = "timing_s/step"
TIME_SHARE_PREFIX = "opd/time_frac_"
# verl times these inside timing_s/step ...
INNER_PHASES = ("gen", "reward", "old_log_prob", "ref", "adv", "update_actor")
# ... and these after it, so a step that validates takes longer than timing_s/step says.
OUTER_PHASES = ("testing", "save_checkpoint")

_VALIDATION = re.compile(r"val-core/(?P<source>.+)/acc/mean@(?P<n>\d+)")


class ValidationKey(NamedTuple):
    """One validation accuracy: the data source, and how many samples a prompt it averages."""

    data_source: str
    n_samples: int

    def __str__(self) -> str:
        return f"{self.data_source} acc/mean@{self.n_samples}"


def phase_key(phase: str) -> str:
    """The metric that holds a phase's seconds."""
    return f"timing_s/{phase}"


def python_number(value: Any) -> bool | int | float | None:
    """A metric value as a plain Python number.

    Takes Python numbers, NumPy scalars, and NumPy arrays or tensors of one element (on any
    device), without importing NumPy or torch. NaN and infinities pass through.

    Returns:
        The number, or None for whatever is not a real scalar (text, lists, larger arrays).
    """
    if isinstance(value, (bool, int, float)):
        return float(value) if isinstance(value, float) else value
    shape = getattr(value, "shape", None)
    if shape is None or not hasattr(value, "item") or math.prod(shape) != 1:
        return None
    item = value.item()
    return item if isinstance(item, (bool, int, float)) else None


def number_of(metrics: Mapping[str, Any], *names: str) -> float | None:
    """The first of `names` that is logged as a scalar, as a float; None where none is.

    A metric that was logged as NaN or infinite, and so is null in metrics.jsonl, counts as
    logged and comes out as NaN.
    """
    for name in names:
        if name not in metrics:
            continue
        if metrics[name] is None:
            return math.nan
        number = python_number(metrics[name])
        if number is not None:
            return float(number)
    return None


def validation_accuracies(metrics: Mapping[str, Any]) -> dict[ValidationKey, float]:
    """The `val-core/<data_source>/acc/mean@<n>` entries of one step, in the order logged."""
    found = {}
    for name in metrics:
        match = _VALIDATION.fullmatch(name)
        if match is None:
            continue
        accuracy = number_of(metrics, name)
        if accuracy is not None:
            found[ValidationKey(match["source"], int(match["n"]))] = accuracy
    return found
