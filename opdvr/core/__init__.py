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
from opdvr.core.gates import GATES, apply_gate, register_gate
from opdvr.core.groups import group_advantages, grpd_scale
from opdvr.core.head import score_tokens
from opdvr.core.metrics import add_sums, metrics_from_sums, response_metrics, token_sums
from opdvr.core.rewards import (
    NonFiniteError,
    TokenRewards,
    correct_responses,
    log_ratio,
    require_finite,
    token_rewards,
)
from opdvr.core.spec import MethodSpec

__all__ = [
    "ESTIMATORS",
    "GATES",
    "MethodSpec",
    "NonFiniteError",
    "TokenRewards",
    "add_sums",
    "advantages",
    "apply_gate",
    "correct_responses",
    "group_advantages",
    "grpd_scale",
    "log_ratio",
    "metrics_from_sums",
    "needs_full_batch",
    "needs_outcome",
    "register_estimator",
    "register_gate",
    "require_finite",
    "response_metrics",
    "score_tokens",
    "token_rewards",
    "token_sums",
]
