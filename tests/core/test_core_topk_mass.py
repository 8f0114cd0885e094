"""Which way a candidate set's probability mass is pushed, and two published ways to get it wrong.

Notation as in topk_setup. With the shares q held fixed, every ln p_k of the set moves with ln m, so
the derivative of the loss with respect to ln m is -sum_k w_k r_k: positive pushes the mass down.
"""

import math

import pytest
import torch
from topk_setup import (
    STUDENT,
    TEACHER,
    candidates,
    cases,
    draws,
    generalised_kl,
    gradient_of,
    is_raw,
    kl,
    reverse_kl,
    surrogate_gradient,
    unnormalised_kl,
)

from opdvr.core import STRATEGIES, WEIGHTINGS, MethodSpec, top_k_rewards

NAMES = sorted(STRATEGIES)
SET = torch.tensor([0, 1])


def push_on_mass(p, t, members, weighting, gate="none", is_correct=True):
    """-sum_k w_k r_k of normalised weights: the loss's derivative with respect to ln m."""
    spec = MethodSpec(gate=gate, log_prob_top_k=2, reward_weight_mode=weighting)
    teacher, student = (x[members].log()[None, None] for x in (t, p))
    valid = torch.ones_like(student, dtype=torch.bool)
    correct = torch.tensor([is_correct])
    return -top_k_rewards(spec, valid, teacher, student, correct).reward.sum().item()


def mass_after_a_step(gradient, student, members, size=1e-3):
    return (student - size * gradient).softmax(-1)[members].sum().item()


def test_pushes_of_the_example_by_hand():
    # Set (0, 1): m 0.7, M 0.4; ln(m/M) = 0.559616. q = (4/7, 3/7), qT = (3/4, 1/4).
    # KL(q||qT) = 4/7 ln(16/21) + 3/7 ln(12/7) = -0.155391 + 0.230999 = 0.075608.
    # KL(qT||q) = 3/4 ln(21/16) + 1/4 ln(7/12) = 0.203950 - 0.134749 = 0.069201.
    # Mean of ln(q/qT): (-0.271934 + 0.538997) / 2 = 0.133531.
    pushes = {weighting: push_on_mass(STUDENT, TEACHER, SET, weighting) for weighting in WEIGHTINGS}
    assert pushes["student_p"] == pytest.approx(0.559616 + 0.075608, abs=2e-6)
    assert pushes["teacher_p"] == pytest.approx(0.559616 - 0.069201, abs=2e-6)
    assert pushes["none"] == pytest.approx(0.559616 + 0.133531, abs=2e-6)


@pytest.mark.parametrize("strategy", NAMES)
def test_student_p_pushes_down_and_teacher_p_up_beyond_what_the_masses_say(strategy):
    for student, teacher, ids in cases(strategy):
        members = ids[ids != -1]
        p, t = student.softmax(-1), teacher.softmax(-1)
        m, big_m = p[members].sum(), t[members].sum()
        q, q_teacher = p[members] / m, t[members] / big_m
        gap = (m / big_m).log().item()
        by_student = push_on_mass(p, t, members, "student_p") - gap
        by_teacher = push_on_mass(p, t, members, "teacher_p") - gap
        assert by_student == pytest.approx(kl(q, q_teacher).item(), abs=1e-12)
        assert by_teacher == pytest.approx(-kl(q_teacher, q).item(), abs=1e-12)
        if len(members) > 1:
            assert by_student > 0 > by_teacher


@pytest.mark.parametrize("weighting", sorted(WEIGHTINGS))
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("teachers_mass", [0.5, 0.9])
def test_equal_shares_move_the_mass_towards_the_teachers(weighting, raw, teachers_mass):
    # Shares (4/7, 3/7) for both, masses 0.7 and 0.5 or 0.9: only the mass is left to learn.
    teacher = torch.cat(
        (STUDENT[:2] / 0.7 * teachers_mass, STUDENT[2:] / 0.3 * (1 - teachers_mass))
    )
    gradient = surrogate_gradient(STUDENT.log(), teacher.log(), SET, weighting, raw=raw)
    moved = mass_after_a_step(gradient, STUDENT.log(), SET) - 0.7
    assert moved * (teachers_mass - 0.7) > 0 and abs(moved) > 1e-6


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("weighting", sorted(WEIGHTINGS))
@pytest.mark.parametrize("strategy", NAMES)
def test_agreement_on_the_set_is_where_every_gradient_ends(strategy, weighting, tail):
    # p = t on the set: no gradient, whatever the other tokens do. Anywhere else there is one.
    for student, teacher, ids in cases(strategy):
        p, t = student.softmax(-1), teacher.softmax(-1)
        members = ids[ids != -1]
        others = torch.ones(5, dtype=torch.bool).index_fill(0, members, False)
        agreed = p / p[others].sum() * t[others].sum()
        agreed[members] = t[members]
        options = {"raw": is_raw(strategy), "tail": tail}
        gradient = surrogate_gradient(agreed.log(), teacher, ids, weighting, **options)
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)
        elsewhere = surrogate_gradient(student, teacher, ids, weighting, **options)
        assert elsewhere.norm() > 1e-3


@pytest.mark.parametrize("weighting", sorted(WEIGHTINGS))
def test_the_gate_decides_the_direction_of_the_mass(weighting):
    # Correct: no reward below 0, so the mass is never pushed down; incorrect: never up. That holds
    # whatever the masses say: in the example the ungated push is down.
    union = torch.tensor([0, 1, 3])
    assert push_on_mass(STUDENT, TEACHER, union, "student_p") > 0
    assert push_on_mass(STUDENT, TEACHER, union, weighting, "default", True) < 0
    assert push_on_mass(STUDENT, TEACHER, union, weighting, "default", False) > 0


def test_gated_candidates_are_no_divergence_even_on_all_tokens():
    # The gate drops the candidates that disagree with the verdict, here 0 and 1.
    gradient = surrogate_gradient(
        STUDENT.log(), TEACHER.log(), torch.arange(5), "student_p", gate="default"
    )
    ungated = gradient_of(reverse_kl, STUDENT.log(), TEACHER.log(), torch.arange(5))
    assert ((gradient - ungated).norm() / ungated.norm()).item() > 0.3


@pytest.mark.parametrize("strategy", NAMES)
def test_a_set_kl_as_a_reward_of_the_sampled_token_has_no_gradient(strategy):
    # sum_o p(o) c grad ln p(o) = c grad sum_o p(o) = 0 for a c that is the same for every token:
    # a divergence of the set, taken off the sampled token's advantage, is a baseline.
    for student, teacher, ids in cases(strategy):
        logits = student.clone().requires_grad_()
        logprobs = logits.log_softmax(-1)
        p, t = logprobs.detach().exp(), teacher.softmax(-1)
        penalty = generalised_kl(p, t, ids[ids != -1])
        assert penalty > 1e-4
        alone = (p * penalty) @ logprobs
        gradient = torch.autograd.grad(alone, logits, retain_graph=True)[0]
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)
        # So beside sampled-token OPD it changes nothing: reverse KL, as without it.
        reward = t.log() - p.log() - penalty
        gradient = torch.autograd.grad(-(p * reward) @ logprobs, logits)[0]
        expected = gradient_of(reverse_kl, student, teacher, ids)
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("strategy", NAMES)
def test_a_differentiated_set_kl_pushes_the_set_out(strategy):
    # U = sum_S p ln(p/t) = m KL(q||qT) + m ln(m/M). Its gradient is that of the generalised KL plus
    # grad m, which takes mass out of the set in every step.
    for student, teacher, ids in cases(strategy):
        of_mass = gradient_of(lambda p, t, s: p[s].sum(), student, teacher, ids)
        ours = surrogate_gradient(student, teacher, ids, "student_p", raw=True)
        differentiated = gradient_of(unnormalised_kl, student, teacher, ids)
        torch.testing.assert_close(differentiated, ours + of_mass, rtol=1e-10, atol=1e-12)
        members = ids[ids != -1]
        assert mass_after_a_step(differentiated, student, members) < mass_after_a_step(
            ours, student, members
        )


def test_a_differentiated_set_kl_leaves_the_teacher_and_ends_at_its_mass_over_e():
    # dU/dm = KL(q||qT) + ln(m/M) + 1 at fixed shares: down while m > M exp(-1 - KL). From p = t,
    # where U = 0, to the minimum q = qT, m = M/e, where U = -M/e: M = 0.4 goes to 0.147152.
    student = TEACHER.log()
    at_teacher = gradient_of(unnormalised_kl, student, TEACHER.log(), SET)
    assert at_teacher.norm() > 0.1 and mass_after_a_step(at_teacher, student, SET) < 0.4
    for _ in range(600):
        student = student - 3.0 * gradient_of(unnormalised_kl, student, TEACHER.log(), SET)
    p = student.softmax(-1)
    assert p[SET].sum().item() == pytest.approx(0.4 / math.e, rel=1e-6)
    assert unnormalised_kl(p, TEACHER, SET).item() == pytest.approx(-0.4 / math.e, rel=1e-6)
    # Below that it would push the mass up, and on all tokens it is the reverse KL: grad 1 is 0.
    sunk = torch.cat((TEACHER[:2] / 4, TEACHER[2:] * 1.5)).log()
    gradient = gradient_of(unnormalised_kl, sunk, TEACHER.log(), SET)
    assert mass_after_a_step(gradient, sunk, SET) > sunk.softmax(-1)[SET].sum().item()
    for pair in draws():
        whole = gradient_of(unnormalised_kl, *pair, torch.arange(5))
        torch.testing.assert_close(whole, gradient_of(reverse_kl, *pair, SET))


def test_ours_comes_back_to_the_teacher_from_where_the_other_ends():
    student = torch.cat((TEACHER[:2] / math.e, TEACHER[2:] / 0.6 * (1 - 0.4 / math.e))).log()
    for _ in range(300):
        student = student - 3.0 * surrogate_gradient(student, TEACHER.log(), SET, "student_p")
    torch.testing.assert_close(student.softmax(-1)[SET], TEACHER[SET], rtol=1e-6, atol=0)


def test_the_example_is_the_one_of_the_sets():
    assert candidates(STUDENT.log(), TEACHER.log(), "only_stu").tolist() == SET.tolist()
