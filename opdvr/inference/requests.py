"""What goes into the runner and what comes out: plain values that travel between processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """How a model is loaded. The defaults are for one GPU.

    Attributes:
        model: a local folder with config.json, weights and tokenizer.
        device: "cpu" or "cuda".
        dtype: torch's name of the computing type.
        max_model_len: prompt plus response, in tokens; what the cache must hold for one sequence.
        tensor_parallel: GPUs that one engine spreads over.
        max_num_seqs: completions in the making at once, an engine.
        gpu_memory_utilization: share of each GPU's memory that the engine may take.
        cpu_cache_gib: memory for the attention cache on the CPU, GiB.
    """

    model: str
    device: str
    dtype: str
    max_model_len: int
    tensor_parallel: int = 1
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.9
    cpu_cache_gib: int = 4


@dataclass(frozen=True)
class Sampling:
    """One way to sample, for all requests; temperature 0 is greedy, top_k -1 is off."""

    temperature: float
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True)
class Request:
    """One completion to make.

    Attributes:
        prompt: which prompt it continues, by the caller's count.
        sample: which of the prompt's samples it is.
        token_ids: the prompt.
        max_tokens: where it is cut.
        seed: of its own random numbers; None draws from the engine's.
    """

    prompt: int
    sample: int
    token_ids: tuple[int, ...]
    max_tokens: int
    seed: int | None = None


@dataclass(frozen=True)
class Completion:
    """One finished completion.

    Attributes:
        prompt: the request's.
        sample: the request's.
        token_ids: what was sampled, the end token included.
        text: the same decoded, special tokens left out.
        finish: "stop" (an end token) or "length" (cut at max_tokens).
    """

    prompt: int
    sample: int
    token_ids: tuple[int, ...]
    text: str
    finish: str
