"""Which prompts stay: by pass rates, overlap and log-ratio of what was measured on each."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opdvr.diagnose.thresholds import THRESHOLDS

KEPT = "kept"


@dataclass(frozen=True)
class Limit:
    """One option: what it bounds, on which side, its default (None: off) and its reason."""

    measure: str
    is_least: bool
    default: float | None
    reason: str


# In the order in which they decide; a dropped prompt has the first one's name as its reason.
LIMITS = {
    "min_teacher_pass": Limit(
        "teacher_pass",
        True,
        0.5,
        "teacher's pass rate: what it mostly gets wrong it teaches wrong",
    ),
    "max_teacher_pass": Limit("teacher_pass", False, None, "teacher's pass rate at most"),
    "min_student_pass": Limit("student_pass", True, None, "student's pass rate at least"),
    "max_student_pass": Limit(
        "student_pass", False, None, "student's pass rate: what it always solves has little left"
    ),
    "min_overlap": Limit(
        "overlap_ratio",
        True,
        THRESHOLDS["min_overlap"].default,
        "overlap of both top K, as in `opdvr diagnose`",
    ),
    "min_agreement": Limit(
        "agreement",
        True,
        THRESHOLDS["min_agreement"].default,
        "probability in common, as in `opdvr diagnose`",
    ),
    "min_log_ratio": Limit("log_ratio_mean", True, None, "mean log-ratio, nats, at least"),
    "max_log_ratio": Limit("log_ratio_mean", False, None, "mean log-ratio, nats, at most"),
}


def add_limits(parser: argparse.ArgumentParser) -> None:
    """An option for each of LIMITS."""
    group = parser.add_argument_group("which prompts stay (off where no default is named)")
    for name, limit in LIMITS.items():
        default = "off" if limit.default is None else f"{limit.default:g}; 'off' for none"
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=_bound,
            default=limit.default,
            metavar="X",
            help=f"{limit.reason} ({default})",
        )


def _bound(text: str) -> float | None:
    if text == "off":
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no number, nor 'off'")
    return value


def reason_to_drop(found: Mapping[str, float], bounds: Mapping[str, float | None]) -> str:
    """The first limit that a prompt is outside of, as the option that sets it; KEPT for none.

    A prompt that lies on a bound stays.
    """
    for name, limit in LIMITS.items():
        bound = bounds[name]
        if bound is None:
            continue
        value = found[limit.measure]
        if value < bound if limit.is_least else value > bound:
            return name.replace("_", "-")
    return KEPT


def reasons_to_drop(
    rows: Sequence[Mapping[str, float]], bounds: Mapping[str, float | None]
) -> list[str]:
    """`reason_to_drop` of each."""
    return [reason_to_drop(row, bounds) for row in rows]
