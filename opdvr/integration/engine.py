"""verl's FSDP engine with the tiled head: response tokens only, never [tokens, V]."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import verl.workers.engine.fsdp.transformer_impl as verl_fsdp
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.utils.torch_dtypes import PrecisionType
from verl.utils.ulysses import gather_outputs_and_unpad, ulysses_pad_and_slice_inputs
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine import EngineRegistry

from opdvr.core import MethodSpec, OutputLayer, apply_gate, candidate_ids
from opdvr.core.divergence import DivergenceScores, divergence_loss
from opdvr.integration import lora
from opdvr.integration.checkpoints import ADAPTER, WHOLE_MODEL
from opdvr.integration.head import (
    ENTROPY,
    LOG_PROBS,
    OF_DIVERGENCE,
    TOP_IDS,
    ScoreRequest,
    ScoringHead,
)
from opdvr.integration.platform import on_cpu, unpad_without_flash_attn
from opdvr.integration.scoring import STUDENT_TOP_IDS, TEACHER_HIDDEN, TEACHER_TOP_IDS

_ONE_A_TOKEN = (LOG_PROBS, ENTROPY, *OF_DIVERGENCE)
_CHECKED_TOKENS = 8

_VERL_OFFLOAD_POLICY = verl_fsdp.CPUOffloadPolicy


@dataclass
class TeacherEngineConfig(FSDPEngineConfig):
    """verl's forward-only engine streams its weights from the CPU; this keeps them if asked."""

    keep_on_device: bool = True


@dataclass
class FullVocabulary:
    """What the student's update needs for a divergence over the whole vocabulary."""

    spec: MethodSpec
    teacher: OutputLayer
    teacher_temperature: float


class ScoringEngine(verl_fsdp.FSDPEngineWithLMHead):
    """Log-probs [B, j] in nats at the rollout's (or teacher's) temperature, 0 outside the response.

    Over the model's own vocabulary width, or over the ids below `vocabulary` where the batch names
    it. `entropy` [B, j] as verl expects it with calculate_entropy (differentiable); with
    `log_entropy` in the batch instead, `logged_entropy`, detached.

    For top-k distillation: with `top_k` in the batch `top_ids` and `top_log_probs` [B, j, K]; with
    `strategy` and the top ids that it reads `candidate_log_probs` [B, j, C], differentiable. For
    the whole vocabulary: with `with_hidden` `hidden` [B, j, H]; with `teacher_hidden`
    DivergenceScores as `divergence_loss`, `divergence`, `divergence_signal`, `divergence_passed`
    [B, j].
    """

    head_tile_tokens: int | None = None  # set from opdvr.head_chunk_tokens before `initialize`
    full_vocabulary: FullVocabulary | None = None

    def _build_module(self) -> torch.nn.Module:
        module = super()._build_module()
        self._head = ScoringHead(module, self.head_tile_tokens)
        return module

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        keep = getattr(self.engine_config, "keep_on_device", False)
        verl_fsdp.CPUOffloadPolicy = lambda pin_memory=True: (
            None if keep else _VERL_OFFLOAD_POLICY(pin_memory=pin_memory and not on_cpu())
        )
        try:
            return super()._build_fsdp_module(module)
        finally:
            verl_fsdp.CPUOffloadPolicy = _VERL_OFFLOAD_POLICY

    def forward_step(
        self, micro_batch: TensorDict, loss_function: object, forward_only: bool
    ) -> tuple[torch.Tensor, dict]:
        """One micro-batch; unlike verl's, autocast follows the configured dtype."""
        micro_batch = micro_batch.to(get_device_id())
        model_inputs, output_args = self.prepare_model_inputs(micro_batch=micro_batch)
        with torch.autocast(get_device_name(), dtype=self._dtype, enabled=self._dtype.itemsize < 4):
            self._check_head(model_inputs)
            request = self._request(micro_batch, output_args)
            with self._head.answering(request):
                raw_output = self.module(**model_inputs, use_cache=False)
            columns = self._head.columns_of(raw_output.logits, request)
            model_output = self._model_output(columns, output_args, micro_batch)
            if loss_function is None:
                assert forward_only, "a backward pass needs a loss function"
                loss, metrics = torch.tensor(1.0, device=get_device_name()), {}
            else:
                loss, metrics = loss_function(
                    model_output=model_output,
                    data=micro_batch,
                    dp_group=self.get_data_parallel_group(),
                )
        output = {"model_output": model_output, "loss": loss.detach().item(), "metrics": metrics}
        return loss, output

    @torch.no_grad()
    def _check_head(self, model_inputs: dict) -> None:
        """At the first forward: that the head, as we compute it, gives the model's own logits."""
        ids = model_inputs["input_ids"][:, :_CHECKED_TOKENS]
        inputs = {
            "input_ids": ids,
            "position_ids": torch.arange(ids.shape[1], device=ids.device).unsqueeze(0),
            "attention_mask": None,
        }
        self._head.check(
            lambda: self.module(**inputs, use_cache=False).logits, ids.shape[1], self._dtype
        )

    def _model_output(
        self, columns: dict[str, torch.Tensor], output_args: dict, micro_batch: TensorDict
    ) -> dict[str, torch.Tensor]:
        """Jagged tensors aligned as verl's: the value at t belongs to the token at t + 1."""
        offsets = micro_batch["input_ids"].offsets()
        model_output = {}
        for name, values in columns.items():
            if self.use_ulysses_sp:
                values = gather_outputs_and_unpad(
                    values, gather_dim=0, unpad_dim=0, padding_size=output_args["pad_size"]
                )
            if name in _ONE_A_TOKEN:
                values = values.squeeze(-1)
            if name == TOP_IDS:
                values = values.long()
            model_output[name] = torch.nested.nested_tensor_from_jagged(values, offsets)
        if ENTROPY in model_output and not _flag(micro_batch, "calculate_entropy"):
            model_output["logged_entropy"] = model_output.pop(ENTROPY).detach()
        return model_output

    def get_per_tensor_param(
        self, *arguments: object, **named: object
    ) -> tuple[Iterator[tuple[str, torch.Tensor]], object]:
        """verl's; with LoRA the merged weights, so that the rollout knows of no adapter."""
        if not lora.has_adapter(self.module):
            return super().get_per_tensor_param(*arguments, **named)
        verl_fsdp.load_fsdp_model_to_gpu(self.module)
        return lora.merged_parameters(self.module, get_device_id()), None

    def save_checkpoint(self, local_path: str, *arguments: object, **named: object) -> None:
        """verl's; with LoRA the whole model is the merged one, and the adapter lies beside it."""
        if not lora.has_adapter(self.module):
            super().save_checkpoint(local_path, *arguments, **named)
            return
        manager = self.checkpoint_manager
        wanted = manager.checkpoint_save_contents
        manager.checkpoint_save_contents = [part for part in wanted if part != "hf_model"]
        try:
            super().save_checkpoint(local_path, *arguments, **named)
        finally:
            manager.checkpoint_save_contents = wanted
        if self._is_offload_param:
            verl_fsdp.load_fsdp_model_to_gpu(self.module)
        folder = Path(local_path)
        lora.save_adapter(self.module, folder / ADAPTER, get_device_id())
        if "hf_model" in wanted:
            lora.save_merged(self.module, folder / WHOLE_MODEL, get_device_id())
        torch.distributed.barrier()
        if self._is_offload_param:
            verl_fsdp.offload_fsdp_model_to_cpu(self.module)

    def whole_output_layer(self) -> OutputLayer:
        """A copy on the CPU, gathered from all ranks, with what the model does after it.

        Raises:
            ValueError: the head is no linear layer that we can stand in for.
        """
        return self._head.output_layer(self.module.get_output_embeddings())

    @property
    def _dtype(self) -> torch.dtype:
        precision = self.engine_config.mixed_precision or {"param_dtype": "bf16"}
        return PrecisionType.to_dtype(precision["param_dtype"])

    def _request(self, micro_batch: TensorDict, output_args: dict) -> ScoreRequest:
        assert self.use_remove_padding, "verl's padded path masks attention by the response mask"
        positions = self._scored_positions(micro_batch)
        tokens = torch.arange(len(positions), device=positions.device)  # which response token
        if self.use_ulysses_sp:
            numbers = torch.zeros_like(micro_batch["input_ids"].values())
            numbers[positions] = tokens + 1
            numbers, _, _ = ulysses_pad_and_slice_inputs(
                numbers.unsqueeze(0), None, sp_size=self.ulysses_sequence_parallel_size
            )
            positions = numbers.squeeze(0).nonzero().squeeze(-1)
            tokens = numbers.squeeze(0)[positions] - 1
        ids = output_args["input_ids_rmpad_rolled"].index_select(0, positions).unsqueeze(1)
        candidates = candidates_of(micro_batch)
        if candidates is not None:
            mask = micro_batch["response_mask"].bool()
            ids = torch.cat((ids, candidates[mask].index_select(0, tokens)), 1)
        return ScoreRequest(
            positions=positions,
            ids=ids,
            temperature=float(micro_batch["temperature"]),
            with_entropy=_flag(micro_batch, "calculate_entropy")
            or _flag(micro_batch, "log_entropy"),
            top_k=int(_value(micro_batch, "top_k", 0)),
            vocabulary=_value(micro_batch, "vocabulary", None),
            with_hidden=_flag(micro_batch, "with_hidden"),
            divergence=self._divergence(micro_batch, tokens),
        )

    def _scored_positions(self, micro_batch: TensorDict) -> torch.Tensor:
        """Packed positions [M] int64 whose next token is to be scored."""
        return predictor_positions(
            micro_batch["input_ids"].offsets(),
            micro_batch["attention_mask"],
            micro_batch["response_mask"].bool(),
        )

    def _divergence(self, micro_batch: TensorDict, tokens: torch.Tensor) -> Callable | None:
        """The whole-vocabulary objective of this micro-batch's response tokens, or None."""
        if TEACHER_HIDDEN not in micro_batch.keys():
            return None
        method = self.full_vocabulary
        mask = micro_batch["response_mask"].bool()
        teacher_hidden = micro_batch[TEACHER_HIDDEN][mask].index_select(0, tokens)
        per_row = {
            name: micro_batch[name].unsqueeze(1).expand_as(mask)[mask].index_select(0, tokens)
            for name in ("correct", "group_correct_frac")
        }

        def gated(signal: torch.Tensor, which: slice) -> torch.Tensor:
            return apply_gate(
                signal,
                per_row["correct"][which].bool(),
                method.spec.gate,
                group_correct_frac=per_row["group_correct_frac"][which],
                settings=method.spec.gate_settings,
            )

        def loss_of(source: object, hidden: torch.Tensor | None) -> DivergenceScores:
            return divergence_loss(
                method.spec.full_vocabulary,
                source,
                hidden,
                method.teacher,
                teacher_hidden,
                passes=gated,
                temperature=float(micro_batch["temperature"]),
                teacher_temperature=method.teacher_temperature,
                tile_tokens=self.head_tile_tokens,
            )

        return loss_of


def candidates_of(micro_batch: TensorDict) -> torch.Tensor | None:
    """Candidate ids [B,T,C] int64 from the top ids in the batch; None without `strategy`."""
    strategy = _value(micro_batch, "strategy", None)
    if strategy is None:
        return None
    keys = micro_batch.keys()
    student, teacher = (
        micro_batch[key].long() if key in keys else None
        for key in (STUDENT_TOP_IDS, TEACHER_TOP_IDS)
    )
    return candidate_ids(strategy, student, teacher)


def predictor_positions(
    offsets: torch.Tensor, attention_mask: torch.Tensor, response_mask: torch.Tensor
) -> torch.Tensor:
    """Packed positions [M] int64 whose next token is a response token that counts.

    offsets [B+1]: starts of the packed rows; attention_mask [B, P+T]; response_mask [B, T].
    """
    response_width = response_mask.shape[1]
    prompt_lengths = attention_mask[:, :-response_width].sum(-1)
    first = offsets[:-1] + prompt_lengths - 1
    steps = torch.arange(response_width, device=first.device)
    return (first.unsqueeze(-1) + steps)[response_mask.bool()]


def response_part(output: torch.Tensor, data: TensorDict) -> torch.Tensor:
    """Jagged output [B, j, ...] of the engine as [B,T,...]: what belongs to each response token.

    0 where the response mask of `data` is 0; differentiable.
    """
    mask = data["response_mask"].bool()
    positions = predictor_positions(output.offsets(), data["attention_mask"], mask)
    values = output.values()
    padded = values.new_zeros(*mask.shape, *values.shape[1:])
    padded[mask] = values.index_select(0, positions)
    return padded


def _value(micro_batch: TensorDict, key: str, default: object) -> Any:  # noqa: ANN401
    return tu.get_non_tensor_data(data=micro_batch, key=key, default=default)


def _flag(micro_batch: TensorDict, key: str) -> bool:
    return bool(_value(micro_batch, key, False))


def install(engine: type[ScoringEngine] = ScoringEngine) -> None:
    """Register the engine (over verl's own where it has one) and tame gc on CPU; idempotent."""
    unpad_without_flash_attn()
    engines = EngineRegistry._engines.setdefault("language_model", {})
    for backend in ("fsdp", "fsdp2"):
        for device in ("cuda", "cpu"):
            engines.setdefault(backend, {})[device] = engine
    if on_cpu():
        # FSDPEngine.to() collects garbage on every switch of mode: 0.1 to 0.3 s each, for nothing
        verl_fsdp.gc = SimpleNamespace(collect=lambda: 0)


def freeze_startup_objects() -> None:
    """Take what the start-up left out of every later garbage collection."""
    gc.collect()
    gc.freeze()
