"""Log-probabilities and entropies from hidden states, without the logits of all tokens at once.

N tokens, H hidden size, V vocabulary. Dense scoring holds several [N,V] tensors, which for a long
packed micro-batch is most of the memory of training. Here tokens pass in chunks and the backward
pass recomputes the logits of a chunk instead of keeping them.
"""

import torch
from torch.autograd.function import once_differentiable

# exp() of this is 0 in float32, and its product with any sane gradient is finite.
_LOWEST_LOG = -1e4


def score_tokens(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target_ids: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    with_entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """log softmax(logits / temperature)[target] and, when asked for, the entropy.

    logits = hidden @ weight.T + bias in the weight's dtype (autocast does not change it); from
    there on float32.

    Args:
        hidden: [N,H], the input of the output layer.
        weight: [V,H], whole (not a shard), still whole when backward runs.
        target_ids: [N] int64 in [0, V).
        bias: [V] or None. -inf excludes an id, as inference engines do with padded vocabularies.
        temperature: divides the logits.
        chunk_tokens: tokens whose logits are held at a time; may exceed N. The extra memory is
            one [chunk_tokens,V] float32 buffer, one more for entropy, one more in the weight's
            dtype if that is not float32, and in backward the float32 gradient of the weight.
        with_entropy: also return entropies.

    Returns:
        (logprobs [N] float32 nats, entropy [N] float32 nats or None), both differentiable once in
        hidden, weight and bias; gradients have the dtype of what they belong to. Tokens whose
        incoming gradient is 0 (masked, or gated away) cost nothing in backward.

    Raises:
        ValueError: a temperature that is not positive, a chunk of no tokens.
    """
    if not temperature > 0:
        raise ValueError(f"TEMPERATURE={temperature} must be positive to score tokens")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens} must be at least 1")
    assert hidden.dim() == 2 and hidden.shape[1] == weight.shape[1], "hidden [N,H], weight [V,H]"
    assert target_ids.shape == hidden.shape[:1] and target_ids.dtype == torch.int64
    return _ScoreTokens.apply(
        hidden, weight, bias, target_ids, temperature, chunk_tokens, with_entropy
    )


class _ChunkLogits:
    """Computes float32 logits [n,V] of n tokens, every time into the same memory."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float, rows: int
    ) -> None:
        self.weight, self.temperature = weight, temperature
        self.bias = None if bias is None else bias.to(weight.dtype)
        self.product = weight.new_empty(rows, weight.shape[0])
        self.logits = self.product
        if weight.dtype != torch.float32:
            self.logits = torch.empty_like(self.product, dtype=torch.float32)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        n = hidden.shape[0]
        product, logits = self.product[:n], self.logits[:n]
        if self.bias is None:
            torch.mm(hidden, self.weight.t(), out=product)
        else:
            torch.addmm(self.bias, hidden, self.weight.t(), out=product)
        if logits.dtype != product.dtype:
            logits.copy_(product)
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)


def _score_chunk(
    logits: torch.Tensor, target_ids: torch.Tensor, spare: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(logprobs, log-partition, entropy or None), each [n]; overwrites logits and spare [n,V].

    Entropy is made when there is a spare buffer. In place and by hand, because torch.logsumexp and
    log_softmax each allocate another [n,V] and are no faster.
    """
    highest = logits.amax(-1, keepdim=True)
    shifted = logits.sub_(highest)
    target_logit = shifted.gather(1, target_ids[:, None])
    exponentials = shifted.exp_() if spare is None else torch.exp(shifted, out=spare)
    total = exponentials.sum(-1, keepdim=True)
    log_total = total.log()
    entropy = None
    if spare is not None:
        # H = log sum e^z - sum p z; an id excluded by -inf adds 0, where 0 * -inf would be NaN.
        weighted = exponentials.mul_(_finite(shifted)).sum(-1, keepdim=True)
        entropy = (log_total - weighted / total).squeeze(1)
    return (target_logit - log_total).squeeze(1), (highest + log_total).squeeze(1), entropy


def _logit_gradient(
    logits: torch.Tensor,
    log_partition: torch.Tensor,
    target_ids: torch.Tensor,
    grad_logprobs: torch.Tensor | None,
    grad_entropy: torch.Tensor | None,
    entropy: torch.Tensor | None,
) -> torch.Tensor:
    """Gradient [n,V] with respect to the (tempered) logits, written over them.

    dlogp/dlogit_j = [j = target] - p_j;  dH/dlogit_j = -p_j (log p_j + H).
    """
    log_p = logits.sub_(log_partition[:, None])
    if grad_entropy is None:
        gradient = log_p.exp_().mul_(-grad_logprobs[:, None])
    else:
        p = log_p.exp()
        gradient = _finite(log_p).add_(entropy[:, None]).mul_(-grad_entropy[:, None])
        if grad_logprobs is not None:
            gradient.sub_(grad_logprobs[:, None])
        gradient.mul_(p)
    if grad_logprobs is not None:
        gradient.scatter_add_(1, target_ids[:, None], grad_logprobs[:, None])
    return gradient


def _finite(log_values: torch.Tensor) -> torch.Tensor:
    return log_values.clamp_(min=_LOWEST_LOG)


class _Gradients:
    """Sums chunk gradients: hidden rows in place, weight and bias in float32 over all chunks."""

    def __init__(
        self,
        hidden: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> None:
        self.hidden = None if hidden is None else torch.zeros_like(hidden)
        self.weight = None if weight is None else torch.zeros_like(weight, dtype=torch.float32)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)

    def add(
        self,
        rows: torch.Tensor,
        logit_gradient: torch.Tensor,
        hidden: torch.Tensor,
        weight: torch.Tensor,
    ) -> None:
        if self.bias is not None:
            self.bias += logit_gradient.sum(0)
        gradient = logit_gradient.to(weight.dtype)
        if self.hidden is not None:
            self.hidden.index_copy_(0, rows, (gradient @ weight).to(self.hidden.dtype))
        if self.weight is None:
            return
        if weight.dtype == torch.float32:
            self.weight.addmm_(gradient.t(), hidden)
        else:
            self.weight += gradient.t() @ hidden


class _ScoreTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, target_ids, temperature, chunk_tokens, with_entropy):  # noqa: ANN001, ANN205
        n_tokens, vocabulary = hidden.shape[0], weight.shape[0]
        rows = min(chunk_tokens, n_tokens)
        logprobs, log_partition = hidden.new_empty(2, n_tokens, dtype=torch.float32)
        entropy = torch.empty_like(logprobs) if with_entropy else None
        spare = logprobs.new_empty(rows, vocabulary) if with_entropy else None
        with torch.autocast(hidden.device.type, enabled=False):
            chunk_logits = _ChunkLogits(weight, bias, temperature, rows)
            for start in range(0, n_tokens, chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                logits = chunk_logits(hidden[chunk].to(weight.dtype))
                scores = _score_chunk(
                    logits, target_ids[chunk], spare[: len(logits)] if with_entropy else None
                )
                logprobs[chunk], log_partition[chunk] = scores[:2]
                if with_entropy:
                    entropy[chunk] = scores[2]
        ctx.save_for_backward(hidden, weight, bias, target_ids, log_partition, entropy)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        # An output that nobody differentiates then arrives as None, and its half is skipped.
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_logprobs, grad_entropy):  # noqa: ANN001, ANN205
        hidden, weight, bias, target_ids, log_partition, entropy = ctx.saved_tensors
        inputs = zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True)
        gradients = _Gradients(*[tensor if wanted else None for tensor, wanted in inputs])
        # Finding the tokens that train makes a GPU wait once; each token skipped saves 6HV FLOPs.
        active = torch.zeros_like(target_ids, dtype=torch.bool)
        for grad in (grad_logprobs, grad_entropy):
            active = active if grad is None else active | (grad != 0)
        with torch.autocast(hidden.device.type, enabled=False):
            all_rows = active.nonzero().squeeze(1)
            n_rows = min(ctx.chunk_tokens, len(all_rows))
            chunk_logits = _ChunkLogits(weight, bias, ctx.temperature, n_rows)
            for rows in all_rows.split(ctx.chunk_tokens):
                chunk_hidden = hidden[rows].to(weight.dtype)
                gradient = _logit_gradient(
                    chunk_logits(chunk_hidden),
                    log_partition[rows],
                    target_ids[rows],
                    None if grad_logprobs is None else grad_logprobs[rows],
                    None if grad_entropy is None else grad_entropy[rows],
                    None if entropy is None else entropy[rows],
                )
                if ctx.temperature != 1.0:
                    gradient.div_(ctx.temperature)
                gradients.add(rows, gradient, chunk_hidden, weight)
        grad_weight = None if gradients.weight is None else gradients.weight.to(weight.dtype)
        grad_bias = None if gradients.bias is None else gradients.bias.to(bias.dtype)
        return gradients.hidden, grad_weight, grad_bias, None, None, None, None
