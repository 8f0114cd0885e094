"""Log-probabilities, entropies and top-k from hidden states, without the logits of all tokens.

N tokens, H hidden size, V vocabulary, K ids a token. Dense scoring holds several [N,V] tensors,
which for a long packed micro-batch is most of the memory of training. Here one sweep over tiles of
the logits keeps running sums a token, and the backward pass computes the tiles a second time.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable

from opdvr.core.output_layer import GivenLogits, OutputLayer, Source, inputs_of
from opdvr.core.running import LOWEST_LOG, RunningSums, RunningTopK
from opdvr.core.tiles import TiledGradients, TiledLogits, TileIds, spans, tile_size


class HeadScores(NamedTuple):
    """Scores of N tokens; float32 (float64 from a float64 layer), nats.

    Attributes:
        logprobs: [N,K] of ids; 0, without gradient, where an id is -1.
        logsumexp: [N] of logits / temperature.
        entropy: [N], or None where not asked for.
        top_ids: [N,top_k] int64, by falling probability; -1 where fewer than top_k ids exist. None
            where not asked for.
        top_logprobs: [N,top_k] of top_ids, no gradient; 0 where top_ids is -1. None likewise.
    """

    logprobs: torch.Tensor
    logsumexp: torch.Tensor
    entropy: torch.Tensor | None
    top_ids: torch.Tensor | None
    top_logprobs: torch.Tensor | None


@dataclass(frozen=True)
class _Job:
    source: Source
    temperature: float
    with_entropy: bool
    top_k: int
    tile_tokens: int | None
    tile_vocabulary: int | None


def score_tokens(
    source: OutputLayer | GivenLogits,
    hidden: torch.Tensor | None,
    ids: torch.Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    top_k: int = 0,
    tile_tokens: int | None = None,
    tile_vocabulary: int | None = None,
) -> HeadScores:
    """log softmax(logits / temperature) at ids, its logsumexp, and entropy and top-k if asked for.

    Softmax, entropy and top-k run over the ids that exist (`source.size`). A layer's product is in
    its weight's dtype (autocast does not change it); from there on float32, or float64 if that is
    the weight's dtype.

    Args:
        source: the output layer, its weight still whole when backward runs; or logits.
        hidden: [N,H], the input of the output layer; None for logits.
        ids: [N,K] int64; -1 asks for nothing. An id may repeat.
        temperature: divides the logits.
        with_entropy: also return entropies.
        top_k: also return this many of the most probable ids; may exceed V.
        tile_tokens, tile_vocabulary: most tokens and ids whose logits are held at a time; None is
            chosen by device. They change results by rounding only. The extra memory is a few
            float32 tiles, and in backward the float32 gradient of hidden.

    Returns:
        logprobs, logsumexp and entropy are differentiable, once, in hidden (or logits), weight and
        bias; gradients have the dtype of what they belong to. Tokens whose incoming gradients are
        all 0 (masked, or gated away) cost nothing in backward.

    Raises:
        ValueError: a temperature that is not positive, an id outside -1..V-1, a negative top_k, a
            tile of nothing.
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"TEMPERATURE={temperature} must be positive to score tokens")
    if top_k < 0:
        raise ValueError(f"top_k={top_k} must not be negative; 0 is no top-k")
    inputs = inputs_of(source, hidden)
    n_tokens = inputs[0].shape[0]
    assert ids.dim() == 2 and ids.shape[0] == n_tokens and ids.dtype == torch.int64, "ids [N,K]"
    if ids.numel() > 0:
        lowest, highest = (bound.item() for bound in ids.aminmax())
        if lowest < -1 or highest >= source.size:
            wrong = lowest if lowest < -1 else highest
            raise ValueError(
                f"id {wrong} is outside the vocabulary of {source.size}; -1 asks for nothing"
            )
    tile_size(n_tokens, source.size, ids.device, tile_tokens, tile_vocabulary)  # refuses early
    job = _Job(source, temperature, with_entropy, top_k, tile_tokens, tile_vocabulary)
    return HeadScores(*_ScoreTokens.apply(*inputs, ids, job))


def _sweep(
    job: _Job, inputs: tuple[torch.Tensor | None, ...], ids: torch.Tensor
) -> tuple[torch.Tensor, RunningSums, RunningTopK | None]:
    """One sweep: logits at ids [N,K], sums, and top-k by logit."""
    n_tokens, vocabulary = ids.shape[0], job.source.size
    asked = (job.tile_tokens, job.tile_vocabulary)
    size = tile_size(n_tokens, vocabulary, ids.device, *asked, ranking=job.top_k > 0)
    tiles = TiledLogits(job.source, _hidden(job, inputs), job.temperature, size)
    sums = RunningSums(n_tokens, tiles.dtype, ids.device)
    top = RunningTopK(n_tokens, job.top_k, tiles.dtype, ids.device) if job.top_k else None
    picked = inputs[0].new_zeros(ids.shape, dtype=tiles.dtype)
    spare = picked.new_empty(size.tokens * size.columns) if job.with_entropy else None
    tile_ids = TileIds(ids, vocabulary, size)
    for columns in spans(vocabulary, size.columns):
        for tokens in spans(n_tokens, size.tokens):
            logits = tiles(tokens, columns)
            positions, index = tile_ids.of(tokens, columns)
            picked.view(-1)[positions] = logits.view(-1)[index]
            tile_highest = logits.amax(-1)
            if top is not None:
                top.add(tokens, columns.start, logits, tile_highest)
            free = None if spare is None else spare[: logits.numel()].view_as(logits)
            sums.add(tokens, logits, tile_highest, free)
    return picked, sums, top


def _hidden(job: _Job, inputs: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    return inputs[0] if isinstance(job.source, OutputLayer) else None


class _RowGradients:
    """The incoming gradients of the rows that have any, as coefficients of a tile.

    With p = softmax and H its entropy: dlogp_k/dz_j = [j = k] - p_j; dlogsumexp/dz_j = p_j;
    dH/dz_j = -p_j (log p_j + H).
    """

    def __init__(
        self,
        ids: torch.Tensor,
        saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        grads: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
        factor: float,
    ) -> None:
        highest, total, entropy = saved
        of_logprobs, of_logsumexp, of_entropy = grads
        at_ids = torch.zeros_like(ids, dtype=total.dtype)
        if of_logprobs is not None:
            at_ids = of_logprobs.masked_fill(ids < 0, 0)
        active = (at_ids != 0).any(-1)
        for grad in (of_logsumexp, of_entropy):
            active = active if grad is None else active | (grad != 0)
        # Finding the tokens that train makes a GPU wait once; each token skipped saves 6HV FLOPs.
        rows = active.nonzero().squeeze(1)
        self.rows = rows
        self.ids = ids[rows]
        self.at_ids = at_ids[rows] * factor
        self._highest = highest[rows, None]
        constant = -at_ids[rows].sum(-1)
        if of_logsumexp is not None:
            constant += of_logsumexp[rows]
        self._slope = None
        total = total[rows]
        if of_entropy is not None:
            constant -= of_entropy[rows] * (entropy[rows] - total.log())
            self._slope = (of_entropy[rows] * (-factor / total))[:, None]
        self._constant = (constant * (factor / total))[:, None]

    def tile(self, tokens: slice, logits: torch.Tensor, spare: torch.Tensor | None) -> torch.Tensor:
        """Gradient [n,v] but for that through ids, times the factor; overwrites logits, spare."""
        shifted = logits.sub_(self._highest[tokens])
        if self._slope is None:
            return shifted.exp_().mul_(self._constant[tokens])
        exponentials = torch.exp(shifted, out=spare)
        shifted = shifted.clamp_(min=LOWEST_LOG)
        return shifted.mul_(self._slope[tokens]).add_(self._constant[tokens]).mul_(exponentials)

    @property
    def needs_spare(self) -> bool:
        return self._slope is not None


class _ScoreTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, main, weight, bias, ids, job):  # noqa: ANN001, ANN205
        with torch.autocast(main.device.type, enabled=False):
            picked, sums, top = _sweep(job, (main, weight, bias), ids)
        log_total = sums.total.log()
        entropy = sums.entropy() if job.with_entropy else None
        logprobs = picked.sub_(sums.highest[:, None]).sub_(log_total[:, None])
        logprobs.masked_fill_(ids < 0, 0)
        ctx.save_for_backward(main, weight, bias, ids, sums.highest, sums.total, entropy)
        ctx.job = job
        # An output that nobody differentiates then arrives as None, and its part is skipped.
        ctx.set_materialize_grads(False)
        top_ids = top_logprobs = None
        if top is not None:
            top_ids, top_logprobs = top.results(sums.highest, log_total)
            ctx.mark_non_differentiable(top_ids, top_logprobs)
        return logprobs, sums.highest + log_total, entropy, top_ids, top_logprobs

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):  # noqa: ANN001, ANN205
        main, weight, bias, ids, *saved = ctx.saved_tensors
        job, vocabulary = ctx.job, ctx.job.source.size
        factor = TiledLogits.factor_of(job.source, job.temperature)
        incoming = _RowGradients(ids, tuple(saved), grads[:3], factor)
        n_rows = len(incoming.rows)
        size = tile_size(n_rows, vocabulary, ids.device, job.tile_tokens, job.tile_vocabulary)
        rows = None if n_rows == len(ids) else incoming.rows
        like = (main, weight, bias)
        wanted = [t if want else None for t, want in zip(like, ctx.needs_input_grad, strict=False)]
        with torch.autocast(main.device.type, enabled=False):
            tiles = TiledLogits(job.source, _hidden(job, like), job.temperature, size, rows, True)
            gradients = TiledGradients(tiles, tuple(wanted), vocabulary)
            tile_ids = TileIds(incoming.ids, vocabulary, size)
            memory = None
            if incoming.needs_spare:
                memory = saved[0].new_empty(size.tokens * size.columns)
            for columns in spans(vocabulary, size.columns):
                for tokens in spans(n_rows, size.tokens):
                    logits = tiles(tokens, columns)
                    spare = None if memory is None else memory[: logits.numel()].view_as(logits)
                    gradient = incoming.tile(tokens, logits, spare)
                    positions, index = tile_ids.of(tokens, columns)
                    gradient.view(-1).index_add_(0, index, incoming.at_ids.view(-1)[positions])
                    gradients.add(tokens, columns, gradient)
                gradients.columns_done(columns)
        return *gradients.results(), None, None
