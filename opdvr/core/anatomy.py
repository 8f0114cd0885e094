"""What the gate did to a batch's tokens, as sums that add up over micro-batches, ranks and steps.

Distribution of the log-ratio, the same by position, and how often each token was pushed which way;
each for correct and for incorrect responses. B responses, T response tokens, C candidates a token,
E bins of the log-ratio, P bins of the position, U different tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

# Bins a factor 10 ** (1 / 8) = 1.33 wide from 0.00001 to 100 nats on both sides of 0: fine where
# most tokens are, and no log-ratio is outside.
_BINS_A_DECADE, _SMALLEST, _DECADES = 8, 1e-5, 7
_SIDE = tuple(
    _SMALLEST * 10 ** (step / _BINS_A_DECADE) for step in range(_BINS_A_DECADE * _DECADES + 1)
)
EDGES = (-torch.inf, *(-edge for edge in reversed(_SIDE)), 0.0, *_SIDE, torch.inf)
# A position p is in the last bin whose start is at most p: 0, 1, 2-3, 4-7, ...
POSITION_STARTS = (0, *(2**power for power in range(18)))
# Rows of `Anatomy.log_ratio`, of `Anatomy.position` and columns of `Anatomy.pushed`.
RATIO_ROWS = ("tokens", "sum", "kept_tokens", "kept")
POSITION_ROWS = ("tokens", "log_ratio", "log_ratio_abs", "kept_tokens")
PUSHED_COLUMNS = ("up", "up_sum", "down", "down_sum")
VERDICTS = ("incorrect", "correct")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Anatomy(NamedTuple):
    """Sums over valid tokens (with candidates: over candidates of valid tokens).

    log_ratio: [2,E,4] float64, by verdict (VERDICTS) and bin (EDGES, lower one included): how many,
        the sum of their log-ratios, how many the gate left anything of, and the sum of the absolute
        values it left (RATIO_ROWS). nats.
    position: [2,P,4] float64, by verdict and position: POSITION_ROWS.
    token_ids: [U] int64, rising.
    pushed: [U,4] float64: how often the token's reward was above 0, the sum of those rewards, how
        often below, their sum (PUSHED_COLUMNS).
    """

    log_ratio: torch.Tensor
    position: torch.Tensor
    token_ids: torch.Tensor
    pushed: torch.Tensor


def anatomy_of(
    log_ratio: torch.Tensor,
    gated: torch.Tensor,
    reward: torch.Tensor,
    token_ids: torch.Tensor,
    mask: torch.Tensor,
    correct: torch.Tensor,
) -> Anatomy:
    """The sums of one micro-batch, on the CPU.

    Two tokens of a correct response, log-ratios +0.9 and -0.4, gate `default`: one token in the bin
    of 0.9 of which 0.9 is kept, one in that of -0.4 of which nothing is.

    Args:
        log_ratio, gated, reward: [B,T] or [B,T,C], nats: what came to the gate, what it let
            through, and that times the response's scale.
        token_ids: like log_ratio, int64; which token a reward is for. Negative ones (an empty slot,
            the tail) count as no token's.
        mask: like log_ratio, or [B,T]; non-zero where valid, the rest may hold anything.
        correct: [B] bool.
    """
    valid = mask.bool()
    if valid.dim() < log_ratio.dim():
        valid = valid.unsqueeze(-1).expand_as(log_ratio)
    verdict = correct.long().view(-1, *[1] * (log_ratio.dim() - 1)).expand_as(log_ratio)[valid]
    place = torch.arange(log_ratio.shape[1], device=log_ratio.device)
    place = place.view(1, -1, *[1] * (log_ratio.dim() - 2)).expand_as(log_ratio)[valid]
    ratio, left, pushed = (values.detach()[valid].double() for values in (log_ratio, gated, reward))
    ones, kept = torch.ones_like(ratio), (left != 0).double()
    in_ratio = _summed(
        verdict, _bin_of(ratio, EDGES[1:-1]), len(EDGES) - 1, (ones, ratio, kept, left.abs())
    )
    starts = torch.tensor(POSITION_STARTS[1:], device=place.device)
    in_place = _summed(
        verdict,
        torch.bucketize(place, starts, right=True),
        len(POSITION_STARTS),
        (ones, ratio, ratio.abs(), kept),
    )
    ids, sums = _by_token(token_ids[valid], pushed)
    return Anatomy(in_ratio.cpu(), in_place.cpu(), ids.cpu(), sums.cpu())


def add_anatomies(parts: Iterable[Anatomy]) -> Anatomy | None:
    """The sums of the union of several micro-batches, ranks or steps; None for none."""
    parts = list(parts)
    if not parts:
        return None
    ids = torch.cat([part.token_ids for part in parts])
    unique, place = torch.unique(ids, return_inverse=True)
    pushed = torch.zeros(len(unique), len(PUSHED_COLUMNS), dtype=torch.float64)
    pushed.index_add_(0, place, torch.cat([part.pushed for part in parts]))
    return Anatomy(
        torch.stack([part.log_ratio for part in parts]).sum(0),
        torch.stack([part.position for part in parts]).sum(0),
        unique,
        pushed,
    )


def anatomy_metrics(anatomy: Anatomy) -> dict[str, float]:
    """Metrics over the tokens that went into the sums; {} for none.

    opd/log_ratio_q05, _q25, _q50, _q75, _q95: quantiles of the log-ratio, nats, read off the bins
    (a third of its size off at most). opd/log_ratio_mean_from_<s>: its mean over the positions from
    s up to the next power of two, for those that any token has.
    """
    counts = anatomy.log_ratio[..., 0].sum(0)
    if not counts.sum() > 0:
        return {}
    sums = anatomy.log_ratio[..., 1].sum(0)
    metrics = {
        f"opd/log_ratio_q{round(100 * share):02d}": _quantile(counts, sums, share)
        for share in QUANTILES
    }
    tokens, ratios = anatomy.position.sum(0)[:, :2].unbind(-1)
    for start, count, total in zip(POSITION_STARTS, tokens.tolist(), ratios.tolist(), strict=True):
        if count:
            metrics[f"opd/log_ratio_mean_from_{start}"] = total / count
    return metrics


def most_pushed(anatomy: Anatomy, count: int) -> dict[str, list[tuple[int, int, float]]]:
    """The tokens most often pushed up, and down: (token id, how often, sum of rewards in nats)."""
    found = {}
    for name, column in (("up", 0), ("down", 2)):
        often = anatomy.pushed[:, column]
        order = torch.argsort(often, descending=True, stable=True)[:count]
        found[name] = [
            (int(anatomy.token_ids[i]), int(often[i]), float(anatomy.pushed[i, column + 1]))
            for i in order.tolist()
            if often[i] > 0
        ]
    return found


def _bin_of(values: torch.Tensor, inner_edges: tuple[float, ...]) -> torch.Tensor:
    edges = torch.tensor(inner_edges, dtype=values.dtype, device=values.device)
    return torch.bucketize(values, edges, right=True)


def _summed(
    verdict: torch.Tensor, bins: torch.Tensor, n_bins: int, columns: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    """[2, n_bins, columns]: each column's sum by verdict and bin; all inputs [N]."""
    sums = columns[0].new_zeros(len(VERDICTS) * n_bins, len(columns))
    sums.index_add_(0, verdict * n_bins + bins, torch.stack(columns, dim=-1))
    return sums.view(len(VERDICTS), n_bins, len(columns))


def _by_token(ids: torch.Tensor, reward: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Different ids [U] and their PUSHED_COLUMNS [U,4]; both inputs [N]."""
    is_pushed = (reward != 0) & (ids >= 0)
    reward = reward[is_pushed]
    unique, place = torch.unique(ids[is_pushed], return_inverse=True)
    up, down = reward.clamp(min=0), reward.clamp(max=0)
    columns = ((up > 0).double(), up, (down < 0).double(), down)
    sums = reward.new_zeros(len(unique), len(columns))
    sums.index_add_(0, place, torch.stack(columns, dim=-1))
    return unique, sums


def _quantile(counts: torch.Tensor, sums: torch.Tensor, share: float) -> float:
    """Linear within its bin; the mean of a bin without an end."""
    wanted = share * counts.sum()
    below = counts.cumsum(0)
    # The first bin that holds anything and reaches the wanted count.
    at = int(torch.nonzero((below >= wanted) & (counts > 0))[0])
    low, high = EDGES[at], EDGES[at + 1]
    if torch.inf in (-low, high):
        return float(sums[at] / counts[at])
    within = (wanted - (below[at] - counts[at])) / counts[at]
    return low + float(within) * (high - low)
