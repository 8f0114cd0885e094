"""Responses of a model to the prompts, sampled with vLLM and judged by the verifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from opdvr.diagnose.options import Measuring
from opdvr.eval.grading import CORRECT_ABOVE
from opdvr.eval.models import Model, context_length
from opdvr.eval.problems import Problem, prompt_ids
from opdvr.eval.samples import sample_of, sample_seed
from opdvr.eval.verdicts import Verifier
from opdvr.inference import Completion, EngineSettings, Request, Sampling, generate

# (settings, sampling, requests) to completions in any order; `generate` but for its process.
Sampler = Callable[[EngineSettings, Sampling, Sequence[Request]], Iterable[Completion]]


@dataclass(frozen=True)
class Rollout:
    """One response.

    Attributes:
        prompt: place of the problem. sample: 0 to n - 1.
        prompt_ids: the prompt by the model's own chat template.
        token_ids: the response, its end token included.
        finished: it has an end token; else it was cut.
        correct: the verifier's score is above 0.
    """

    prompt: int
    sample: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finished: bool
    correct: bool


def sample_with_vllm(
    settings: EngineSettings, sampling: Sampling, requests: Sequence[Request]
) -> Iterable[Completion]:
    """From an engine in a process of its own, whose memory is free when the last one is taken."""
    return generate(settings, sampling, requests, apart=True)


def roll_out(
    model: Model,
    tokenizer: Any,  # noqa: ANN401
    problems: Sequence[Problem],
    measuring: Measuring,
    verifier: Verifier,
    sampler: Sampler = sample_with_vllm,
) -> list[Rollout]:
    """`measuring.n` judged responses to each problem, by problem and sample.

    Raises:
        ValueError: no chat template, or a prompt as long as the model's context.
    """
    context = context_length(model.folder)
    prompts = prompt_ids(problems, tokenizer, measuring.thinking, context)
    requests = []
    for place, (problem, prompt) in enumerate(zip(problems, prompts, strict=True)):
        room = measuring.max_tokens
        if context is not None:
            room = min(room, context - len(prompt))
        for index in range(measuring.n):
            seed = sample_seed(measuring.seed, problem.key, index)
            requests.append(Request(place, index, prompt, room, seed))
    settings = _engine_settings(model, measuring, max(map(len, prompts)), context)
    completions = sorted(
        sampler(settings, Sampling(measuring.temperature), requests),
        key=lambda completion: (completion.prompt, completion.sample),
    )
    assert len(completions) == len(requests), "a completion for each request"
    verdicts = verifier(
        [problems[completion.prompt] for completion in completions],
        [sample_of(problems[completion.prompt], completion) for completion in completions],
    )
    return [
        Rollout(
            prompt=completion.prompt,
            sample=completion.sample,
            prompt_ids=prompts[completion.prompt],
            token_ids=completion.token_ids,
            finished=completion.finish == "stop",
            correct=verdict["score"] > CORRECT_ABOVE,
        )
        for completion, verdict in zip(completions, verdicts, strict=True)
    ]


def _engine_settings(
    model: Model, measuring: Measuring, longest: int, context: int | None
) -> EngineSettings:
    length = longest + measuring.max_tokens
    assert measuring.device is not None and measuring.dtype is not None, "resolved before"
    return EngineSettings(
        model=str(model.folder),
        device=measuring.device,
        dtype=measuring.dtype,
        max_model_len=length if context is None else min(length, context),
        tensor_parallel=measuring.tensor_parallel,
        max_num_seqs=measuring.max_num_seqs,
        gpu_memory_utilization=measuring.gpu_memory,
    )
