"""What each candidate set and weighting optimises: its expected gradient, by exact enumeration.

From a weight w and a reward r = ln(t / p), both constants, the gradient of the loss is
G = -sum_k w_k r_k grad ln p_k. On paper (p, t, S, m, M, q, qT as in topk_setup):

- weights w that do not depend on the student: G = grad (1/2) sum_k w_k ln(t_k / p_k)^2.
- w = p: grad sum_S (p ln(p/t) - p + t) = sum_S ln(p/t) grad p = -sum_S p r grad ln p = G, so G is
  the gradient of that generalised KL; normalised weights p / m give G / m.
- All tokens, or the set and a tail: the terms -p + t add up to 0, and the generalised KL is the KL.
"""

import pytest
import torch
from topk_setup import (
    STUDENT,
    TEACHER,
    candidates,
    cases,
    coarse_kl,
    draws,
    forward_kl,
    forward_renormalised_kl,
    generalised_kl,
    gradient_of,
    is_raw,
    kl,
    renormalised_kl,
    reverse_kl,
    surrogate_gradient,
    unnormalised_kl,
    with_rest,
)

from opdvr.core import STRATEGIES, WEIGHTINGS, MethodSpec, token_rewards

EVERYTHING = torch.arange(5)
NAMES = sorted(STRATEGIES)


def assert_same(gradient, expected):
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def relative_difference(gradient, other):
    return ((gradient - other).norm() / gradient.norm()).item()


def sampled_gradient(student, teacher, reward_of):
    """sum over tokens o of p(o) times the gradient of -reward(o) ln p(o)."""
    logits = student.detach().clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    loss = -(logprobs.exp() * reward_of(logprobs)).detach() @ logprobs
    return torch.autograd.grad(loss, logits)[0]


def test_sampled_token_opd_is_reverse_kl_in_expectation():
    for student, teacher in draws():
        gradient = sampled_gradient(student, teacher, lambda s, t=teacher: t.log_softmax(-1) - s)
        assert_same(gradient, gradient_of(reverse_kl, student, teacher, EVERYTHING))
        # Token by token, through the core: a set of the sampled token alone, which weighs 1.
        parts = [surrogate_gradient(student, teacher, o[None], "none") for o in EVERYTHING]
        assert_same(student.softmax(-1) @ torch.stack(parts), gradient)
        # And the reward of sampled-token OPD, in its float32.
        scores = (x.log_softmax(-1)[None] for x in (teacher, student))
        verdict = torch.tensor([True])
        reward = token_rewards(MethodSpec(gate="none"), *scores, torch.ones(1, 5), verdict).reward
        single = sampled_gradient(student, teacher, lambda s, r=reward: r[0].double())
        torch.testing.assert_close(single, gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", NAMES)
def test_student_p_is_generalised_kl_on_the_set(strategy):
    for student, teacher, ids in cases(strategy):
        gradient = surrogate_gradient(student, teacher, ids, "student_p", raw=is_raw(strategy))
        mass = 1.0 if is_raw(strategy) else student.softmax(-1)[ids[ids != -1]].sum()
        assert_same(gradient * mass, gradient_of(generalised_kl, student, teacher, ids))


@pytest.mark.parametrize("strategy", NAMES)
def test_student_p_is_kl_of_the_shares_and_a_mass_term(strategy):
    # grad ln p_k = grad ln q_k + grad ln m and r_k = ln(qT_k / q_k) + ln(M / m), so normalised
    # G = grad KL(q || qT) + (KL(q || qT) + ln(m / M)) grad ln m, and raw m times that.
    for student, teacher, ids in cases(strategy):
        members = ids[ids != -1]
        p, t = student.softmax(-1), teacher.softmax(-1)
        m, big_m = p[members].sum(), t[members].sum()
        push = renormalised_kl(p, t, members) + (m / big_m).log()
        of_mass = gradient_of(lambda p, t, s: p[s].sum().log(), student, teacher, ids)
        expected = gradient_of(renormalised_kl, student, teacher, ids) + push * of_mass
        gradient = surrogate_gradient(student, teacher, ids, "student_p", raw=is_raw(strategy))
        assert_same(gradient, expected * (m if is_raw(strategy) else 1.0))


@pytest.mark.parametrize("strategy", NAMES)
def test_student_p_with_a_tail_is_the_coarse_reverse_kl(strategy):
    for student, teacher, ids in cases(strategy):
        gradient = surrogate_gradient(
            student, teacher, ids, "student_p", raw=is_raw(strategy), tail=True
        )
        assert_same(gradient, gradient_of(coarse_kl, student, teacher, ids))


def test_the_coarse_kl_is_a_lower_bound_of_the_full_one():
    for strategy in NAMES:
        for student, teacher, ids in cases(strategy):
            p, t = student.softmax(-1), teacher.softmax(-1)
            coarse = coarse_kl(p, t, ids[ids != -1])
            # What is left out: KL of the shares outside the set, times the student's mass there.
            outside = torch.ones(5, dtype=torch.bool).index_fill(0, ids[ids != -1], False)
            left_out = p[outside].sum() * renormalised_kl(p, t, outside)
            assert left_out >= -1e-12 and coarse >= -1e-12
            torch.testing.assert_close(coarse + left_out, kl(p, t))


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("tail", [False, True])
def test_all_tokens_and_student_p_are_reverse_kl(raw, tail):
    for student, teacher in draws():
        gradient = surrogate_gradient(student, teacher, EVERYTHING, "student_p", raw=raw, tail=tail)
        assert_same(gradient, gradient_of(reverse_kl, student, teacher, EVERYTHING))


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("weighting", ["teacher_p", "none"])
@pytest.mark.parametrize("strategy", NAMES)
def test_teacher_p_and_none_are_squared_log_ratios(strategy, weighting, tail):
    def squared(p, t, members):
        p, t = (with_rest(x, members) if tail else x[members] for x in (p, t))
        weights = t if weighting == "teacher_p" else torch.ones_like(t)
        if not is_raw(strategy):
            weights = weights / weights.sum()
        return 0.5 * (weights * (t / p).log().square()).sum()

    for student, teacher, ids in cases(strategy):
        gradient = surrogate_gradient(
            student, teacher, ids, weighting, raw=is_raw(strategy), tail=tail
        )
        assert_same(gradient, gradient_of(squared, student, teacher, ids))


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("weighting", sorted(WEIGHTINGS))
@pytest.mark.parametrize(
    ("strategy", "teacher"),
    [
        # No common token among the top two; the same top two.
        ("intersection", [0.05, 0.10, 0.15, 0.30, 0.40]),
        ("union-intersection", [0.30, 0.40, 0.05, 0.10, 0.15]),
    ],
)
def test_an_empty_set_teaches_nothing(strategy, teacher, weighting, tail):
    teacher = torch.tensor(teacher, dtype=torch.float64).log()
    ids = candidates(STUDENT.log(), teacher, strategy)
    assert (ids == -1).all()
    raw = is_raw(strategy)
    gradient = surrogate_gradient(STUDENT.log(), teacher, ids, weighting, raw=raw, tail=tail)
    assert torch.equal(gradient, torch.zeros(5, dtype=torch.float64))


# What one might take each for. Left out: student_p with a tail IS the coarse-grained KL.
MISTAKEN = [
    (weighting, tail, divergence)
    for weighting in sorted(WEIGHTINGS)
    for tail in (False, True)
    for divergence in (
        reverse_kl,
        forward_kl,
        renormalised_kl,
        forward_renormalised_kl,
        coarse_kl,
        unnormalised_kl,
    )
    if (weighting, tail, divergence) != ("student_p", True, coarse_kl)
]


@pytest.mark.parametrize(("weighting", "tail", "divergence"), MISTAKEN)
@pytest.mark.parametrize("strategy", NAMES)
def test_what_they_are_not(strategy, weighting, tail, divergence):
    # On the example every gradient is at least 3% off; that is the closest of them, only_tch and
    # student_p beside KL(q || qT), whose mass term happens to be small there.
    ids = candidates(STUDENT.log(), TEACHER.log(), strategy)
    gradient = surrogate_gradient(
        STUDENT.log(), TEACHER.log(), ids, weighting, raw=is_raw(strategy), tail=tail
    )
    other = gradient_of(divergence, STUDENT.log(), TEACHER.log(), ids)
    assert relative_difference(gradient, other) > 0.03


@pytest.mark.parametrize(
    ("tail", "divergence", "difference"),
    [(False, reverse_kl, 0.428), (True, reverse_kl, 0.287), (False, renormalised_kl, 0.569)],
)
def test_how_far_off_the_documented_example_is(tail, divergence, difference):
    ids = candidates(STUDENT.log(), TEACHER.log(), "only_stu")
    gradient = surrogate_gradient(STUDENT.log(), TEACHER.log(), ids, "student_p", tail=tail)
    other = gradient_of(divergence, STUDENT.log(), TEACHER.log(), ids)
    assert relative_difference(gradient, other) == pytest.approx(difference, abs=1e-3)


@pytest.mark.parametrize("weighting", ["teacher_p", "none"])
def test_teacher_p_on_all_tokens_is_not_forward_kl(weighting):
    # Forward KL's gradient is p - t. 39% apart in the example, 12% for uniform weights.
    gradient = surrogate_gradient(STUDENT.log(), TEACHER.log(), EVERYTHING, weighting)
    forward = gradient_of(forward_kl, STUDENT.log(), TEACHER.log(), EVERYTHING)
    assert_same(forward, STUDENT - TEACHER)
    expected = {"teacher_p": 0.390, "none": 0.121}[weighting]
    assert relative_difference(gradient, forward) == pytest.approx(expected, abs=1e-3)


def test_teacher_p_nears_forward_kl_only_as_the_student_nears_the_teacher():
    # -ln(p/t) = -(p - t)/t + ((p - t)/t)^2 / 2 ...: equal to first order, so a tenth of the
    # distance leaves about a tenth of the relative difference.
    away = STUDENT.log() - TEACHER.log()
    differences = []
    for distance in (0.1, 0.01):
        student = TEACHER.log() + distance * away
        gradient = surrogate_gradient(student, TEACHER.log(), EVERYTHING, "teacher_p")
        forward = gradient_of(forward_kl, student, TEACHER.log(), EVERYTHING)
        differences.append(relative_difference(gradient, forward))
    assert 0.01 < differences[0] < 0.3
    assert differences[0] / differences[1] == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("weighting", sorted(WEIGHTINGS))
@pytest.mark.parametrize("strategy", NAMES)
def test_normalised_student_p_without_a_tail_is_the_gradient_of_nothing(strategy, weighting, tail):
    # The Jacobian of a gradient is symmetric. It is, but for weights p / m on two tokens or more
    # without a tail: there m varies, and G = grad D / m is only the direction of a gradient.
    ids = candidates(STUDENT.log(), TEACHER.log(), strategy)
    step, rows = 1e-5, []
    for j in range(5):
        moved = torch.zeros(5, dtype=torch.float64).index_fill(0, torch.tensor(j), step)
        ends = (
            surrogate_gradient(
                STUDENT.log() + sign * moved,
                TEACHER.log(),
                ids,
                weighting,
                raw=is_raw(strategy),
                tail=tail,
            )
            for sign in (1, -1)
        )
        rows.append((next(ends) - next(ends)) / (2 * step))
    jacobian = torch.stack(rows)
    asymmetry = (jacobian - jacobian.T).norm() / jacobian.norm()
    several = int((ids != -1).sum()) > 1
    if weighting == "student_p" and several and not tail and not is_raw(strategy):
        assert asymmetry > 0.01
    else:
        assert asymmetry < 1e-8
