"""Ray workers: student (actor, rollout, reference) and teacher, on verl's model engine."""

from __future__ import annotations

import verl.workers.engine_workers as verl_workers
from omegaconf import DictConfig, OmegaConf, open_dict
from verl import DataProto
from verl.single_controller.base.decorator import (
    Dispatch,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, TrainingWorkerConfig
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

from opdvr.integration import engine
from opdvr.integration.loss import ForwardLoss
from opdvr.integration.platform import (
    keep_vllm_weights_loadable,
    on_cpu,
    use_gloo_and_leave_memory_alone,
)

SCORE_KEYS = ["input_ids", "attention_mask", "position_ids", "response_mask"]


def prepare_process(head_chunk_tokens: int) -> None:
    """What every worker process needs before verl builds an engine; idempotent."""
    use_gloo_and_leave_memory_alone()
    engine.install()
    engine.ScoringEngine.head_chunk_tokens = head_chunk_tokens


class StudentWorker(verl_workers.ActorRolloutRefWorker):
    """verl's hybrid worker on our engine."""

    def __init__(self, config: DictConfig, role: str, **kwargs: object):
        config = OmegaConf.create(config)
        with open_dict(config):
            prepare_process(config.pop("head_chunk_tokens"))
        keep_vllm_weights_loadable()
        super().__init__(config, role, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build reference, actor and rollout, as verl does."""
        super().init_model()
        if on_cpu():
            engine.freeze_startup_objects()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_loss_fn(self, loss_fn: ForwardLoss) -> None:
        """Use `loss_fn`, given this worker's own actor configuration."""
        loss_fn.actor_config = self.loss_fn.keywords["config"]
        self.actor.set_loss_fn(loss_fn)


class TeacherWorker(verl_workers.TrainingWorker):
    """The teacher in verl's reward-model slot: scores the student's own token ids, forward only."""

    def __init__(self, config: DictConfig):
        prepare_process(config.head_chunk_tokens)
        super().__init__(teacher_worker_config(config))
        self._with_entropy = bool(config.with_entropy)
        self._temperature = float(config.temperature)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load the weights."""
        self.reset()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"))
    def compute_rm_score(self, data: DataProto) -> DataProto:
        """teacher_log_probs [B,T] fp32, nats, at TEACHER_TEMPERATURE, 0 where the mask is 0; with
        entropy also teacher_entropy [B,T]. Named rm_scores, they would replace the verifier's.
        """
        batch = left_right_2_no_padding(
            data.select(
                batch_keys=SCORE_KEYS, non_tensor_batch_keys=[], meta_info_keys=[]
            ).to_tensordict()
        )
        tu.assign_non_tensor(
            batch,
            calculate_entropy=self._with_entropy,
            compute_loss=False,
            temperature=self._temperature,
        )
        output = self.infer_batch(batch)
        names = {"log_probs": "teacher_log_probs"}
        if self._with_entropy:
            names["entropy"] = "teacher_entropy"
        return DataProto.from_dict(
            tensors={
                name: no_padding_2_padding(tu.get(output, key), batch).float()
                for key, name in names.items()
            }
        )


def teacher_worker_config(config: DictConfig) -> TrainingWorkerConfig:
    """verl's worker configuration from the `reward_model` group."""
    model = config.model
    fsdp = model.fsdp_config
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=model.path,
            load_tokenizer=False,
            trust_remote_code=model.trust_remote_code,
            external_lib=model.external_lib,
            use_shm=model.use_shm,
            enable_gradient_checkpointing=False,
            use_remove_padding=True,
            override_config=OmegaConf.to_container(model.override_config),
        ),
        engine_config=engine.TeacherEngineConfig(
            strategy=config.strategy,
            forward_only=True,
            keep_on_device=not fsdp.param_offload,
            wrap_policy=OmegaConf.to_container(fsdp.wrap_policy),
            reshard_after_forward=fsdp.reshard_after_forward,
            fsdp_size=fsdp.fsdp_size,
            forward_prefetch=fsdp.forward_prefetch,
            model_dtype=config.model_dtype,
            mixed_precision={
                "param_dtype": config.model_dtype,
                "reduce_dtype": "fp32",
                "buffer_dtype": "fp32",
            },
            ulysses_sequence_parallel_size=config.ulysses_sequence_parallel_size,
            use_torch_compile=False,
            use_dynamic_bsz=config.use_dynamic_bsz,
            infer_max_token_len_per_gpu=config.forward_max_token_len_per_gpu,
            infer_micro_batch_size_per_gpu=config.micro_batch_size_per_gpu,
        ),
        checkpoint_config=CheckpointConfig(save_contents=["model"], load_contents=["model"]),
        profiler_config=omega_conf_to_dataclass(config.profiler),
    )
