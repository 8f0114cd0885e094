"""verl TrainingWorkers in this process (one rank), on our engine and on verl's own."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch
import verl.utils.torch_functional as verl_functional
import verl.workers.engine.fsdp.transformer_impl as verl_fsdp
import verl.workers.engine_workers as verl_workers
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine import EngineRegistry
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

from opdvr.core import MethodSpec
from opdvr.integration.engine import ScoringEngine, TeacherEngineConfig
from opdvr.integration.options import OpdvrOptions
from opdvr.integration.scoring import Scorer, plan
from opdvr.integration.workers import StudentWorker, TeacherWorker, prepare_process

FLOAT32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
LEARNING_RATE = 1e-6


class VerlEngineInFloat32(verl_fsdp.FSDPEngineWithLMHead):
    """verl's engine without what only a machine lacking flash-attention suffers from.

    Its bfloat16 autocast is switched off and its fallback for log-probs, a Python loop over tokens,
    replaced by verl's own vectorised form. The rest, `forward_step` included, is verl's.
    """

    def _build_module(self) -> torch.nn.Module:
        module = super()._build_module()
        module.forward = torch.autocast(get_device_name(), enabled=False)(module.forward)
        return module

    def prepare_model_outputs(self, output: object, output_args: dict, micro_batch: TensorDict):
        """verl's, in float32."""
        loop = verl_fsdp.logprobs_from_logits
        verl_fsdp.logprobs_from_logits = _vectorised
        try:
            with torch.autocast(get_device_name(), enabled=False):
                return super().prepare_model_outputs(output, output_args, micro_batch)
        finally:
            verl_fsdp.logprobs_from_logits = loop


def _vectorised(logits: torch.Tensor, labels: torch.Tensor, **_unused: object) -> torch.Tensor:
    return verl_functional.logprobs_from_logits_naive(logits, labels)


def start_process(tile_tokens: int | None) -> None:
    """One rank's environment and what opdvr needs in every worker process."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    os.environ.update(
        RANK="0",
        WORLD_SIZE="1",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        DIST_INIT_METHOD=f"tcp://127.0.0.1:{port}",
    )
    prepare_process(tile_tokens)


@contextmanager
def garbage_collection_as_in_verl() -> Iterator[None]:
    """verl collects garbage at every switch of mode; opdvr stops that on a CPU. Undo it inside."""
    tamed = verl_fsdp.gc
    verl_fsdp.gc = gc
    try:
        yield
    finally:
        verl_fsdp.gc = tamed


@dataclass(frozen=True)
class MicroBatches:
    """How rows are split: into equal numbers of rows where `rows` is given, else by tokens."""

    max_tokens: int | None = None
    rows: int | None = None

    def options(self) -> dict:
        """For verl's engine configuration, the same for forward passes and updates."""
        return dict(
            use_dynamic_bsz=self.rows is None,
            max_token_len_per_gpu=self.max_tokens,
            infer_max_token_len_per_gpu=self.max_tokens,
            micro_batch_size_per_gpu=self.rows,
            infer_micro_batch_size_per_gpu=self.rows,
        )


def training_worker(
    folder: str,
    micro_batches: MicroBatches,
    forward_only: bool = False,
    engine: type = ScoringEngine,
    dtype: str = "float32",
) -> verl_workers.TrainingWorker:
    """An initialised worker on `engine`."""
    engines = EngineRegistry._engines["language_model"]["fsdp2"]
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=folder,
            load_tokenizer=False,
            enable_gradient_checkpointing=False,
            use_remove_padding=True,
            override_config={"attn_implementation": "sdpa"},
        ),
        engine_config=(TeacherEngineConfig if forward_only else FSDPEngineConfig)(
            strategy="fsdp2",
            forward_only=forward_only,
            model_dtype=dtype,
            mixed_precision=FLOAT32 | {"param_dtype": dtype},
            use_torch_compile=False,
            **micro_batches.options(),
        ),
        optimizer_config=FSDPOptimizerConfig(lr=LEARNING_RATE, total_training_steps=100),
        checkpoint_config=CheckpointConfig(),
    )
    registered = engines[get_device_name()]
    engines[get_device_name()] = engine
    try:
        worker = verl_workers.TrainingWorker(config)
    finally:
        engines[get_device_name()] = registered
    worker.reset()
    return worker


def actor_config(rows: int, group_size: int) -> FSDPActorConfig:
    """One mini-batch of all rows."""
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=group_size,
        ppo_mini_batch_size=rows // group_size,
        use_dynamic_bsz=True,
    )


def _to_verl(batch: dict[str, torch.Tensor], **non_tensor: object) -> TensorDict:
    # a shallow copy is enough: verl replaces entries and never writes into them
    data = left_right_2_no_padding(DataProto.from_dict(tensors=dict(batch)).to_tensordict())
    tu.assign_non_tensor(data, temperature=1.0, **non_tensor)
    return data


def score(
    worker: verl_workers.TrainingWorker, batch: dict[str, torch.Tensor], with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs and, when asked, entropies [B,T] float32, by a pass without gradients."""
    data = _to_verl(batch, calculate_entropy=with_entropy, compute_loss=False)
    output = worker.infer_batch(data)
    logprobs = no_padding_2_padding(tu.get(output, "log_probs"), data).float()
    entropy = None
    if with_entropy:
        entropy = no_padding_2_padding(tu.get(output, "entropy"), data).float()
    return logprobs, entropy


def scorer(
    spec: MethodSpec,
    student_logprobs: str,
    student: verl_workers.TrainingWorker,
    teacher: verl_workers.TrainingWorker,
    vocabulary: int,
) -> Scorer:
    """The trainer's own order of scoring passes, over two workers of this process."""
    as_student, as_teacher = (
        SimpleNamespace(actor=student),
        SimpleNamespace(
            infer_batch=teacher.infer_batch,
            _with_entropy=OpdvrOptions.teacher_entropy,
            _temperature=1.0,
        ),
    )
    return Scorer(
        plan(spec, student_logprobs, OpdvrOptions.top_k_overlap),
        SimpleNamespace(score_candidates=partial(StudentWorker.score_candidates, as_student)),
        SimpleNamespace(compute_rm_score=partial(TeacherWorker.compute_rm_score, as_teacher)),
        vocabulary,
        temperature=1.0,
    )


def update(
    worker: verl_workers.TrainingWorker, batch: dict[str, torch.Tensor], **non_tensor: object
) -> float:
    """One update on the batch as one mini-batch; returns the gradient norm."""
    return update_metrics(worker, batch, **non_tensor)["grad_norm"][0]


def update_metrics(
    worker: verl_workers.TrainingWorker, batch: dict[str, torch.Tensor], **non_tensor: object
) -> dict[str, list]:
    """One update on the batch as one mini-batch; returns the metrics, a list a name."""
    rows = len(batch["input_ids"])
    data = _to_verl(
        batch,
        calculate_entropy=False,
        global_batch_size=rows,
        mini_batch_size=rows,
        epochs=1,
        seed=42,
        dataloader_kwargs={"shuffle": False},
        **non_tensor,
    )
    return tu.get(worker.train_mini_batch(data), "metrics")
