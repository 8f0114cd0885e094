"""Ray workers: student (actor, rollout, reference) and teacher, on verl's model engine."""

from __future__ import annotations

from dataclasses import replace

import torch
import verl.workers.engine_workers as verl_workers
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from verl import DataProto
from verl.single_controller.base.decorator import (
    Dispatch,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_id
from verl.workers.config import HFModelConfig, TrainingWorkerConfig
from verl.workers.utils.padding import left_right_2_no_padding

from opdvr.core import MethodSpec, OutputLayer
from opdvr.integration import engine
from opdvr.integration.loss import ForwardLoss
from opdvr.integration.platform import (
    keep_vllm_weights_loadable,
    on_cpu,
    use_gloo_and_leave_memory_alone,
)
from opdvr.integration.scoring import (
    SCORE_KEYS,
    STUDENT_CANDIDATES,
    STUDENT_TOP_IDS,
    STUDENT_TOP_LOG_PROBS,
    TEACHER_AT_STUDENT,
    TEACHER_HIDDEN,
    TEACHER_TOP_IDS,
    TEACHER_TOP_LOG_PROBS,
)

_TOP_IDS = [STUDENT_TOP_IDS, TEACHER_TOP_IDS]


def prepare_process(head_tile_tokens: int | None) -> None:
    """What every worker process needs before verl builds an engine; idempotent."""
    use_gloo_and_leave_memory_alone()
    engine.install()
    engine.ScoringEngine.head_tile_tokens = head_tile_tokens


def score(
    worker: verl_workers.TrainingWorker, data: DataProto, names: dict[str, str], **wanted: object
) -> DataProto:
    """A pass without gradients over `data`, as padded tensors.

    Args:
        worker: whose engine scores.
        data: SCORE_KEYS and, where `wanted` names a strategy, the top ids that it reads.
        names: output of the engine -> name in the result; outputs that were not made are left out.
        wanted: non-tensor entries for the engine (temperature, calculate_entropy, top_k, ...).

    Returns:
        [B,T,...] float32 (ids int32), 0 outside the response.
    """
    keys = [key for key in SCORE_KEYS + _TOP_IDS if key in data.batch.keys()]
    batch = left_right_2_no_padding(
        data.select(batch_keys=keys, non_tensor_batch_keys=[], meta_info_keys=[]).to_tensordict()
    )
    tu.assign_non_tensor(batch, compute_loss=False, **wanted)
    output = worker.infer_batch(batch)
    tensors = {}
    for key, name in names.items():
        if key in output.keys():
            values = engine.response_part(tu.get(output, key), batch)
            tensors[name] = values.int() if values.dtype == torch.int64 else values.float()
    return DataProto.from_dict(tensors=tensors)


class StudentWorker(verl_workers.ActorRolloutRefWorker):
    """verl's hybrid worker on our engine."""

    def __init__(self, config: DictConfig, role: str, **kwargs: object):
        config = OmegaConf.create(config)
        with open_dict(config):
            prepare_process(config.pop("head_chunk_tokens"))
        keep_vllm_weights_loadable()
        if config.model.lora_rank > 0:
            role = role.removesuffix("_ref")  # the actor without its adapter is the reference
        super().__init__(config, role, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build reference, actor and rollout, as verl does; the rollout gets no adapter."""
        super().init_model()
        if self.config.model.lora_rank > 0:
            self.rollout.lora_config = {}
            self.set_dispatch_collect(mesh_name="ref", **self.actor.get_dispatch_collect())
        if on_cpu():
            engine.freeze_startup_objects()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict | None:
        """verl's; with LoRA by the actor, its adapter switched off meanwhile."""
        if self.config.model.lora_rank == 0:
            return super().compute_ref_log_prob(data)
        with self.actor.engine.module.disable_adapter():
            output = self.actor.infer_batch(data)
        return output.cpu() if output is not None else None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_loss_fn(self, loss_fn: ForwardLoss) -> None:
        """Use `loss_fn`, given this worker's own actor configuration."""
        loss_fn.actor_config = self.loss_fn.keywords["config"]
        self.actor.set_loss_fn(loss_fn)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_teacher_layer(
        self, spec: MethodSpec, layer: OutputLayer, teacher_temperature: float
    ) -> None:
        """The teacher's output layer, for a divergence over the whole vocabulary."""
        device = get_device_id()
        layer = replace(
            layer,
            weight=layer.weight.to(device),
            bias=None if layer.bias is None else layer.bias.to(device),
        )
        self.actor.engine.full_vocabulary = engine.FullVocabulary(spec, layer, teacher_temperature)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def score_candidates(self, data: DataProto) -> DataProto:
        """One pass without gradients for top-k distillation, at the rollout's temperature.

        data: SCORE_KEYS and, with `strategy` in its meta_info, the top ids that it reads.

        Returns:
            old_log_probs, entropys [B,T]; with `top_k` in meta_info student_top_ids (int32) and
            student_top_log_probs [B,T,K]; with `strategy` student_candidate_log_probs [B,T,C].
        """
        names = {
            "log_probs": "old_log_probs",
            "entropy": "entropys",
            "top_ids": STUDENT_TOP_IDS,
            "top_log_probs": STUDENT_TOP_LOG_PROBS,
            "candidate_log_probs": STUDENT_CANDIDATES,
        }
        wanted = {key: data.meta_info[key] for key in ("temperature", "vocabulary")}
        wanted |= {key: data.meta_info[key] for key in ("top_k", "strategy") if data.meta_info[key]}
        return score(self.actor, data, names, calculate_entropy=True, **wanted)


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

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def output_layer(self) -> OutputLayer | None:
        """The whole output layer, on the CPU, for set_teacher_layer; None but of rank 0."""
        layer = self.engine.whole_output_layer()  # all ranks gather it
        return layer if self.rank == 0 else None

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"))
    def compute_rm_score(self, data: DataProto) -> DataProto:
        """What the teacher says of the student's tokens, at TEACHER_TEMPERATURE.

        data: SCORE_KEYS and, where the student's top ids are candidates, student_top_ids [B,T,K].
        meta_info: top_k, vocabulary, with_hidden.

        Returns:
            fp32, nats, 0 where the mask is 0: teacher_log_probs [B,T] (named rm_scores, they would
            replace the verifier's); with entropy teacher_entropy [B,T]; with top_k teacher_top_ids
            (int32) and teacher_top_log_probs [B,T,K]; with student_top_ids
            teacher_at_student_log_probs [B,T,K]; with_hidden teacher_hidden [B,T,H].
        """
        names = {
            "log_probs": "teacher_log_probs",
            "entropy": "teacher_entropy",
            "top_ids": TEACHER_TOP_IDS,
            "top_log_probs": TEACHER_TOP_LOG_PROBS,
            "candidate_log_probs": TEACHER_AT_STUDENT,
            "hidden": TEACHER_HIDDEN,
        }
        wanted = {key: data.meta_info[key] for key in ("top_k", "vocabulary", "with_hidden")}
        if STUDENT_TOP_IDS in data.batch.keys():
            wanted["strategy"] = "only_stu"  # the teacher's values are wanted at all of them
        return score(
            self,
            data,
            names,
            calculate_entropy=self._with_entropy,
            temperature=self._temperature,
            **wanted,
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
