"""Group statistics: a group is the G responses to one prompt, told apart by id and never by place.

Rows are reordered between generation and update, so position says nothing about the prompt.
B responses, G responses a group.
"""

from collections.abc import Hashable, Sequence

import torch

from opdvr.core.rewards import require_finite

# Keeps the quotient finite when a group has almost no spread (DeepSeekMath, arXiv 2402.03300).
STD_EPSILON = 1e-6


def group_advantages(
    verifier_scores: torch.Tensor,
    group_ids: Sequence[Hashable] | torch.Tensor,
    norm_by_std: bool,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """How much better than its group each response scored.

    norm_by_std False: c - mean (Dr.GRPO, arXiv 2503.20783). True: (c - mean) / (std + 1e-6) with
    the n-1 standard deviation (GRPO, arXiv 2402.03300). Scores (1, 0, 0, 0) give 0.75 and three
    times -0.25, divided by a standard deviation of 0.5 when norm_by_std.

    Args:
        verifier_scores: [B].
        group_ids: [B], any hashable ids or an integer tensor.
        norm_by_std: divide by the standard deviation.
        valid: [B] bool, None for all. Other rows (a response masked out whole) get 0 and do not
            move the baseline of their group.

    Returns:
        [B] float32. Exactly 0 in a group whose valid scores are all equal or number one.

    Raises:
        ValueError: a group of a single row, which has nothing to be compared with.
        NonFiniteError: a valid score that is not finite.
    """
    index, n_groups = group_index(group_ids, verifier_scores)
    if valid is None:
        valid = torch.ones_like(verifier_scores, dtype=torch.bool)
    assert valid.dtype == torch.bool and valid.shape == verifier_scores.shape
    alone = torch.bincount(index, minlength=n_groups)[index] == 1
    if alone.any():
        lone_id = group_ids[int(alone.nonzero()[0])]
        raise ValueError(
            f"group {lone_id} has one response, so nothing to compare it with: set N_RESPONSES "
            "(actor_rollout_ref.rollout.n) to 2 or more"
        )
    require_finite(verifier_scores, valid, "verifier score")
    return normalise_in_groups(verifier_scores, index, n_groups, valid, norm_by_std)


def group_correct_frac(
    correct: torch.Tensor,
    group_ids: Sequence[Hashable] | torch.Tensor,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Share of correct responses in each response's group, for gates that need groups.

    Args:
        correct: [B] bool.
        group_ids: [B], as for group_advantages.
        valid: [B] bool, None for all; other rows are not counted.

    Returns:
        [B] float32, exactly 0 and 1 where all are wrong and all are right.
    """
    index, n_groups = group_index(group_ids, correct)
    counted = torch.ones_like(correct) if valid is None else valid
    zeros = torch.zeros(n_groups, device=correct.device)
    n_correct = zeros.index_add(0, index, (correct & counted).float())
    n_counted = zeros.index_add(0, index, counted.float())
    return (n_correct / n_counted.clamp(min=1))[index]


def grpd_scale(advantages: torch.Tensor, baseline: float) -> torch.Tensor:
    """GRPD's weight of each response, |a| + u.

    Args:
        advantages: [B] from group_advantages.
        baseline: u = grpo_scale_baseline; with 0 a group without spread gives no signal.

    Returns:
        [B], dtype of advantages, at least u.
    """
    return advantages.abs() + baseline


def group_index(
    group_ids: Sequence[Hashable] | torch.Tensor, like: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """(group number of each row [B] int64 on like's device, number of groups)."""
    assert len(group_ids) == like.shape[0], "one group id a row"
    if isinstance(group_ids, torch.Tensor):
        unique_ids, index = torch.unique(group_ids, return_inverse=True)
        return index.to(like.device), len(unique_ids)
    numbers: dict[Hashable, int] = {}
    index = [numbers.setdefault(group_id, len(numbers)) for group_id in group_ids]
    return torch.tensor(index, dtype=torch.long, device=like.device), len(numbers)


def uniform_groups(
    values: torch.Tensor, index: torch.Tensor, n_groups: int, valid: torch.Tensor
) -> torch.Tensor:
    """[n_groups] bool: the valid values of the group are all equal (or it has none).

    Compared, not computed: eight float32 scores of 0.35 have a mean that is not 0.35, and dividing
    that rounding error by itself would make an advantage out of nothing.
    """
    lowest = values.new_full((n_groups,), torch.inf)
    highest = values.new_full((n_groups,), -torch.inf)
    lowest.scatter_reduce_(0, index, values.masked_fill(~valid, torch.inf), "amin")
    highest.scatter_reduce_(0, index, values.masked_fill(~valid, -torch.inf), "amax")
    return highest <= lowest


def normalise_in_groups(
    values: torch.Tensor, index: torch.Tensor, n_groups: int, valid: torch.Tensor, by_std: bool
) -> torch.Tensor:
    """Values less their group's mean, over its n-1 standard deviation + 1e-6 when by_std.

    Args:
        values: [N], responses or tokens.
        index: [N] int64, the group of each.
        n_groups: number of groups.
        valid: [N] bool; the others count nowhere and get 0.
        by_std: divide by the standard deviation.

    Returns:
        [N] float32; exactly 0 where a group is uniform.
    """
    values = values.detach().double()  # so that the order of the rows does not show in float32
    kept = torch.where(valid, values, 0)
    zeros = kept.new_zeros(n_groups)
    count = zeros.index_add(0, index, valid.double())
    mean = zeros.index_add(0, index, kept) / count.clamp(min=1)
    centred = torch.where(valid, kept - mean[index], 0)
    if by_std:
        variance = zeros.index_add(0, index, centred.square()) / (count - 1).clamp(min=1)
        centred = centred / (variance.sqrt()[index] + STD_EPSILON)
    is_uniform = uniform_groups(values, index, n_groups, valid)
    return torch.where(is_uniform[index], 0, centred).float()
