"""The method itself, on plain tensors: torch and the standard library, no config, no rank.

Note that `opdvr.core.advantages`, read as an attribute, is the function and not its module.
"""

from opdvr.core.advantages import (
    ESTIMATORS,
    advantages,
    needs_full_batch,
    needs_outcome,
    register_estimator,
)
from opdvr.core.anatomy import (
    Anatomy,
    add_anatomies,
    anatomy_metrics,
    anatomy_of,
    most_pushed,
)
from opdvr.core.gates import GATES, GateSettings, apply_gate, register_gate
from opdvr.core.groups import group_advantages, group_correct_frac, grpd_scale
from opdvr.core.head import score_tokens
from opdvr.core.metrics import (
    add_sums,
    divergence_sums,
    metrics_from_sums,
    overlap_sums,
    response_metrics,
    token_sums,
)
from opdvr.core.output_layer import GivenLogits, OutputLayer
from opdvr.core.overlap import Overlap, top_k_overlap
from opdvr.core.rewards import (
    NonFiniteError,
    TokenRewards,
    correct_responses,
    log_ratio,
    require_finite,
    token_rewards,
)
from opdvr.core.spec import MethodSpec
from opdvr.core.topk import (
    STRATEGIES,
    WEIGHTINGS,
    Clip,
    candidate_ids,
    in_slots,
    is_among,
    register_strategy,
    register_weighting,
    top_k_loss,
    top_k_rewards,
    valid_with_tail,
    with_tail,
)

__all__ = [
    "ESTIMATORS",
    "GATES",
    "STRATEGIES",
    "WEIGHTINGS",
    "Anatomy",
    "Clip",
    "GateSettings",
    "GivenLogits",
    "MethodSpec",
    "NonFiniteError",
    "OutputLayer",
    "Overlap",
    "TokenRewards",
    "add_anatomies",
    "add_sums",
    "advantages",
    "anatomy_metrics",
    "anatomy_of",
    "apply_gate",
    "candidate_ids",
    "correct_responses",
    "divergence_sums",
    "group_advantages",
    "group_correct_frac",
    "grpd_scale",
    "in_slots",
    "is_among",
    "log_ratio",
    "metrics_from_sums",
    "most_pushed",
    "overlap_sums",
    "needs_full_batch",
    "needs_outcome",
    "register_estimator",
    "register_gate",
    "register_strategy",
    "register_weighting",
    "require_finite",
    "response_metrics",
    "score_tokens",
    "token_rewards",
    "token_sums",
    "top_k_loss",
    "top_k_overlap",
    "top_k_rewards",
    "valid_with_tail",
    "with_tail",
]
