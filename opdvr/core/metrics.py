"""Metrics as additive sums, so that micro-batches and ranks combine without error of averaging.

B responses, T response tokens. Published names (cg/, gs/, teacher/, actor/, training/) are kept so
that dashboards carry over; what is new is under opd/.
"""

from collections.abc import Hashable, Iterable, Sequence

import torch

from opdvr.core.groups import group_index, uniform_groups
from opdvr.core.overlap import Overlap
from opdvr.core.rewards import TokenRewards

# Relative size under which a variance made from float64 sums is rounding error, not spread.
_VARIANCE_NOISE = 1e-12
# A teacher that expects another prompt (another chat template) disagrees where the response begins.
_FIRST_TOKENS = 5


def token_sums(
    rewards: TokenRewards | None,
    mask: torch.Tensor,
    correct: torch.Tensor,
    student_logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    teacher_entropy: torch.Tensor | None = None,
    advantages: torch.Tensor | None = None,
    truncated: torch.Tensor | None = None,
    log_ratio: torch.Tensor | None = None,
) -> dict[str, float]:
    """What `metrics_from_sums` needs from one micro-batch.

    Args:
        rewards: three times [B,T], nats, or [B,T,C] with C candidates a token; None when there is
            no teacher.
        mask: [B,T], non-zero at valid tokens; only those count, the others may hold anything.
        correct: [B] bool.
        student_logprobs, rollout_logprobs: [B,T], nats, by the trainer and by the generator.
        entropy, teacher_entropy: [B,T], nats.
        advantages: [B,T].
        truncated: [B] bool, responses cut off at the length limit.
        log_ratio: [B,T], of the sampled tokens, nats; None for that of rewards.

    Returns:
        Plain floats, summed in float64. Which keys there are depends on which inputs are given,
        never on their values. Keys ending in _max and _min combine by max and min (without a valid
        token they hold the neutral element, -inf or inf; 0 for a largest absolute difference), all
        others by addition.
    """
    valid = mask.bool()
    sums = {"valid_tokens": valid.sum()}
    if log_ratio is None and rewards is not None:
        log_ratio = rewards.log_ratio
    if log_ratio is not None:
        sums |= _ratio_sums(log_ratio, valid)
    if rewards is not None:
        sums |= _gate_sums(rewards, valid, correct)
    if rollout_logprobs is not None:
        sums |= _rollout_sums(student_logprobs, rollout_logprobs, valid)
    if entropy is not None:
        sums["entropy"] = _masked(entropy, valid).sum()
    if teacher_entropy is not None:
        sums["teacher_entropy"] = _masked(teacher_entropy, valid).sum()
    if advantages is not None:
        sums["advantages"] = _masked(advantages, valid).sum()
        sums["advantages_max"] = _largest(advantages, valid)
        sums["advantages_min"] = -_largest(-advantages, valid)
    if truncated is not None:
        sums["truncated_tokens"] = (valid & truncated.bool()[:, None]).sum()
    return _as_floats(sums)


def overlap_sums(overlap: Overlap | None, mask: torch.Tensor) -> dict[str, float]:
    """What `metrics_from_sums` needs of the two top K, over valid tokens; {} for None."""
    if overlap is None:
        return {}
    valid = mask.bool()
    values = overlap._asdict().items()
    sums = {f"overlap_{name}": _masked(value, valid).sum() for name, value in values}
    return _as_floats(sums | {"overlap_tokens": valid.sum()})


def divergence_sums(
    divergence: torch.Tensor, signal: torch.Tensor, passed: torch.Tensor, mask: torch.Tensor
) -> dict[str, float]:
    """What `metrics_from_sums` needs of DivergenceScores' value, signal and passed, [B,T] each."""
    valid = mask.bool()
    return _as_floats(
        {
            "divergence": _masked(divergence, valid).sum(),
            "divergence_signal": _masked(signal, valid).sum(),
            "divergence_passed": _masked(passed, valid).sum(),
        }
    )


def add_sums(sums: Iterable[dict[str, float]]) -> dict[str, float]:
    """The sums of the union of several micro-batches or ranks; {} for none."""
    combined: dict[str, float] = {}
    for part in sums:
        for key, value in part.items():
            if key not in combined:
                combined[key] = value
            elif key.endswith("_max"):
                combined[key] = max(combined[key], value)
            elif key.endswith("_min"):
                combined[key] = min(combined[key], value)
            else:
                combined[key] += value
    return combined


def metrics_from_sums(sums: dict[str, float]) -> dict[str, float]:
    """Metrics of the tokens that went into the sums; one without a denominator is left out.

    Over valid tokens:
        val-topk/overlap_ratio, val-topk/overlap_advantage, val-topk/overlap_student_mass,
            val-topk/overlap_teacher_mass: means of what Overlap says of each position.
        opd/divergence: of student and teacher over the whole vocabulary, nats.
        opd/log_ratio_mean, opd/log_ratio_abs_mean: logp_teacher - logp_student, nats.
        opd/log_ratio_abs_mean_first: the same size over the first five tokens of each response.
        opd/reward_mean, opd/effective_token_frac: the final reward (summed over candidates), and
            how often it is not 0 (for any candidate).
        actor/entropy, teacher/entropy: nats.
        critic/advantages/mean, /max, /min.
        training/rollout_probs_diff_mean, _max, _std (n-1) and rollout_actor_probs_pearson_corr:
            |p - q| and correlation of the probabilities that trainer and generator give a token,
            as verl defines them (std and correlation need two tokens, correlation some spread).
        opd/rollout_logprob_diff_mean, _max: the same difference in nats.
        opd/truncated_token_frac: share that lies in truncated responses.
    Over valid tokens (with candidates: candidates) whose log-ratio is not 0:
        cg/reward_zeroed_frac: share that the gate set to 0.
        opd/gate_pass_frac_correct, opd/gate_pass_frac_incorrect: share that the gate let through,
            among the tokens of correct and of incorrect responses.
    Over the sum of |log-ratio| (with candidates: of its weighted one):
        opd/zeroed_mass_frac: share that lies on what the gate set to 0.
    Over the sum of |p_S A| over the whole vocabulary (DivergenceScores.signal):
        opd/divergence_passed_frac: the same sum after the gate.
    """
    metrics: dict[str, float] = {}
    for name, (numerator, denominator) in _QUOTIENTS.items():
        if numerator in sums and sums[denominator] > 0:
            metrics[name] = sums[numerator] / sums[denominator]
    if sums.get("valid_tokens", 0.0) > 0:
        for name, key in _EXTREMES.items():
            if key in sums:
                metrics[name] = sums[key]
        if "probs_diff" in sums:
            metrics |= _rollout_spread(sums)
    return metrics


def response_metrics(
    verifier_scores: torch.Tensor,
    correct: torch.Tensor,
    group_ids: Sequence[Hashable] | torch.Tensor,
    scale: torch.Tensor | None = None,
    truncated: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
) -> dict[str, float]:
    """Metrics of a whole batch of responses; {} for an empty one.

    Args:
        verifier_scores: [B].
        correct: [B] bool.
        group_ids: [B], the prompt of each.
        scale: [B], GRPD's weights.
        truncated: [B] bool.
        lengths: [B], valid tokens; a response of 0 (masked out whole) is in no group.

    Returns:
        Over all responses:
            cg/correct_frac; opd/truncated_frac (when truncated is given).
            gs/scale_mean, gs/scale_min, and gs/zeroed_resp_frac, the share whose scale is exactly
            0 (when scale is given).
        Over groups of two responses or more, not counting those of length 0:
            opd/all_equal_group_frac: share whose scores are all equal. Left out without any.
    """
    if len(verifier_scores) == 0:
        return {}
    metrics = {"cg/correct_frac": correct.double().mean().item()}
    if scale is not None:
        metrics["gs/scale_mean"] = scale.double().mean().item()
        metrics["gs/scale_min"] = scale.min().item()
        metrics["gs/zeroed_resp_frac"] = (scale == 0).double().mean().item()
    if truncated is not None:
        metrics["opd/truncated_frac"] = truncated.double().mean().item()
    index, n_groups = group_index(group_ids, verifier_scores)
    counted = torch.ones_like(verifier_scores, dtype=torch.bool) if lengths is None else lengths > 0
    compared = torch.bincount(index[counted], minlength=n_groups) >= 2
    if compared.any():
        is_uniform = uniform_groups(verifier_scores, index, n_groups, counted)
        metrics["opd/all_equal_group_frac"] = is_uniform[compared].double().mean().item()
    return metrics


# metric -> (numerator, denominator), both keys of the sums.
_QUOTIENTS = {
    "cg/reward_zeroed_frac": ("zeroed_tokens", "nonzero_tokens"),
    "opd/log_ratio_mean": ("log_ratio", "valid_tokens"),
    "opd/log_ratio_abs_mean": ("log_ratio_abs", "valid_tokens"),
    "opd/log_ratio_abs_mean_first": ("log_ratio_abs_first", "first_tokens"),
    "opd/gate_pass_frac_correct": ("passed_correct_tokens", "nonzero_correct_tokens"),
    "opd/gate_pass_frac_incorrect": ("passed_incorrect_tokens", "nonzero_incorrect_tokens"),
    "opd/zeroed_mass_frac": ("zeroed_mass", "ungated_mass"),
    "opd/effective_token_frac": ("effective_tokens", "valid_tokens"),
    "opd/reward_mean": ("reward", "valid_tokens"),
    "opd/truncated_token_frac": ("truncated_tokens", "valid_tokens"),
    "teacher/entropy": ("teacher_entropy", "valid_tokens"),
    "actor/entropy": ("entropy", "valid_tokens"),
    "critic/advantages/mean": ("advantages", "valid_tokens"),
    "training/rollout_probs_diff_mean": ("probs_diff", "valid_tokens"),
    "opd/rollout_logprob_diff_mean": ("logprob_diff", "valid_tokens"),
    "opd/divergence": ("divergence", "valid_tokens"),
    "opd/divergence_passed_frac": ("divergence_passed", "divergence_signal"),
    "val-topk/overlap_ratio": ("overlap_ratio", "overlap_tokens"),
    "val-topk/overlap_advantage": ("overlap_advantage", "overlap_tokens"),
    "val-topk/overlap_student_mass": ("overlap_student_mass", "overlap_tokens"),
    "val-topk/overlap_teacher_mass": ("overlap_teacher_mass", "overlap_tokens"),
}
_EXTREMES = {
    "critic/advantages/max": "advantages_max",
    "critic/advantages/min": "advantages_min",
    "training/rollout_probs_diff_max": "probs_diff_max",
    "opd/rollout_logprob_diff_max": "logprob_diff_max",
}


def _ratio_sums(log_ratio: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
    ratio = _masked(log_ratio, valid)
    return {
        "log_ratio": ratio.sum(),
        "log_ratio_abs": ratio.abs().sum(),
        "log_ratio_abs_first": ratio[:, :_FIRST_TOKENS].abs().sum(),
        "first_tokens": valid[:, :_FIRST_TOKENS].sum(),
    }


def _gate_sums(
    rewards: TokenRewards, valid: torch.Tensor, correct: torch.Tensor
) -> dict[str, torch.Tensor]:
    by_candidate = valid if rewards.reward.dim() == 2 else valid.unsqueeze(-1)
    ungated, gated, reward = (_masked(stage, by_candidate) for stage in rewards)
    nonzero = ungated != 0
    passed = nonzero & (gated != 0)
    zeroed = nonzero & (gated == 0)
    is_correct = correct.view(-1, *[1] * (reward.dim() - 1))
    effective = reward != 0
    return {
        "reward": reward.sum(),
        "effective_tokens": (effective if reward.dim() == 2 else effective.any(-1)).sum(),
        "nonzero_tokens": nonzero.sum(),
        "nonzero_correct_tokens": (nonzero & is_correct).sum(),
        "nonzero_incorrect_tokens": (nonzero & ~is_correct).sum(),
        "passed_correct_tokens": (passed & is_correct).sum(),
        "passed_incorrect_tokens": (passed & ~is_correct).sum(),
        "zeroed_tokens": zeroed.sum(),
        "zeroed_mass": (ungated.abs() * zeroed).sum(),
        "ungated_mass": ungated.abs().sum(),
    }


def _as_floats(sums: dict[str, torch.Tensor]) -> dict[str, float]:
    # Stacked, so that an accelerator is waited for once and not once a number.
    values = torch.stack([value.detach().double() for value in sums.values()]).tolist()
    return dict(zip(sums, values, strict=True))


def _rollout_sums(
    student_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, valid: torch.Tensor
) -> dict[str, torch.Tensor]:
    student, rollout = _masked(student_logprobs, valid), _masked(rollout_logprobs, valid)
    p, q = student.exp() * valid, rollout.exp() * valid
    probs_diff, logprob_diff = (p - q).abs(), (student - rollout).abs()
    return {
        "probs_diff": probs_diff.sum(),
        "probs_diff_square": probs_diff.square().sum(),
        "probs_diff_max": _largest(probs_diff, valid).clamp(min=0),
        "logprob_diff": logprob_diff.sum(),
        "logprob_diff_max": _largest(logprob_diff, valid).clamp(min=0),
        "student_probs": p.sum(),
        "student_probs_square": p.square().sum(),
        "rollout_probs": q.sum(),
        "rollout_probs_square": q.square().sum(),
        "probs_product": (p * q).sum(),
    }


def _rollout_spread(sums: dict[str, float]) -> dict[str, float]:
    """Standard deviation and correlation, which need second moments and two tokens."""
    n = sums["valid_tokens"]
    if n < 2:
        return {}

    def squares_about_mean(key: str) -> float:
        centred = sums[f"{key}_square"] - sums[key] ** 2 / n
        return centred if centred > _VARIANCE_NOISE * sums[f"{key}_square"] else 0.0

    metrics = {
        "training/rollout_probs_diff_std": (squares_about_mean("probs_diff") / (n - 1)) ** 0.5
    }
    spread = squares_about_mean("student_probs") * squares_about_mean("rollout_probs")
    if spread > 0:
        product = sums["probs_product"] - sums["student_probs"] * sums["rollout_probs"] / n
        correlation = min(max(product / spread**0.5, -1.0), 1.0)
        metrics["training/rollout_actor_probs_pearson_corr"] = correlation
    return metrics


def _masked(values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    return torch.where(valid, values.detach(), 0).double()


def _largest(values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    lowest = values.new_full((1,), -torch.inf)
    return torch.cat([values.masked_fill(~valid, -torch.inf).reshape(-1), lowest]).amax()
