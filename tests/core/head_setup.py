"""A small output layer and its dense float64 reference, for the tests of the tiled head."""

from dataclasses import dataclass

import torch

from opdvr.core.output_layer import OutputLayer

N, H, V, K = 23, 6, 31, 4


@dataclass
class Problem:
    """Leaves hidden [N,H], weight [V,H], bias [V] or None, and ids [N,K]."""

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    ids: torch.Tensor

    def copy(self, dtype=None):
        tensors = (self.hidden, self.weight, self.bias)
        copies = [
            None if t is None else t.detach().to(dtype or t.dtype, copy=True).requires_grad_()
            for t in tensors
        ]
        return Problem(*copies, self.ids)

    def leaves(self):
        return [t for t in (self.hidden, self.weight, self.bias) if t is not None]

    def layer(self, **options):
        return OutputLayer(self.weight, self.bias, **options)

    def dense(self, vocabulary=None, temperature=1.0, logit_scale=1.0, soft_cap=None):
        """Tempered logits [N,V'] by autograd."""
        logits = self.hidden @ self.weight.t()
        if self.bias is not None:
            logits = logits + self.bias
        logits = logits * logit_scale
        if soft_cap is not None:
            logits = soft_cap * torch.tanh(logits / soft_cap)
        return logits[:, :vocabulary] / temperature


def problem(bias=True, dtype=torch.float32, seed=0, vocabulary=V):
    """Ids with repeats, and with -1 at some places."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, H, generator=generator).to(dtype)
    weight = torch.randn(V, H, generator=generator).to(dtype)
    bias = torch.randn(V, generator=generator).to(dtype) if bias else None
    ids = torch.randint(0, vocabulary, (N, K), generator=generator)
    ids[:, 2] = ids[:, 0]
    ids[torch.rand(N, K, generator=generator) < 0.2] = -1
    return Problem(hidden, weight, bias, ids).copy()


def dense_scores(logits, ids):
    """(log-probs [N,K], logsumexp [N], entropy [N]) of tempered logits, by autograd."""
    log_p = logits.log_softmax(-1)
    logprobs = torch.where(ids < 0, 0.0, log_p.gather(1, ids.clamp(min=0)))
    return logprobs, logits.logsumexp(-1), -(log_p.exp() * log_p).sum(-1)


def weighted(scores, weights):
    """One number of several outputs, so that every element has its own gradient."""
    return sum((score * weight).sum() for score, weight in zip(scores, weights, strict=True))


def assert_gradients(mine, reference, rtol=1e-4, atol=2e-5):
    for one, other in zip(mine, reference, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad.double(), rtol=rtol, atol=atol)
