"""LoRA on verl's FSDP2 engine: the adapter trains, everything else sees one dense model.

verl hands vLLM the adapter's tensors, which vLLM's CPU backend cannot run, and saves a peft state
dict under the name of a model. Here the rollout and every saved model folder get merged weights,
W + scaling * B A (Hu et al. 2021, arXiv 2106.09685), and the adapter is saved beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoModelForCausalLM

_ADAPTER = "default"  # the one that verl makes
_PREFIX = "base_model.model."
_BASE = ".base_layer"
_LORA = ".lora_"


def has_adapter(module: nn.Module) -> bool:
    """Whether peft has put an adapter on the model."""
    return hasattr(module, "peft_config")


def merged_parameters(
    module: nn.Module, device: torch.device | str | int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of the model as it would be without peft, whole, on `device`.

    Every rank has to go through all of them: each tensor is gathered when its turn comes. Merged
    weights are new tensors; the model itself is left as it is.
    """
    state = module.state_dict()
    for name, tensor in state.items():
        if _LORA in name:
            continue
        layer_name = name.removesuffix(f"{_BASE}.weight")
        value = _whole(tensor, device)
        if layer_name != name:
            parts = [f"{layer_name}.{part}.{_ADAPTER}.weight" for part in ("lora_A", "lora_B")]
            down, up = (_whole(state[part], device) for part in parts)
            value = _merged(value, down, up, module.get_submodule(layer_name))
        yield name.removeprefix(_PREFIX).replace(_BASE, ""), value


def _merged(
    weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, layer: nn.Module
) -> torch.Tensor:
    """weight [out, in], down [r, in], up [out, r]; the sum in float32, in the weight's dtype."""
    delta = layer.scaling[_ADAPTER] * (up.float() @ down.float())
    if layer.fan_in_fan_out:  # GPT-2's layers hold their weights transposed
        delta = delta.T
    return (weight.float() + delta).to(weight.dtype)


def _whole(tensor: torch.Tensor, device: torch.device | str | int) -> torch.Tensor:
    tensor = tensor.detach().to(device)  # a shard that is offloaded cannot be gathered on the CPU
    return getattr(tensor, "full_tensor", lambda: tensor)()


def save_adapter(module: nn.Module, folder: Path, device: torch.device | str | int) -> None:
    """The adapter as peft saves one, written by rank 0; every rank has to call this."""
    state = {
        name: _whole(tensor, device).cpu()
        for name, tensor in module.state_dict().items()
        if _LORA in name
    }
    if torch.distributed.get_rank() == 0:
        module.save_pretrained(str(folder), state_dict=state, save_embedding_layers=False)


def save_merged(module: nn.Module, folder: Path, device: torch.device | str | int) -> None:
    """The merged weights into `folder`, which holds config and tokenizer, by rank 0; as above."""
    state = {name: value.cpu() for name, value in merged_parameters(module, device)}
    if torch.distributed.get_rank() == 0:
        with init_empty_weights():
            model = AutoModelForCausalLM.from_config(module.config)
        model.generation_config = module.generation_config
        model.save_pretrained(str(folder), state_dict=state)
