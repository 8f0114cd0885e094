"""What a teacher engine cannot do is refused by name; whose devices it takes."""

import pytest

from opdvr.integration.config import compose
from opdvr.integration.teacher_settings import (
    has_own_engine,
    shares_devices,
    teacher_settings,
)

CPU = ["platform=cpu", "task=demo"]
SERVER = ["opdvr.teacher_engine=server", "opdvr.teacher_urls=http://127.0.0.1:1"]
VLLM = ["opdvr.teacher_engine=vllm"]
OWN_POOL = [
    "reward_model.enable_resource_pool=True",
    "reward_model.n_gpus_per_node=4",
    "reward_model.nnodes=1",
]

REFUSED = {
    "unknown": (["opdvr.teacher_engine=sglang"], ["TEACHER_ENGINE", "fsdp, vllm, server"]),
    "no address": (["opdvr.teacher_engine=server"], ["TEACHER_URLS", "opdvr teacher serve MODEL"]),
    "address without server": (
        ["opdvr.teacher_urls=http://a:1"],
        ["TEACHER_URLS", "TEACHER_ENGINE=server"],
    ),
    "temperature": (
        [*SERVER, "opdvr.teacher_temperature=0.7"],
        ["TEACHER_TEMPERATURE=0.7", "TEACHER_ENGINE=server", "fsdp or vllm"],
    ),
    "whole vocabulary": (
        [*VLLM, "opdvr.full_vocabulary=reverse_kl"],
        ["FULL_VOCABULARY=reverse_kl", "TEACHER_ENGINE=vllm", "TEACHER_ENGINE=fsdp"],
    ),
    "devices of fsdp": (["opdvr.teacher_devices=2"], ["TEACHER_DEVICES=2", "fsdp"]),
    "odd devices": (
        [*VLLM, "opdvr.teacher_devices=3", "opdvr.teacher_parallel_size=2"],
        ["TEACHER_DEVICES=3", "TEACHER_PARALLEL_SIZE=2"],
    ),
    "parallel on shared devices": (
        [*VLLM, "opdvr.teacher_parallel_size=2"],
        ["TEACHER_PARALLEL_SIZE=2", "TEACHER_DEVICES"],
    ),
    "no time": (["opdvr.teacher_timeout=0"], ["TEACHER_TIMEOUT"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case):
    overrides, parts = REFUSED[case]
    with pytest.raises(ValueError) as refusal:
        compose([*CPU, *overrides])
    text = str(refusal.value)
    assert "\n" not in text and all(part in text for part in parts), text


@pytest.mark.parametrize(
    "strategy", ["only_stu", "intersection", "union", "union-intersection", "only_tch"]
)
def test_ids_of_the_students_choice(strategy):
    overrides = [*CPU, "opdvr.log_prob_top_k=4", f"opdvr.top_k_strategy={strategy}"]
    compose([*overrides, *VLLM])
    if strategy == "only_tch":
        compose([*overrides, *SERVER])
        return
    with pytest.raises(ValueError, match=f"TOP_K_STRATEGY={strategy} .* use TOP_K_STRATEGY="):
        compose([*overrides, *SERVER])


def test_without_a_teacher_nothing_of_it_is_asked():
    config = compose([*CPU, "reward_model.enable=False", "algorithm.adv_estimator=grpo"])
    assert not has_own_engine(config)


def test_the_pool_of_the_reward_model_becomes_the_engines():
    config = compose(["platform=cuda", *VLLM, *OWN_POOL])
    assert config.opdvr.teacher_devices == 4
    assert not config.reward_model.enable_resource_pool  # verl would hold the devices itself
    assert has_own_engine(config) and not shares_devices(config)
    assert teacher_settings(config).memory_utilization == 0.9


def test_without_devices_of_its_own_it_takes_turns_on_gpus_only():
    rollout = "actor_rollout_ref.rollout.gpu_memory_utilization=0.35"
    on_gpus = compose(["platform=cuda", *VLLM, rollout])
    assert shares_devices(on_gpus) and teacher_settings(on_gpus).memory_utilization == 0.35
    assert not shares_devices(compose([*CPU, *VLLM]))
    assert not shares_devices(compose(["platform=cuda", *SERVER]))


def test_the_key_comes_from_the_environment_and_into_no_configuration(monkeypatch):
    monkeypatch.setenv("TEACHER_API_KEY", "not-to-be-seen")
    config = compose([*CPU, *SERVER])
    assert teacher_settings(config).api_key.reveal() == "not-to-be-seen"
    assert "not-to-be-seen" not in str(config)


def test_a_model_that_was_never_named_is_not_asked_for():
    assert teacher_settings(compose(["platform=cuda", *SERVER])).model == ""
    named = compose(["platform=cuda", *SERVER, "reward_model.model.path=me/teacher"])
    assert teacher_settings(named).model == "me/teacher"
