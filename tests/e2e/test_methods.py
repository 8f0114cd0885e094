"""A whole two-step run of each method through Ray, vLLM, FSDP2 and verl's loop."""

import math

import pytest
from running import ROOT, train

pytestmark = pytest.mark.slow
pytest.importorskip("verl")

METHODS = {
    "opdvr": [],
    "opd-vllm-teacher-rollout-logprobs": [
        "opdvr.correctness_gated=False",
        "opdvr.teacher_engine=vllm",
        "opdvr.student_logprobs=rollout",
        "opdvr.teacher_temperature=0.8",
    ],
    "grpd-teacher-on-its-own-pool": [
        "opdvr.grpo_scaled=True",
        "actor_rollout_ref.rollout.n=4",
        "reward_model.enable_resource_pool=True",
        "reward_model.n_gpus_per_node=1",
        "reward_model.nnodes=1",
    ],
    "grpo": ["algorithm.adv_estimator=grpo", "reward_model.enable=False"],
    "plus-grpo-kl-lora": [
        "algorithm.adv_estimator=token_reward_direct_plus_grpo",
        "opdvr.use_kl=True",
        "actor_rollout_ref.model.lora_rank=4",
        "trainer.save_freq=2",
        "opdvr.truncated_responses=mask",
        "data.max_response_length=33",  # long enough for some responses only
    ],
    "inverse-token-grpo-recompute-kl": [
        "algorithm.adv_estimator=token_grpo",
        "opdvr.use_kl=True",
        "+actor_rollout_ref.rollout.correctness_gated_mode=inverse",
    ],
    "top-k-union-tail-mixed-vllm-teacher": [
        "opdvr.teacher_engine=vllm",
        "opdvr.teacher_temperature=0.8",
        "opdvr.log_prob_top_k=4",
        "opdvr.top_k_strategy=union",
        "opdvr.tail_bucket=True",
        "opdvr.correctness_gated_mode=mixed",
    ],
    "top-k-only-tch-two-mini-batches": [
        "opdvr.log_prob_top_k=4",
        "opdvr.top_k_strategy=only_tch",
        "opdvr.reward_weight_mode=teacher_p",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "data.train_batch_size=4",
    ],
    "whole-vocabulary": ["opdvr.full_vocabulary=jensen_shannon"],
}
ALWAYS = [
    "cg/correct_frac",
    "actor/entropy",
    "actor/grad_norm",
    "critic/advantages/mean",
    "training/rollout_probs_diff_mean",
    "opd/truncated_frac",
    "opd/all_equal_group_frac",
    "timing_s/gen",
    "timing_s/update_actor",
    "timing_s/step",
    "perf/throughput",
]
DISTILLED = [
    "cg/reward_zeroed_frac",
    "opd/log_ratio_mean",
    "opd/effective_token_frac",
    "teacher/entropy",
]


TOP_K = [f"val-topk/overlap_{name}" for name in ("ratio", "advantage", "student_mass")]
# method -> (passes of the student, of the teacher) before the update
PASSES = {
    "opdvr": (0, 1),
    "top-k-union-tail-mixed-vllm-teacher": (1, 1),
    "top-k-only-tch-two-mini-batches": (1, 1),
    "whole-vocabulary": (0, 1),
}


@pytest.mark.parametrize("method", METHODS)
def test_two_steps(method, tmp_path):
    steps = train(tmp_path / method, *METHODS[method])
    assert sorted(steps) == [1, 2]
    wanted = ALWAYS + (DISTILLED if method not in ("grpo", "whole-vocabulary") else [])
    wanted += TOP_K if method.startswith("top-k") else []
    for record in steps.values():
        missing = [name for name in wanted if name not in record]
        assert not missing
        assert all(math.isfinite(record[name]) for name in wanted)
        # vLLM's log-probs are the trainer's, after each weight sync
        assert record["training/rollout_probs_diff_max"] < 1e-4
        assert record["actor/entropy"] > 0
        if method in PASSES:
            passes = record["opd/student_scoring_passes"], record["opd/teacher_passes"]
            assert passes == PASSES[method]
    assert "val-core/opdvr-demo/acc/mean@2" in steps[2]
    zeroed = steps[1].get("cg/reward_zeroed_frac")
    if method == "opd-vllm-teacher-rollout-logprobs":
        assert zeroed == 0
        assert steps[2]["opd/teacher_hidden_frac"] > 0
        assert 0 < steps[2]["opd/engine_floor"] < 1e-5
    elif method in ("opdvr", "inverse-token-grpo-recompute-kl"):
        assert 0 < zeroed < 1
    if method == "top-k-union-tail-mixed-vllm-teacher":
        assert steps[2]["opd/teacher_hidden_frac"] == 0  # the student's ids come first
    if method.startswith("grpd"):
        assert "gs/scale_mean" in steps[1]
    if method == "whole-vocabulary":
        assert 0 < steps[1]["opd/divergence"] < 1  # nats; Jensen-Shannon is at most ln 2
        assert 0 < steps[1]["opd/divergence_passed_frac"] < 1
    if "kl" in method:
        assert steps[1]["actor/kl_coef"] == 0.005
        # The reference is the student before training, with LoRA the one without its adapter.
        assert steps[1]["actor/kl_loss"] == pytest.approx(0, abs=1e-9)
        assert steps[2]["actor/kl_loss"] > 0
    if method == "plus-grpo-kl-lora":
        assert 0 < steps[1]["opd/truncated_frac"] < 1
        check_saved_adapter(tmp_path / method / "global_step_2" / "actor")


def check_saved_adapter(folder):
    """The checkpoint's model is the student with the checkpoint's adapter merged into it."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def load(path):
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    student = ROOT / "opdvr" / "demo" / "models" / "student"
    merged = PeftModel.from_pretrained(load(student), folder / "lora_adapter").merge_and_unload()
    before, saved = load(student).state_dict(), load(folder / "huggingface").state_dict()
    assert saved.keys() == before.keys()
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(saved[name], tensor, rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(saved[name], before[name]) for name in before)
