"""The spec refuses what the method does not define, and says which option to change."""

import dataclasses

import pytest

from opdvr.core import ESTIMATORS, MethodSpec


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
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.gate = "none"


def test_every_estimator_and_a_negative_threshold_are_accepted():
    for estimator in ESTIMATORS:
        MethodSpec(estimator=estimator, correctness_threshold=-1, grpo_scale_baseline=1)
    assert MethodSpec(estimator="grpo", distill=False).distill is False
