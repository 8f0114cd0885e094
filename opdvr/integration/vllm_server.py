"""verl's vLLM server with one call for a whole batch and packed arrays back."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import uuid4

import numpy as np
import ray

from opdvr.integration.early_server import ServerClass
from opdvr.integration.feed import TEACHER_KEYS, TEACHER_PLACES, TeacherFeed
from opdvr.integration.platform import import_verl_without_the_harmony_vocabulary

import_verl_without_the_harmony_vocabulary()

from verl.workers.rollout.vllm_rollout.vllm_async_server import (  # noqa: E402
    SamplingParams,
    TokensPrompt,
    vLLMHttpServerBase,
    vLLMReplica,
)
from vllm.sampling_params import RequestOutputKind  # noqa: E402

FINISH_CODES = {"stop": 0, "length": 1, "abort": 2}


class BatchServer(vLLMHttpServerBase):
    """Adds `generate_batch` to verl's server."""

    _teacher_services: tuple[Any, ...] = ()

    async def hand_responses_to(self, services: list[Any]) -> None:
        """From now on the responses of training batches go to these as they finish."""
        self._teacher_services = tuple(services)

    async def generate_batch(
        self,
        prompts: list[list[int]],
        sampling: dict[str, Any],
        rows: list[tuple[str, str]] | None = None,
    ) -> dict[str, np.ndarray]:
        """Sample one response a prompt.

        rows: (data_source, what messages call it) of each prompt, where the teacher is to score
            the responses.

        Returns packed arrays: token_ids [sum of lengths] int64, logprobs [sum] float32 (nats, of
        the sampled token at the sampling temperature), lengths [B] int64, finish [B] int8
        (FINISH_CODES), seconds [B] float32 from call to end, and of the responses handed to the
        teacher teacher_keys, teacher_places [B] int64 (NOWHERE where none took it).

        Raises:
            RuntimeError: the engine aborted a request, or returned another number of log-probs.
        """
        started = time.perf_counter()
        feed = TeacherFeed(self._teacher_services) if rows and self._teacher_services else None

        async def generate(row: int, prompt: list[int]) -> tuple:
            result = await self._generate_one(row, prompt, sampling, started)
            key = 0 if feed is None else feed.add(prompt, result[0], *rows[row])
            return *result, key

        results = await asyncio.gather(*(generate(row, p) for row, p in enumerate(prompts)))
        ids, logprobs, finish, seconds, keys = zip(*results, strict=True)
        packed = {
            "token_ids": np.concatenate([np.asarray(row, dtype=np.int64) for row in ids]),
            "logprobs": np.concatenate([np.asarray(row, dtype=np.float32) for row in logprobs]),
            "lengths": np.array([len(row) for row in ids], dtype=np.int64),
            "finish": np.array(finish, dtype=np.int8),
            "seconds": np.array(seconds, dtype=np.float32),
        }
        if feed is not None:
            packed[TEACHER_KEYS] = np.array(keys, dtype=np.int64)
            packed[TEACHER_PLACES] = await feed.places(keys)
        return packed

    async def _generate_one(
        self, row: int, prompt: list[int], sampling: dict[str, Any], started: float
    ) -> tuple[list[int], list[float], int, float]:
        room = self.config.max_model_len - len(prompt)
        if room <= 0:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens leaves no room in the model's context of "
                f"{self.config.max_model_len} tokens"
            )
        parameters = SamplingParams(
            **{**sampling, "max_tokens": min(sampling["max_tokens"], room)},
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final = None
        async for output in self.engine.generate(
            prompt=TokensPrompt(prompt_token_ids=prompt),
            sampling_params=parameters,
            request_id=uuid4().hex,
        ):
            final = output
        answer = final.outputs[0]
        ids = list(answer.token_ids)
        if len(answer.logprobs) != len(ids):
            raise RuntimeError(
                f"vLLM returned {len(answer.logprobs)} log-probs for {len(ids)} sampled tokens of "
                f"row {row} of this server's share"
            )
        logprobs = _sampled_logprobs(ids, answer.logprobs)
        if answer.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended a request with {answer.finish_reason!r}")
        return ids, logprobs, FINISH_CODES[answer.finish_reason], time.perf_counter() - started


def _sampled_logprobs(ids: list[int], flat: Any) -> list[float]:  # noqa: ANN401
    """The sampled tokens' values, looked up by id: a position may hold more than one entry."""
    if flat.token_ids == ids:
        return flat.logprobs
    values = []
    for token, start, end in zip(ids, flat.start_indices, flat.end_indices, strict=True):
        place = flat.token_ids.index(token, start, end)
        values.append(flat.logprobs[place])
    return values


class BatchReplica(vLLMReplica):
    """verl's replica, launching our server class."""

    def __init__(self, *args: object, **kwargs: object):
        super().__init__(*args, **kwargs)
        self.server_class = ServerClass(ray.remote(num_cpus=1)(BatchServer))
