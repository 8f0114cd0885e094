"""The GPU commands, composed and passed through verl's own validation and dataclasses."""

import pytest
from omegaconf import OmegaConf, open_dict

pytest.importorskip("verl")

from verl.utils.config import omega_conf_to_dataclass, validate_config  # noqa: E402

from opdvr.integration.config import compose  # noqa: E402

LAUNCHES = {
    "one GPU": ["trainer.n_gpus_per_node=1"],
    "eight GPUs": ["trainer.n_gpus_per_node=8"],
    "two nodes": ["trainer.n_gpus_per_node=8", "trainer.nnodes=2"],
    "eight GPUs, parallel size 2": ["trainer.n_gpus_per_node=8", "opdvr.parallel_size=2"],
}
METHODS = {
    "opdvr": [],
    "grpd": ["opdvr.grpo_scaled=True", "actor_rollout_ref.rollout.n=8"],
    "opd": ["opdvr.correctness_gated=False"],
    "inverse": ["opdvr.correctness_gated_mode=inverse"],
    "grpo": [
        "algorithm.adv_estimator=grpo",
        "reward_model.enable=False",
        "actor_rollout_ref.rollout.n=8",
    ],
    "kl": ["opdvr.use_kl=True"],
}


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("method", METHODS)
def test_verl_accepts_it(launch, method, tmp_path):
    config = compose(["platform=cuda", *LAUNCHES[launch], *METHODS[method]])
    validate_config(
        config=config,
        use_reference_policy=bool(config.actor_rollout_ref.actor.use_kl_loss),
        use_critic=False,
    )
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.engine.strategy == "fsdp2" and actor.strategy == "fsdp2"
    assert actor.engine.mixed_precision["param_dtype"] == "bfloat16"
    assert actor.engine.ulysses_sequence_parallel_size == config.opdvr.parallel_size
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert rollout.name == "vllm" and rollout.calculate_log_probs
    assert config.trainer.device == "cuda"
    assert config.data.train_batch_size == 256 * config.opdvr.parallel_size
    # one mini-batch a step is where the single forward is exact
    expected = "update" if config.opdvr.parallel_size == 1 else "recompute"
    assert config.opdvr.student_logprobs == expected


def test_the_teachers_worker_configuration():
    from engine_setup import write_model

    from opdvr.integration.workers import teacher_worker_config

    config = compose(["platform=cuda", "reward_model.model.fsdp_config.param_offload=True"])
    with open_dict(config):
        import tempfile

        config.reward_model.model.path = write_model(tempfile.mkdtemp())
    OmegaConf.resolve(config)
    worker = teacher_worker_config(config.reward_model)
    assert worker.engine_config.forward_only and not worker.engine_config.keep_on_device
    assert worker.engine_config.model_dtype == "bfloat16"
    assert worker.engine_config.infer_max_token_len_per_gpu == 1024 + 8192
    kept = compose(["platform=cuda"])
    assert not kept.reward_model.model.fsdp_config.param_offload  # the default keeps it loaded
