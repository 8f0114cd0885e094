"""The teacher on a vLLM engine of our own, with the tiled head in place of vLLM's logits.

The engine steps in a thread of its own and its outputs are read as they leave the core: tensors,
never a Python object a token. vLLM samples one token behind every scored sequence, the least that
it can be asked for. Nothing reads the prefix cache: its tokens have no hidden states to score.
"""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np

from opdvr.teacher.engines import (
    SCORING_SEQUENCES,
    Done,
    EngineKind,
    Failed,
    Scores,
    Sequence,
    TeacherError,
    TeacherSettings,
    Wanted,
)

KIND = EngineKind(
    name="vllm",
    factory="opdvr.teacher.vllm:VllmEngine",
    any_temperature=True,
    any_ids=True,
    hidden_states=False,
    entropy=True,
    local_weights=True,
)
# How often somebody who waits for the engine's thread looks whether it is still there.
_ALIVE_S = 1.0
# Attention cache on the CPU, GiB.
_CPU_CACHE_GIB = 1


class VllmEngine:
    """An `Engine` that loads the model here; `llm` is vLLM's own engine below it."""

    def __init__(self, settings: TeacherSettings, wanted: Wanted, done: Done, failed: Failed):
        self._wanted, self._done, self._failed = wanted, done, failed
        self.llm = _load(settings, wanted)
        self._sequences: dict[str, Sequence] = {}
        self._tensors: dict[str, Any] = {}
        self._inbox: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="teacher-vllm", daemon=True)
        self._thread.start()

    def add(self, sequences: list[Sequence]) -> None:
        """Score these; `done` is called from the engine's thread."""
        self._inbox.put(sequences)

    def sleep(self) -> None:
        """Weights to the host's memory, cache away."""
        self._in_the_thread(lambda: self.llm.sleep(level=1))

    def wake(self) -> None:
        """Weights and cache back."""
        self._in_the_thread(self.llm.wake_up)

    def close(self) -> None:
        """End the thread, then the engine."""
        self._inbox.put(None)
        self._thread.join()
        self.llm.engine_core.shutdown()

    def _in_the_thread(self, action: Any) -> None:  # noqa: ANN401
        future: Future = Future()
        self._inbox.put((action, future))
        while not wait([future], timeout=_ALIVE_S).done:
            if not self._thread.is_alive():
                raise TeacherError("the thread of the teacher's engine has ended")
        future.result()

    def _run(self) -> None:
        try:
            while self._take():
                self._step()
        except BaseException as error:  # the thread's end: whoever waits for scores must hear of it
            self._failed(error)
            raise

    def _take(self) -> bool:
        """Take what came in, waiting only where there is nothing else to do; False at the end."""
        while True:
            try:
                item = self._inbox.get(block=not self._sequences)
            except queue.Empty:
                return True
            if item is None:
                return False
            if isinstance(item, list):
                for sequence in item:
                    self._start(sequence)
            else:
                action, future = item
                try:
                    future.set_result(action())
                except Exception as error:
                    future.set_exception(error)
                    raise

    def _start(self, sequence: Sequence) -> None:
        from vllm import SamplingParams, TokensPrompt

        from opdvr.teacher.vllm_head import CANDIDATES, START

        extra: dict[str, Any] = {START: sequence.response_start}
        if sequence.candidates is not None:
            extra[CANDIDATES] = sequence.candidates
        parameters = SamplingParams(
            temperature=0,
            max_tokens=1,
            detokenize=False,
            prompt_logprobs=0,  # how many is for the tiled head to say; this makes vLLM ask it
            extra_args=extra,
        )
        prompt = TokensPrompt(prompt_token_ids=sequence.token_ids.tolist())
        name = str(sequence.key)
        request = self.llm.input_processor.process_inputs(name, prompt, parameters)
        self._sequences[name] = sequence
        self.llm.engine_core.add_request(request)

    def _step(self) -> None:
        for output in self.llm.engine_core.get_output().outputs:
            name = output.request_id
            if output.new_prompt_logprobs_tensors is not None:
                self._tensors[name] = output.new_prompt_logprobs_tensors
            if output.finished:
                sequence = self._sequences.pop(name)
                if name not in self._tensors:
                    raise TeacherError(
                        f"vLLM ended {sequence.name} with {output.finish_reason} and no scores"
                    )
                self._done(sequence.key, self._unpack(self._tensors.pop(name), sequence))

    def _unpack(self, tensors: Any, sequence: Sequence) -> Scores:  # noqa: ANN401
        """Columns in the order of `vllm_head`: log-prob, entropy, top K, candidates."""
        values, k = tensors.logprobs.numpy(), self._wanted.top_k
        if len(values) != sequence.response_length:
            raise TeacherError(
                f"vLLM scored {len(values)} of {sequence.response_length} tokens of {sequence.name}"
            )
        first = 1 + self._wanted.with_entropy
        candidates = None
        if sequence.candidates is not None:
            candidates = np.ascontiguousarray(values[:, first + k :])
        return Scores(
            log_probs=values[:, 0].copy(),
            entropy=values[:, 1].copy() if self._wanted.with_entropy else None,
            top_ids=tensors.logprob_token_ids.numpy() if k else None,
            top_log_probs=values[:, first : first + k].copy() if k else None,
            candidate_log_probs=candidates,
        )


def _load(settings: TeacherSettings, wanted: Wanted) -> Any:  # noqa: ANN401
    from opdvr.inference.engine import engine_arguments
    from opdvr.inference.environment import set_variables
    from opdvr.inference.requests import EngineSettings

    plain = EngineSettings(
        model=settings.model,
        device=settings.device,
        dtype=settings.dtype,
        max_model_len=settings.max_tokens + 1,  # and the token that vLLM samples
        tensor_parallel=settings.tensor_parallel,
        max_num_seqs=SCORING_SEQUENCES,
        gpu_memory_utilization=settings.memory_utilization,
        cpu_cache_gib=_CPU_CACHE_GIB,
    )
    # Outputs are read from the core itself, so it has to be in this process.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # The sampled token may stand one beyond the model's positions; it is never computed on.
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    set_variables(plain)
    from vllm import EngineArgs, LLMEngine

    arguments = engine_arguments(plain) | {
        "skip_tokenizer_init": True,
        "trust_remote_code": settings.trust_remote_code,
        "enable_prefix_caching": False,
        "enforce_eager": True,  # graphs are for decoding; here every batch is a prefill
        "enable_sleep_mode": settings.shares_devices,
        "worker_extension_cls": "opdvr.teacher.vllm_head.ScoringExtension",
    }
    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    how = engine.collective_rpc("score_with_tiled_head", args=(wanted,))[0]
    print(f"opdvr: teacher: vLLM engine on {Path(settings.model).name}, scoring with {how}")
    return engine
