"""The spec refuses what the method does not define, and says which option to change."""

import dataclasses

import pytest

from opdvr.core import ESTIMATORS, GATES, STRATEGIES, WEIGHTINGS, MethodSpec


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gate": "strict"}, "correctness_gated_mode='strict'.*none, default, inverse"),
        ({"estimator": "gae"}, "algorithm.adv_estimator='gae'.*token_reward_direct, .*grpo"),
        ({"grpo_scale_baseline": -0.1}, "grpo_scale_baseline=-0.1.*at least 0"),
        ({"grpo_scale_baseline": float("nan")}, "grpo_scale_baseline"),
        ({"grpo_outcome_weight": -1.0}, "grpo_outcome_weight=-1.0.*at least 0"),
        ({"correctness_threshold": float("inf")}, "correctness_threshold=inf.*finite"),
        ({"correctness_threshold": "0.5"}, "correctness_threshold='0.5'.*number"),
        ({"grpo_scale_baseline": True}, "grpo_scale_baseline=True.*number"),
        ({"grpo_scaled": "False"}, "grpo_scaled='False' must be True or False"),
        ({"grpo_norm_by_std": 1}, "grpo_norm_by_std=1 must be True or False"),
        ({"distill": False}, "token_reward_direct needs a teacher.*adv_estimator=grpo"),
        ({"distill": False, "estimator": "grpo", "grpo_scaled": True}, "grpo_scaled=True"),
        ({"gate_temperature": 0.0}, "gate_temperature=0.*at least 1e-06"),
        ({"gate_temperature": -1.0}, "gate_temperature=-1.0.*at least 1e-06"),
        ({"gate_temperature": float("inf")}, "gate_temperature=inf.*finite"),
        ({"gate_margin": float("nan")}, "gate_margin=nan.*finite"),
        ({"gate_margin": "0.1"}, "gate_margin='0.1'.*number"),
        ({"gate_floor": -0.1}, "gate_floor=-0.1.*at least 0"),
        ({"gate_floor": 1.5}, "gate_floor=1.5 must be at most 1"),
        ({"log_prob_top_k": -1}, "log_prob_top_k=-1.*whole number"),
        ({"log_prob_top_k": 16.0}, "log_prob_top_k=16.0.*whole number"),
        ({"log_prob_top_k": True}, "log_prob_top_k=True.*whole number"),
        ({"top_k_strategy": "both"}, "top_k_strategy='both'.*only_stu, .*union-intersection"),
        ({"reward_weight_mode": "p"}, "reward_weight_mode='p'.*student_p, teacher_p, none"),
        ({"tail_bucket": "True"}, "tail_bucket='True' must be True or False"),
        ({"full_vocabulary": "kl"}, "full_vocabulary='kl'.*none, .*reverse_kl"),
        (
            {"full_vocabulary": "reverse_kl", "log_prob_top_k": 8},
            "full_vocabulary=reverse_kl and log_prob_top_k=8.*two objectives",
        ),
        ({"estimator": "token_grpo", "log_prob_top_k": 8}, "adv_estimator=token_grpo.*top_k"),
        (
            {"estimator": "token_grpo", "full_vocabulary": "forward_kl"},
            "adv_estimator=token_grpo.*full_vocabulary",
        ),
        ({"distill": False, "estimator": "grpo", "log_prob_top_k": 8}, "log_prob_top_k=8.*teacher"),
        (
            {"distill": False, "estimator": "grpo", "full_vocabulary": "jensen_shannon"},
            "full_vocabulary=jensen_shannon.*teacher",
        ),
    ],
)
def test_a_mistake_names_the_option(fields, message):
    with pytest.raises(ValueError, match=message):
        MethodSpec(**fields)


def test_defaults_are_the_published_ones():
    spec = MethodSpec()
    assert dataclasses.asdict(spec) == {
        "estimator": "token_reward_direct",
        "distill": True,
        "gate": "default",
        "correctness_threshold": 0.0,
        "grpo_scaled": False,
        "grpo_norm_by_std": False,
        "grpo_scale_baseline": 0.0,
        "grpo_outcome_weight": 1.0,
        "gate_temperature": 1.0,
        "gate_margin": 0.1,
        "gate_floor": 0.1,
        "log_prob_top_k": 0,
        "top_k_strategy": "only_stu",
        "reward_weight_mode": "student_p",
        "tail_bucket": False,
        "full_vocabulary": "none",
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.gate = "none"


def test_every_estimator_and_a_negative_threshold_are_accepted():
    for estimator in ESTIMATORS:
        MethodSpec(estimator=estimator, correctness_threshold=-1, grpo_scale_baseline=1)
    assert MethodSpec(estimator="grpo", distill=False).distill is False


def test_the_bounds_themselves_are_allowed():
    MethodSpec(gate="leaky", gate_floor=0)
    MethodSpec(gate="leaky", gate_floor=1)
    MethodSpec(gate="margin", gate_margin=-5)
    MethodSpec(gate="soft", gate_temperature=1e-6)


def test_every_candidate_set_and_weighting_is_accepted():
    assert list(STRATEGIES) == [
        "only_stu",
        "only_tch",
        "intersection",
        "union",
        "union-intersection",
    ]
    assert list(WEIGHTINGS) == ["student_p", "teacher_p", "none"]
    for strategy in STRATEGIES:
        for weighting in WEIGHTINGS:
            MethodSpec(
                log_prob_top_k=16,
                top_k_strategy=strategy,
                reward_weight_mode=weighting,
                tail_bucket=True,
            )


def test_only_the_sampled_token_needs_one_advantage_a_token():
    assert MethodSpec().samples_only
    assert not MethodSpec(log_prob_top_k=1).samples_only
    for divergence in ("reverse_kl", "forward_kl", "jensen_shannon"):
        assert not MethodSpec(full_vocabulary=divergence).samples_only


def test_gates_that_look_at_the_group_say_so():
    assert {gate: MethodSpec(gate=gate).needs_groups for gate in GATES} == {
        "none": False,
        "default": False,
        "inverse": False,
        "soft": False,
        "margin": False,
        "leaky": False,
        "mixed": True,
        "rescue": True,
    }
