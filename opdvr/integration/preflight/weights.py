"""How many parameters a model folder holds, read off the headers of its files."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from opdvr.integration.preflight.models import text_config
from opdvr.integration.vocabulary import read_json

# Bytes of a parameter, as config.json spells the dtype; 2 where it says nothing.
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_DEFAULT_BYTES = 2
# A header lists the tensors of one file; more than this is no header.
_LONGEST_HEADER = 100 << 20


@dataclass(frozen=True)
class Shape:
    """A model's size.

    Attributes:
        parameters: in all.
        layers, hidden, intermediate, kv_width: of config.json; kv_width is key heads times their
            size. 0 where it does not say.
        vocabulary: rows of the embeddings; 0 where config.json does not say.
        matrices: sum over the layers' weight matrices of rows plus columns: what one rank of LoRA
            on all of them adds. 0 where shapes are unknown.
    """

    parameters: int
    layers: int = 0
    hidden: int = 0
    intermediate: int = 0
    kv_width: int = 0
    vocabulary: int = 0
    matrices: int = 0

    @property
    def largest_layer(self) -> int:
        """Parameters that FSDP gathers at once: the embeddings, or one of the layers."""
        embeddings = self.vocabulary * self.hidden
        layers = max(self.parameters - embeddings, 0) // max(self.layers, 1)
        return max(embeddings, layers)


def read_shape(folder: Path) -> Shape | None:
    """The size of the model in a folder; None where no file of weights can be read.

    Counts the tensors of *.safetensors; without such files the total of an index, else the size
    of pytorch_model*.bin, over the bytes of the dtype that config.json names.
    """
    config = text_config(folder)
    heads = config.get("num_attention_heads") or 1
    hidden = config.get("hidden_size") or 0
    head_size = config.get("head_dim") or hidden // heads
    shapes = _tensor_shapes(folder)
    parameters = sum(map(math.prod, shapes.values())) if shapes else _by_bytes(folder, config)
    if not parameters:
        return None
    in_layers = [shape for name, shape in shapes.items() if ".layers." in name and len(shape) == 2]
    return Shape(
        parameters=parameters,
        layers=config.get("num_hidden_layers") or 0,
        hidden=hidden,
        intermediate=config.get("intermediate_size") or 0,
        kv_width=(config.get("num_key_value_heads") or heads) * head_size,
        vocabulary=config.get("vocab_size") or 0,
        matrices=sum(map(sum, in_layers)),
    )


def _tensor_shapes(folder: Path) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        shapes |= {name: entry["shape"] for name, entry in _header(file).items()}
    return shapes


def _header(file: Path) -> dict[str, dict]:
    """The tensors of one safetensors file: eight bytes of length, then a JSON object.

    Raises:
        ValueError: the file is damaged.
    """
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = stream.read(length) if 0 < length <= _LONGEST_HEADER else b""
    damaged = ValueError(f"{file} is no safetensors file, or a damaged one")
    if not text or len(text) < length:
        raise damaged
    try:
        entries = json.loads(text)
    except ValueError:
        raise damaged from None
    tensors = {name: entry for name, entry in entries.items() if name != "__metadata__"}
    end = max((entry.get("data_offsets", (0, 0))[1] for entry in tensors.values()), default=0)
    whole, size = len(start) + length + end, file.stat().st_size
    if size < whole:
        raise ValueError(f"{file} is cut off: it has {size} of {whole} bytes")
    return tensors


def _by_bytes(folder: Path, config: dict) -> int:
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "")
    per_parameter = DTYPE_BYTES.get(dtype, _DEFAULT_BYTES)
    for index in sorted(folder.glob("*.index.json")):
        total = read_json(index).get("metadata", {}).get("total_size")
        if total:
            return int(total) // per_parameter
    return sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin")) // per_parameter
