"""Every candidate set and weighting against autograd on a dense float64 model.

The reference is written from the formulas alone, in plain loops over positions and tokens:
    loss = sum over tokens of -sum_k A_k clipped(p_new(k) / p_old(k)) / number of tokens
    A_k = constant(w_k gate(ln p_teacher(k) - ln p_old(k)) scale)
where p_new has the gradient, and p_old, of the student that sampled, makes rewards, weights and the
candidate sets. A tail is one more k, with all the probability that the other k leave.
"""

import math

import pytest
import torch

from opdvr.core import (
    STRATEGIES,
    WEIGHTINGS,
    Clip,
    MethodSpec,
    candidate_ids,
    top_k_loss,
    top_k_rewards,
    valid_with_tail,
    with_tail,
)

B, T, V, K = 3, 4, 7, 3
CLIP = Clip(low=0.2, high=0.3, dual=2.0)
LENGTHS = (4, 2, 3)
CORRECT = torch.tensor([True, False, True])
SCALE = torch.tensor([0.75, 0.25, 1.5])


class Case:
    """Logits of a student now, of the student that sampled, and of a teacher, [B,T,V] float64."""

    def __init__(self, moved):
        generator = torch.Generator().manual_seed(7)

        def draw():
            return torch.randn(B, T, V, generator=generator, dtype=torch.float64)

        self.student, self.teacher = draw(), draw()
        # moved = 0: the student that sampled is the student now, and every ratio is 1.
        self.old = self.student + moved * draw()
        # One position whose best are the student's worst, one where both have the same best.
        self.teacher[0, 0] = -self.old[0, 0]
        self.teacher[0, 1] = 2 * self.old[0, 1]
        self.student.requires_grad_()
        self.mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]


def reference(case, strategy, weighting, tail, gate, scale):
    """(loss, gradient with respect to the student's logits, ratios beyond the clip)."""
    total, n_clipped = torch.zeros((), dtype=torch.float64), 0
    for b in range(B):
        for t in range(LENGTHS[b]):
            new = case.student[b, t].softmax(-1)
            old, teacher = (x[b, t].softmax(-1).tolist() for x in (case.old, case.teacher))
            chosen = reference_set(strategy, old, teacher)
            masses = [(new[k], old[k], teacher[k]) for k in chosen]
            if tail and chosen:
                rest = [k for k in range(V) if k not in chosen]
                masses.append(tuple(sum(p[k] for k in rest) for p in (new, old, teacher)))
            weights = reference_weights(strategy, weighting, masses)
            for weight, (p_new, p_old, p_teacher) in zip(weights, masses, strict=True):
                reward = math.log(p_teacher / p_old)
                if gate == "default" and (reward > 0) != bool(CORRECT[b]):
                    reward = 0.0
                advantage = weight * reward * (1.0 if scale is None else scale[b].item())
                term, was_clipped = reference_term(p_new / p_old, advantage)
                total, n_clipped = total + term, n_clipped + was_clipped
    loss = total / sum(LENGTHS)
    return loss, torch.autograd.grad(loss, case.student)[0], n_clipped


def reference_set(strategy, old, teacher):
    best = [set(sorted(range(V), key=lambda k: -p[k])[:K]) for p in (old, teacher)]
    return {
        "only_stu": best[0],
        "only_tch": best[1],
        "intersection": best[0] & best[1],
        "union": best[0] | best[1],
        "union-intersection": (best[0] | best[1]) - (best[0] & best[1]),
    }[strategy]


def reference_weights(strategy, weighting, masses):
    raw = [
        {"student_p": p_old, "teacher_p": p_teacher, "none": 1.0}[weighting]
        for _, p_old, p_teacher in masses
    ]
    return raw if strategy == "union-intersection" else [x / sum(raw) for x in raw]


def reference_term(ratio, advantage):
    """(-A ratio after PPO's clip and the dual clip, whether that took the gradient away)."""
    if advantage > 0 and ratio > 1 + CLIP.high:
        return -advantage * (1 + CLIP.high), True
    if advantage < 0 and ratio < 1 - CLIP.low:
        return -advantage * (1 - CLIP.low), True
    if advantage < 0 and ratio > CLIP.dual:
        return -advantage * CLIP.dual, True
    return -advantage * ratio, False


def ours(case, strategy, weighting, tail, gate, scale):
    """The same from opdvr.core: (loss, gradient, slots that a clip set)."""
    spec = MethodSpec(
        gate=gate,
        log_prob_top_k=K,
        top_k_strategy=strategy,
        reward_weight_mode=weighting,
        tail_bucket=tail,
        grpo_scaled=scale is not None,
    )
    tops = (x.topk(K).indices for x in (case.old, case.teacher))
    ids = candidate_ids(strategy, *tops).masked_fill(~case.mask[..., None], -1)
    valid = ids != -1
    student, old, teacher = (
        x.log_softmax(-1).gather(-1, ids.clamp(min=0)).masked_fill(~valid, torch.nan)
        for x in (case.student, case.old, case.teacher)
    )
    if tail:
        student, old, teacher = (with_tail(x, valid) for x in (student, old, teacher))
        valid = valid_with_tail(valid, old)
    rewards = top_k_rewards(spec, valid, teacher, old, CORRECT, scale).reward
    result = top_k_loss(student, old, rewards, valid, CLIP)
    assert not result.loss[~case.mask].any()
    loss = result.loss.sum() / case.mask.sum()
    return loss, torch.autograd.grad(loss, case.student)[0], int(result.clipped.sum())


@pytest.mark.parametrize(("gate", "scale"), [("none", None), ("default", SCALE)])
@pytest.mark.parametrize("moved", [0.0, 0.8], ids=["one-mini-batch", "several"])
@pytest.mark.parametrize("tail", [False, True], ids=["", "tail"])
@pytest.mark.parametrize("weighting", sorted(WEIGHTINGS))
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_loss_and_gradient_are_those_of_the_dense_model(
    strategy, weighting, tail, moved, gate, scale
):
    case = Case(moved)
    expected, expected_gradient, expected_clips = reference(
        case, strategy, weighting, tail, gate, scale
    )
    loss, gradient, clips = ours(case, strategy, weighting, tail, gate, scale)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-12)
    assert clips == expected_clips
    # The comparison is of something: a gradient, and clips from the second mini-batch on.
    assert gradient.abs().max() > 1e-3 and not gradient[~case.mask].any()
    assert clips == 0 if moved == 0 else clips > 0


def test_the_case_has_empty_and_equal_sets():
    case = Case(0.0)
    places = [(b, t) for b in range(B) for t in range(LENGTHS[b])]
    sizes = {"intersection": set(), "union-intersection": set()}
    for b, t in places:
        old, teacher = (x[b, t].softmax(-1).tolist() for x in (case.old, case.teacher))
        for strategy, seen in sizes.items():
            seen.add(len(reference_set(strategy, old, teacher)))
    assert sizes["intersection"] >= {0, 1, K} and sizes["union-intersection"] >= {0, 2, 2 * K}
