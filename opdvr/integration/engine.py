"""verl's FSDP engine with the chunked head: response tokens only, never [tokens, V]."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import verl.workers.engine.fsdp.transformer_impl as verl_fsdp
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.utils.torch_dtypes import PrecisionType
from verl.utils.ulysses import gather_outputs_and_unpad, ulysses_pad_and_slice_inputs
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine import EngineRegistry

from opdvr.integration.head import ScoreRequest, ScoringHead
from opdvr.integration.platform import on_cpu, unpad_without_flash_attn

_VERL_OFFLOAD_POLICY = verl_fsdp.CPUOffloadPolicy


@dataclass
class TeacherEngineConfig(FSDPEngineConfig):
    """verl's forward-only engine streams its weights from the CPU; this keeps them if asked."""

    keep_on_device: bool = True


class ScoringEngine(verl_fsdp.FSDPEngineWithLMHead):
    """Log-probs [B, j] in nats at the rollout's (or teacher's) temperature, 0 outside the response.

    Over the model's own vocabulary width. `entropy` [B, j] as verl expects it with
    calculate_entropy (differentiable); with `log_entropy` in the batch instead, `logged_entropy`,
    detached.
    """

    head_chunk_tokens = 1024  # set from opdvr.head_chunk_tokens by the worker, before `initialize`

    def _build_module(self) -> torch.nn.Module:
        module = super()._build_module()
        self._head = ScoringHead(module, self.head_chunk_tokens)
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
            with self._head.answering(self._request(micro_batch, output_args)):
                raw_output = self.module(**model_inputs, use_cache=False)
            model_output = self.prepare_model_outputs(raw_output, output_args, micro_batch)
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

    def prepare_model_outputs(
        self, output: SimpleNamespace, output_args: dict, micro_batch: TensorDict
    ) -> dict[str, torch.Tensor]:
        """Jagged [B, j] tensors aligned as verl's: the value at t belongs to the token at t + 1."""
        scores = output.logits.squeeze(0)
        if self.use_ulysses_sp:
            scores = gather_outputs_and_unpad(
                scores, gather_dim=0, unpad_dim=0, padding_size=output_args["pad_size"]
            )
        offsets = micro_batch["input_ids"].offsets()
        logprobs, entropy = (
            torch.nested.nested_tensor_from_jagged(column, offsets) for column in scores.unbind(-1)
        )
        model_output = {"log_probs": logprobs}
        if _flag(micro_batch, "calculate_entropy"):
            model_output["entropy"] = entropy
        elif _flag(micro_batch, "log_entropy"):
            model_output["logged_entropy"] = entropy.detach()
        return model_output

    @property
    def _dtype(self) -> torch.dtype:
        precision = self.engine_config.mixed_precision or {"param_dtype": "bf16"}
        return PrecisionType.to_dtype(precision["param_dtype"])

    def _request(self, micro_batch: TensorDict, output_args: dict) -> ScoreRequest:
        assert self.use_remove_padding, "verl's padded path masks attention by the response mask"
        predicts = predictor_positions(
            micro_batch["input_ids"].offsets(),
            micro_batch["attention_mask"],
            micro_batch["response_mask"],
        )
        if self.use_ulysses_sp:
            flags = torch.zeros_like(micro_batch["input_ids"].values())
            flags[predicts] = 1
            flags, _, _ = ulysses_pad_and_slice_inputs(
                flags.unsqueeze(0), None, sp_size=self.ulysses_sequence_parallel_size
            )
            predicts = flags.squeeze(0).nonzero().squeeze(-1)
        return ScoreRequest(
            positions=predicts,
            targets=output_args["input_ids_rmpad_rolled"].index_select(0, predicts),
            temperature=float(micro_batch["temperature"]),
            with_entropy=_flag(micro_batch, "calculate_entropy")
            or _flag(micro_batch, "log_entropy"),
        )


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


def _flag(micro_batch: TensorDict, key: str) -> bool:
    return bool(tu.get_non_tensor_data(data=micro_batch, key=key, default=False))


def install() -> None:
    """Register the engine (over verl's own where it has one) and tame gc on CPU; idempotent."""
    unpad_without_flash_attn()
    engines = EngineRegistry._engines.setdefault("language_model", {})
    for backend in ("fsdp", "fsdp2"):
        for device in ("cuda", "cpu"):
            engines.setdefault(backend, {})[device] = ScoringEngine
    if on_cpu():
        # FSDPEngine.to() collects garbage on every switch of mode: 0.1 to 0.3 s each, for nothing
        verl_fsdp.gc = SimpleNamespace(collect=lambda: 0)


def freeze_startup_objects() -> None:
    """Take what the start-up left out of every later garbage collection."""
    gc.collect()
    gc.freeze()
