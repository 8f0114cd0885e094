"""One position over five tokens, its exact expected gradients, and the divergences to compare with.

p is the student, t the teacher, S the candidate set; m and M are their masses on S, q and qT their
shares within it (p / m, t / M). Every gradient is that of the LOSS with respect to the student's
logits: a step goes against it. The set is held fixed, as it is in a step.
"""

import torch

from opdvr.core import (
    STRATEGIES,
    Clip,
    MethodSpec,
    candidate_ids,
    top_k_loss,
    top_k_rewards,
    valid_with_tail,
    with_tail,
)

CLIP = Clip(low=0.2, high=0.2, dual=3.0)
# The example of docs/top-k.md.
STUDENT = torch.tensor([0.40, 0.30, 0.15, 0.10, 0.05], dtype=torch.float64)
TEACHER = torch.tensor([0.30, 0.10, 0.20, 0.35, 0.05], dtype=torch.float64)
K = 2


def draws():
    """The example and some random pairs, as logits (student's, teacher's)."""
    generator = torch.Generator().manual_seed(0)
    pairs = [(STUDENT.log(), TEACHER.log())]
    pairs += [tuple(torch.randn(2, 5, generator=generator, dtype=torch.float64)) for _ in range(8)]
    return pairs


def cases(strategy):
    """(student, teacher, ids [C] with -1 in empty slots) of the draws that have a candidate."""
    found = [(*pair, candidates(*pair, strategy)) for pair in draws()]
    found = [case for case in found if (case[2] != -1).any()]
    assert len(found) >= 4
    return found


def candidates(student, teacher, strategy):
    """[C] ids from the top two of each."""
    return candidate_ids(strategy, student.topk(K).indices, teacher.topk(K).indices)


def surrogate_gradient(student, teacher, ids, weighting, *, raw=False, tail=False, gate="none"):
    """[V] gradient of the core's top-k loss at one position of a correct response, ratio 1.

    raw: unnormalised weights, those of union-intersection.
    """
    logits = student.detach().clone().requires_grad_()
    valid = (ids != -1)[None, None]
    new, fixed = (
        x.log_softmax(-1)[ids.clamp(min=0)][None, None].masked_fill(~valid, torch.nan)
        for x in (logits, teacher)
    )
    if tail:
        new, fixed = with_tail(new, valid), with_tail(fixed, valid)
        valid = valid_with_tail(valid, new)
    spec = MethodSpec(
        gate=gate,
        log_prob_top_k=K,
        top_k_strategy="union-intersection" if raw else "union",
        reward_weight_mode=weighting,
        tail_bucket=tail,
    )
    rewards = top_k_rewards(spec, valid, fixed, new, torch.tensor([True])).reward
    loss = top_k_loss(new, new, rewards, valid, CLIP).loss.sum()
    return torch.autograd.grad(loss, logits)[0]


def gradient_of(divergence, student, teacher, ids):
    """[V] gradient of divergence(p, t, members) by autograd."""
    logits = student.detach().clone().requires_grad_()
    value = divergence(logits.softmax(-1), teacher.softmax(-1), ids[ids != -1])
    return torch.autograd.grad(value, logits)[0]


def is_raw(strategy):
    return not STRATEGIES[strategy].normalised


def kl(p, t):
    return (p * (p / t).log()).sum()


def with_rest(p, members):
    """[|S| + 1] probabilities of the set's tokens and of all others together."""
    return torch.cat((p[members], 1 - p[members].sum(0, keepdim=True)))


def reverse_kl(p, t, members):
    return kl(p, t)


def forward_kl(p, t, members):
    return kl(t, p)


def renormalised_kl(p, t, members):
    """KL(q || qT): of the shares within the set."""
    return kl(p[members] / p[members].sum(), t[members] / t[members].sum())


def forward_renormalised_kl(p, t, members):
    return kl(t[members] / t[members].sum(), p[members] / p[members].sum())


def coarse_kl(p, t, members):
    """Reverse KL of the set's tokens and one bucket for all others."""
    return kl(with_rest(p, members), with_rest(t, members))


def unnormalised_kl(p, t, members):
    """sum over the set of p ln(p / t), which is no divergence: it can be negative."""
    return kl(p[members], t[members])


def generalised_kl(p, t, members):
    """sum over the set of p ln(p / t) - p + t: at least 0, and 0 only where p = t on the set."""
    return (p * (p / t).log() - p + t)[members].sum()
