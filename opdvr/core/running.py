"""What is kept of each row while its logits come tile by tile: sums, and the k largest.

N rows, V vocabulary, n x v a tile. Sorting a whole row of a large vocabulary is slow on a CPU, so
the k largest are found by groups: they lie in the k groups of columns of largest maximum.
"""

import math

import torch

# Stands for -inf where that would meet a factor of 0: exp() of it is 0, a product with 0 is 0.
LOWEST_LOG = -1e30


class RunningSums:
    """Logsumexp, and the sum that entropy needs, of N rows whose logits come tile by tile.

    highest [N] and total [N]: logsumexp = highest + log total. They are kept apart, because at
    large logits their sum rounds log total away.
    """

    def __init__(self, n_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.highest = torch.full((n_tokens,), LOWEST_LOG, dtype=dtype, device=device)
        self.total = torch.zeros_like(self.highest)
        self.weighted = torch.zeros_like(self.highest)

    def add(
        self,
        tokens: slice,
        logits: torch.Tensor,
        tile_highest: torch.Tensor,
        spare: torch.Tensor | None = None,
    ) -> None:
        """Take a tile [n,v] and its row maxima [n]; overwrites it. With a spare [n,v], weighted."""
        before, total = self.highest[tokens], self.total[tokens]
        highest = torch.maximum(before, tile_highest)
        rescale = (before - highest).exp_()
        shifted = logits.sub_(highest[:, None])
        if spare is None:
            new_total = shifted.exp_().sum(-1)
        else:
            exponentials = torch.exp(shifted, out=spare)
            new_total = exponentials.sum(-1)
            # an excluded id adds 0, where 0 * -inf would be NaN
            new_weighted = exponentials.mul_(shifted.clamp_(min=LOWEST_LOG)).sum(-1)
            # sum e^(z-m') (z-m') = e^(m-m') (sum e^(z-m) (z-m) + (m-m') sum e^(z-m))
            moved = self.weighted[tokens] + (before - highest) * total
            self.weighted[tokens] = new_weighted.add_(moved.mul_(rescale))
        self.total[tokens] = new_total.add_(rescale.mul_(total))
        self.highest[tokens] = highest

    def entropy(self) -> torch.Tensor:
        """[N]: H = log sum e^z - sum p z."""
        return self.total.log() - self.weighted / self.total


class RunningTopK:
    """The k largest logits of N rows so far, with their ids.

    values [N,k]: in no order, -inf where fewer than k were seen. ids [N,k] int64: -1 there.
    """

    def __init__(self, n_tokens: int, k: int, dtype: torch.dtype, device: torch.device) -> None:
        self.values = torch.full((n_tokens, k), -torch.inf, dtype=dtype, device=device)
        self.ids = torch.full_like(self.values, -1, dtype=torch.int64)
        self._least = torch.full_like(self.values[:, 0], -torch.inf)

    def add(
        self, tokens: slice, first_id: int, logits: torch.Tensor, tile_highest: torch.Tensor
    ) -> None:
        """Take a tile [n,v], whose first column is id `first_id`, and its row maxima [n]."""
        known, bound = self.values[tokens], self._least[tokens]
        improved = (tile_highest > bound).nonzero().squeeze(1)
        if len(improved) == 0:
            return
        if len(improved) <= len(logits) // 2:  # copying the rows costs less than reading all
            rows = improved + tokens.start
            known, bound, logits = known[improved], bound[improved], logits[improved]
        else:
            rows = torch.arange(tokens.start, tokens.stop, device=logits.device)
        values, columns = _candidates(logits, bound[:, None], known.shape[1])
        pool = torch.cat((known, values), 1)
        pool_ids = torch.cat((self.ids[rows], columns + first_id), 1)
        best, where = pool.topk(known.shape[1], dim=1, sorted=False)  # sorted once, at the end
        self.values[rows] = best
        self._least[rows] = best.amin(-1)
        self.ids[rows] = pool_ids.gather(1, where)

    def results(
        self, highest: torch.Tensor, log_total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids, log-probabilities) [N,k], falling; -1 and 0 for an id of no probability."""
        values, order = self.values.sort(-1, descending=True)
        absent = values == -torch.inf
        ids = self.ids.gather(1, order).masked_fill_(absent, -1)
        logprobs = values.sub_(highest[:, None]).sub_(log_total[:, None])
        return ids, logprobs.masked_fill_(absent, 0)


def _candidates(
    logits: torch.Tensor, bound: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, columns) [n,m] that hold every one of a row's k largest that is above its bound."""
    n, v = logits.shape
    # m groups cost a selection among v / g maxima and one among m * g values: equal at sqrt(v / m)
    group = math.isqrt(v // k)
    if group < 2:
        return logits.topk(min(k, v), dim=1, sorted=False)
    groups = v // group
    whole = group * groups
    maxima = logits[:, :whole].unflatten(1, (group, groups)).amax(1)
    needed = min(k, groups)
    if logits.device.type == "cpu":  # on a GPU the wait would cost more than it saves
        needed = min(needed, int((maxima > bound).sum(1).max()))
    chosen = maxima.topk(needed, dim=1, sorted=False).indices
    members = torch.arange(0, whole, groups, device=logits.device)[:, None]
    columns = (chosen[:, None, :] + members).flatten(1)
    rest = torch.arange(whole, v, device=logits.device).expand(n, -1)
    columns = torch.cat((columns, rest), 1)
    return logits.gather(1, columns), columns
