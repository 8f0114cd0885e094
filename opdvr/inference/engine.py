"""One vLLM engine in this process, advanced a little at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opdvr.inference.environment import set_variables
from opdvr.inference.requests import Completion, EngineSettings, Request, Sampling

# vLLM's block on the CPU, tokens.
_CPU_BLOCK = 128
# Tokens of one forward pass on the CPU; a longer prompt raises it.
_CPU_BATCH_TOKENS = 8192
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_GIB = 1024**3


class Engine:
    """Holds a loaded model; `advance` gives it work and takes what is finished."""

    def __init__(self, settings: EngineSettings, sampling: Sampling, engines: int = 1):
        set_variables(settings, engines)
        from transformers import AutoTokenizer
        from vllm import EngineArgs, LLMEngine

        self._sampling = sampling
        self._tokenizer = AutoTokenizer.from_pretrained(settings.model)
        arguments = engine_arguments(settings) | _within(settings, len(self._tokenizer))
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._waiting: dict[str, Request] = {}
        self._count = 0

    def advance(self, requests: Sequence[Request], seconds: float) -> list[Completion]:
        """Take `requests` on, and work for about `seconds`, less if nothing is left to do.

        Returns:
            What was finished meanwhile, of these requests or earlier ones, in no fixed order.

        Raises:
            RuntimeError: the engine ended a request in another way than by an end token or length.
        """
        for request in requests:
            self._add(request)
        until = time.monotonic() + seconds
        outputs = []
        while self._engine.has_unfinished_requests():
            outputs += self._engine.step()
            if time.monotonic() > until:
                break
        return self._completions(outputs)

    def _add(self, request: Request) -> None:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        name = str(self._count)
        self._count += 1
        self._waiting[name] = request
        parameters = SamplingParams(
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            top_k=self._sampling.top_k,
            max_tokens=request.max_tokens,
            seed=request.seed,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = TokensPrompt(prompt_token_ids=list(request.token_ids))
        self._engine.add_request(name, prompt, parameters)

    def _completions(self, outputs: list[Any]) -> list[Completion]:
        """Decoded together, as the trainer's reward manager decodes."""
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        texts = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        finished = []
        for output, token_ids, text in zip(outputs, ids, texts, strict=True):
            request = self._waiting.pop(output.request_id)
            finish = output.outputs[0].finish_reason
            if finish not in ("stop", "length"):
                raise RuntimeError(f"vLLM ended a request with {finish!r}")
            finished.append(
                Completion(request.prompt, request.sample, tuple(token_ids), text, finish)
            )
        return finished


def engine_arguments(settings: EngineSettings) -> dict[str, Any]:
    """vLLM's engine arguments."""
    config = _text_config(settings.model)
    arguments: dict[str, Any] = {
        "model": settings.model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "tensor_parallel_size": settings.tensor_parallel,
        "max_num_seqs": settings.max_num_seqs,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "disable_log_stats": True,
    }
    if settings.tensor_parallel > 1:
        # Inside a Ray actor vLLM would otherwise start Ray workers of its own.
        arguments["distributed_executor_backend"] = "mp"
    if settings.device == "cpu":
        arguments |= {
            "enforce_eager": True,
            # vLLM's CPU rms_norm kernel is wrong on the strided q_norm and k_norm input of Qwen3.
            "compilation_config": {"custom_ops": ["none"]},
            # A request with its own seed that is prefilled in two parts fails on the CPU.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(_CPU_BATCH_TOKENS, settings.max_model_len),
            "num_gpu_blocks_override": _cpu_blocks(settings, config),
        }
    return arguments


def _within(settings: EngineSettings, tokens: int) -> dict[str, Any]:
    """Further arguments that keep samples within the tokenizer's `tokens` tokens."""
    if _text_config(settings.model).vocab_size <= tokens:
        return {}
    from opdvr.inference.vocabulary import TOKENS_KEY, WithinTokenizer

    return {"logits_processors": [WithinTokenizer], "additional_config": {TOKENS_KEY: tokens}}


def _text_config(model: str) -> Any:  # noqa: ANN401
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(Path(model))).get_text_config()


def _cpu_blocks(settings: EngineSettings, config: Any) -> int | None:  # noqa: ANN401
    """Cache blocks for all sequences at full length, or None (fill the memory) if they do not fit.

    A small model would get millions of blocks, which take seconds to lay out.
    """
    blocks = settings.max_num_seqs * (-(-settings.max_model_len // _CPU_BLOCK)) + 1
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    a_token = 2 * config.num_hidden_layers * heads * width * _BYTES.get(settings.dtype, 4)
    fits = blocks * _CPU_BLOCK * a_token <= settings.cpu_cache_gib * _GIB
    return blocks if fits else None
