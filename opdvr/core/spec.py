"""The method as data: one frozen, validated record that every function of the core takes."""

import math
from dataclasses import dataclass
from numbers import Real

from opdvr.core.advantages import ESTIMATORS
from opdvr.core.gates import GATES


@dataclass(frozen=True)
class MethodSpec:
    """One training method. Every default of the method lives here and nowhere else.

    Fields, with the published option that each one carries:
        estimator: how token rewards become advantages (`algorithm.adv_estimator`), a name in
            ESTIMATORS.
        distill: a teacher scores the tokens (`reward_model.enable`). False leaves only the
            verifier, for plain grpo.
        gate: what the verdict does to a token's reward (`correctness_gated_mode`; "none" is
            `correctness_gated=False`), a name in GATES.
        correctness_threshold: a response is correct when its verifier score is strictly greater.
        grpo_scaled: multiply gated rewards by |group advantage| + grpo_scale_baseline (GRPD).
        grpo_norm_by_std: divide that group advantage by the group's standard deviation.
        grpo_scale_baseline: u, what a group without spread still weighs; at least 0.
        grpo_outcome_weight: w in A = r + w * outcome (token_reward_direct_plus_grpo).

    Raises:
        ValueError: a value that the method does not define; names the option and what is allowed.
    """

    estimator: str = "token_reward_direct"
    distill: bool = True
    gate: str = "default"
    correctness_threshold: float = 0.0
    grpo_scaled: bool = False
    grpo_norm_by_std: bool = False
    grpo_scale_baseline: float = 0.0
    grpo_outcome_weight: float = 1.0

    def __post_init__(self) -> None:
        _require_name("algorithm.adv_estimator", self.estimator, ESTIMATORS)
        _require_name("correctness_gated_mode", self.gate, GATES)
        _require_bool("reward_model.enable", self.distill)
        _require_bool("grpo_scaled", self.grpo_scaled)
        _require_bool("grpo_norm_by_std", self.grpo_norm_by_std)
        _require_number("correctness_threshold", self.correctness_threshold, -math.inf)
        # A negative u could turn the sign of a reward round, a negative w would reward failure.
        _require_number("grpo_scale_baseline", self.grpo_scale_baseline, 0.0)
        _require_number("grpo_outcome_weight", self.grpo_outcome_weight, 0.0)
        if self.distill:
            return
        if ESTIMATORS[self.estimator].needs_teacher:
            raise ValueError(
                f"algorithm.adv_estimator={self.estimator} needs a teacher: set "
                "reward_model.enable=True, or algorithm.adv_estimator=grpo to train without one"
            )
        if self.grpo_scaled:
            raise ValueError(
                "grpo_scaled=True scales the teacher's token rewards and there is no teacher: "
                "set grpo_scaled=False or reward_model.enable=True"
            )


def _require_name(option: str, value: str, allowed: dict) -> None:
    if value not in allowed:
        raise ValueError(f"{option}={value!r} is unknown: choose one of {', '.join(allowed)}")


def _require_bool(option: str, value: bool) -> None:
    # The string "False" is true, so anything but a bool is refused rather than read as one.
    if not isinstance(value, bool):
        raise ValueError(f"{option}={value!r} must be True or False")


def _require_number(option: str, value: float, least: float) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise ValueError(f"{option}={value!r} must be a finite number{bound}")
