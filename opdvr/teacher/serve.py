"""`opdvr teacher serve`: a model behind vLLM's own server, set up for scoring."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from opdvr.inference.environment import variables
from opdvr.inference.requests import EngineSettings
from opdvr.teacher.engines import SCORING_SEQUENCES

DEFAULT_PORT = 8000
# More than any run asks for; what is not asked for costs nothing.
DEFAULT_MAX_LOGPROBS = 128
# vLLM does not reckon with the logits of prompts when it sizes its cache: room for them.
DEFAULT_MEMORY_UTILIZATION = 0.85
_CPU_CACHE_GIB = 4
# Logits of one batch in the model's dtype, their log-softmax and its copy: bytes a number, and
# what they may take in all. It bounds the tokens of a batch: 2,304 at 152,000 ids.
_LOGIT_BYTES = 12
_LOGITS_BYTES = 4 * 1024**3
_FEWEST_BATCH_TOKENS, _MOST_BATCH_TOKENS, _BATCH_STEP = 512, 8192, 256


@dataclass(frozen=True)
class ServeOptions:
    """What the command line says.

    Attributes:
        model: folder or hub name.
        host, port: where it listens.
        device: "cpu" or "cuda".
        dtype: torch's name, or vLLM's "auto".
        max_logprobs: the largest LOG_PROB_TOP_K that it will answer.
        max_model_len: tokens of a sequence and one more; None is the model's own.
        tensor_parallel: GPUs.
        memory_utilization: share of a GPU's memory.
        served_model_name: what clients call it; None is `model`.
        positions: the model's own length, if its folder is there.
        vocabulary: its ids, likewise.
        further: flags for vLLM, which win.
    """

    model: str
    host: str
    port: int
    device: str
    dtype: str
    max_logprobs: int
    max_model_len: int | None
    tensor_parallel: int
    memory_utilization: float
    served_model_name: str | None
    positions: int | None
    vocabulary: int | None
    further: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Where a client on this machine finds it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def to_json(self) -> str:
        """For `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServeOptions:
        """What `to_json` wrote."""
        values = json.loads(text)
        return cls(**values | {"further": tuple(values["further"])})

    def engine_settings(self) -> EngineSettings:
        """The same for opdvr.inference, which knows what vLLM needs on a CPU."""
        return EngineSettings(
            model=self.model,
            device=self.device,
            dtype=self.dtype,
            max_model_len=self.max_model_len or self.positions or _MOST_BATCH_TOKENS,
            tensor_parallel=self.tensor_parallel,
            max_num_seqs=SCORING_SEQUENCES,
            gpu_memory_utilization=self.memory_utilization,
            cpu_cache_gib=_CPU_CACHE_GIB,
        )

    def batch_tokens(self) -> int:
        """Tokens of one forward pass, so that their logits fit."""
        if self.vocabulary is None:
            return _FEWEST_BATCH_TOKENS
        fitting = _LOGITS_BYTES // (_LOGIT_BYTES * self.vocabulary) // _BATCH_STEP * _BATCH_STEP
        return max(_FEWEST_BATCH_TOKENS, min(_MOST_BATCH_TOKENS, fitting))

    def vllm_flags(self) -> list[str]:
        """Arguments of `vllm serve`."""
        flags = [self.model, "--host", self.host, "--port", str(self.port)]
        flags += ["--dtype", self.dtype, "--max-logprobs", str(self.max_logprobs)]
        flags += ["--max-num-seqs", str(SCORING_SEQUENCES)]
        flags += ["--max-num-batched-tokens", str(self.batch_tokens()), "--enable-chunked-prefill"]
        # Scored tokens are not read from a prefix cache; graphs are for decoding; the sampling
        # defaults of a model are not for scoring.
        flags += ["--no-enable-prefix-caching", "--enforce-eager", "--generation-config", "vllm"]
        flags += ["--disable-log-stats", "--disable-uvicorn-access-log"]
        flags += ["--uvicorn-log-level", "warning"]
        if self.max_model_len is not None:
            flags += ["--max-model-len", str(self.max_model_len)]
        if self.served_model_name is not None:
            flags += ["--served-model-name", self.served_model_name]
        return (
            flags
            + (self._cpu_flags() if self.device == "cpu" else self._gpu_flags())
            + [*self.further]
        )

    def _gpu_flags(self) -> list[str]:
        flags = ["--gpu-memory-utilization", str(self.memory_utilization)]
        return flags + ["--tensor-parallel-size", str(self.tensor_parallel)]

    def _cpu_flags(self) -> list[str]:
        from opdvr.inference.engine import engine_arguments

        arguments = engine_arguments(self.engine_settings())
        flags = ["--compilation-config", json.dumps(arguments["compilation_config"])]
        if arguments["num_gpu_blocks_override"] is not None:
            flags += ["--num-gpu-blocks-override", str(arguments["num_gpu_blocks_override"])]
        return flags


def environment(options: ServeOptions, api_key: str) -> dict[str, str]:
    """The server's environment: this one, what vLLM needs, and the key, which no `ps` shows."""
    found = variables(options.engine_settings()) | dict(os.environ)
    found["VLLM_NO_USAGE_STATS"] = "1"  # vLLM would tell its makers of every start
    if options.device == "cpu":
        found["CUDA_VISIBLE_DEVICES"] = ""
    root = str(Path(__file__).parents[2])
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [root, found.get("PYTHONPATH", "")]))
    if api_key:
        found["VLLM_API_KEY"] = api_key
    beyond = options.positions is not None and options.max_model_len == options.positions + 1
    if beyond:  # the one token that vLLM samples behind a sequence is never computed on
        found["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    return found


def require_free_port(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, before anything loads.

    Raises:
        ValueError: naming the options.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the server does: a port that a server has just left is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            reason = error.strerror
        else:
            return
    raise ValueError(
        f"--host {host} --port {port}: cannot listen there ({reason}); is another server running? "
        "Give another --port"
    )


def become_server(options: ServeOptions, api_key: str) -> None:
    """Replace this process by the server; does not return.

    Raises:
        ValueError: the port is taken.
    """
    require_free_port(options.host, options.port)
    command = [sys.executable, "-m", "opdvr.teacher.vllm_process", options.to_json()]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment(options, api_key))
