"""The method as data: one frozen, validated record that every function of the core takes."""

import math
from dataclasses import dataclass
from numbers import Real

from opdvr.core.advantages import ESTIMATORS
from opdvr.core.divergence import DIVERGENCES
from opdvr.core.gates import GATES, GateSettings
from opdvr.core.topk import STRATEGIES, WEIGHTINGS

_LEAST_TEMPERATURE = 1e-6
SAMPLED_ONLY = "none"  # of full_vocabulary: no divergence over the whole vocabulary


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
        gate_temperature, gate_margin, gate_floor: of the gates soft, margin and leaky; see
            GateSettings.
        log_prob_top_k: K of top-k OPD; 0 is sampled-token OPD.
        top_k_strategy: which tokens are candidates, a name in STRATEGIES.
        reward_weight_mode: how candidates are weighted, a name in WEIGHTINGS.
        tail_bucket: one more candidate, all other tokens together.
        full_vocabulary: instead of sampled tokens or candidates, a divergence over the whole
            vocabulary, a name in DIVERGENCES; "none" for neither.

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
    gate_temperature: float = GateSettings.temperature
    gate_margin: float = GateSettings.margin
    gate_floor: float = GateSettings.floor
    log_prob_top_k: int = 0
    top_k_strategy: str = "only_stu"
    reward_weight_mode: str = "student_p"
    tail_bucket: bool = False
    full_vocabulary: str = SAMPLED_ONLY

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
        self._check_gate_settings()
        self._check_candidates()
        if not self.distill:
            self._check_without_teacher()

    @property
    def gate_settings(self) -> GateSettings:
        """What the gate is told."""
        return GateSettings(self.gate_temperature, self.gate_margin, self.gate_floor)

    @property
    def samples_only(self) -> bool:
        """True when the signal is on the sampled tokens alone: no candidates, no whole vocabulary.

        Then the update needs one advantage a token.
        """
        return self.log_prob_top_k == 0 and self.full_vocabulary == SAMPLED_ONLY

    @property
    def needs_groups(self) -> bool:
        """True when the gate reads what the other responses to the prompt scored."""
        return GATES[self.gate].needs_groups

    def _check_gate_settings(self) -> None:
        # y r / temperature must not overflow
        _require_number("gate_temperature", self.gate_temperature, _LEAST_TEMPERATURE)
        _require_number("gate_margin", self.gate_margin, -math.inf)
        _require_number("gate_floor", self.gate_floor, 0.0)
        if self.gate_floor > 1:
            raise ValueError(f"gate_floor={self.gate_floor} must be at most 1, which is no gate")

    def _check_candidates(self) -> None:
        k = self.log_prob_top_k
        if not isinstance(k, int) or isinstance(k, bool) or k < 0:
            raise ValueError(f"log_prob_top_k={k!r} must be a whole number of at least 0")
        _require_name("top_k_strategy", self.top_k_strategy, STRATEGIES)
        _require_name("reward_weight_mode", self.reward_weight_mode, WEIGHTINGS)
        _require_bool("tail_bucket", self.tail_bucket)
        if self.tail_bucket and k == 0:
            raise ValueError(
                "tail_bucket=True adds a candidate to the top k and there are none: set "
                "log_prob_top_k above 0, or tail_bucket=False"
            )
        if self.full_vocabulary != SAMPLED_ONLY:
            allowed = {SAMPLED_ONLY: None, **DIVERGENCES}
            _require_name("full_vocabulary", self.full_vocabulary, allowed)
            if k > 0:
                raise ValueError(
                    f"full_vocabulary={self.full_vocabulary} and log_prob_top_k={k} are two "
                    "objectives: set log_prob_top_k=0 or full_vocabulary=none"
                )
            if not GATES[self.gate].by_sign:
                raise ValueError(
                    f"correctness_gated_mode={self.gate} looks at the size of a log-ratio, which "
                    f"full_vocabulary={self.full_vocabulary} does not have: use another gate"
                )
        estimator = ESTIMATORS[self.estimator]
        ignores_teacher = self.distill and not estimator.needs_teacher
        if not self.samples_only and (estimator.needs_full_batch or ignores_teacher):
            raise ValueError(
                f"algorithm.adv_estimator={self.estimator} goes with one reward a token, not with "
                f"log_prob_top_k={k} or full_vocabulary={self.full_vocabulary}: use "
                "token_reward_direct or token_reward_direct_plus_grpo"
            )

    def _check_without_teacher(self) -> None:
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
        if not self.samples_only:
            asked, off = f"log_prob_top_k={self.log_prob_top_k}", "log_prob_top_k=0"
            if self.full_vocabulary != SAMPLED_ONLY:
                asked, off = f"full_vocabulary={self.full_vocabulary}", "full_vocabulary=none"
            raise ValueError(
                f"{asked} compares with a teacher and there is none: set {off}, or "
                "reward_model.enable=True"
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
