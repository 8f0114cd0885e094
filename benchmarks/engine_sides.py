"""The sides of `engine`: one vLLM engine, asked through ours or through its own prompt_logprobs."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opdvr.teacher.engines import Scores, Sequence, TeacherSettings, Wanted
from opdvr.teacher.vllm import VllmEngine

# Random ids stay clear of the special ones.
FIRST_ID = 2
OURS = "ours"
PEERS = DICTIONARIES, FLAT_LISTS = "prompt_logprobs, dictionaries", "prompt_logprobs, flat lists"


@dataclass
class Scorers:
    """One loaded engine and the ways to score with it.

    A way takes sequences and returns their scores in the same order.
    """

    model: str
    max_tokens: int
    top_k: int
    device: str
    dtype: str
    ways: dict[str, Callable[[list[Sequence]], list[Scores]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._finished: queue.SimpleQueue = queue.SimpleQueue()
        settings = TeacherSettings(self.model, self.device, self.dtype, self.max_tokens)
        wanted = Wanted(top_k=self.top_k)
        self._engine = VllmEngine(settings, wanted, self._done, self._failed)
        self._runner = self._engine.llm.model_executor.driver_worker.worker.model_runner
        self._engine.llm.model_config.max_logprobs = self.top_k  # vLLM refuses more
        self._tiled = self._runner._get_prompt_logprobs_dict
        self.ways = {
            OURS: self.ours,
            DICTIONARIES: self.dictionaries,
            FLAT_LISTS: self.flat_lists,
        }

    def _done(self, key: int, scores: Scores) -> None:
        self._finished.put((key, scores))

    def _failed(self, failure: BaseException) -> None:
        self._finished.put((None, failure))

    def ours(self, sequences: list[Sequence]) -> list[Scores]:
        """Through `VllmEngine`, as a run does."""
        self._runner._get_prompt_logprobs_dict = self._tiled
        self._engine.add(sequences)
        found = {}
        while len(found) < len(sequences):
            key, scores = self._finished.get()
            if key is None:
                raise scores
            found[key] = scores
        return [found[sequence.key] for sequence in sequences]

    def dictionaries(self, sequences: list[Sequence]) -> list[Scores]:
        """vLLM's answer as it comes, a dictionary of objects a token."""
        outputs = self._stock(sequences, flat=False)
        return [
            _from_dictionaries(outputs[sequence.key], sequence, self.top_k)
            for sequence in sequences
        ]

    def flat_lists(self, sequences: list[Sequence]) -> list[Scores]:
        """vLLM's answer in flat lists, its leanest public form."""
        outputs = self._stock(sequences, flat=True)
        return [_from_flat(outputs[sequence.key], sequence, self.top_k) for sequence in sequences]

    def _stock(self, sequences: list[Sequence], flat: bool) -> dict[int, Any]:
        from vllm import SamplingParams, TokensPrompt

        # The instance's attribute hides vLLM's own method.
        self._runner.__dict__.pop("_get_prompt_logprobs_dict", None)
        llm, found = self._engine.llm, {}
        parameters = SamplingParams(
            temperature=0,
            max_tokens=1,
            detokenize=False,
            prompt_logprobs=self.top_k,
            flat_logprobs=flat,
        )
        for sequence in sequences:
            prompt = TokensPrompt(prompt_token_ids=sequence.token_ids.tolist())
            llm.add_request(str(sequence.key), prompt, parameters)
        while llm.has_unfinished_requests():
            for output in llm.step():
                if output.finished:
                    found[int(output.request_id)] = output.prompt_logprobs
        return found

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


def _from_dictionaries(entries: list, sequence: Sequence, top_k: int) -> Scores:
    start, ids = sequence.response_start, sequence.token_ids.tolist()
    log_probs = np.array(
        [entries[place][ids[place]].logprob for place in range(start, len(ids))], dtype=np.float32
    )
    if not top_k:
        return Scores(log_probs)
    top_ids = np.empty((len(log_probs), top_k), dtype=np.int32)
    top_log_probs = np.empty((len(log_probs), top_k), dtype=np.float32)
    for row, entry in enumerate(entries[start:]):
        for token, value in entry.items():
            if value.rank <= top_k:
                top_ids[row, value.rank - 1] = token
                top_log_probs[row, value.rank - 1] = value.logprob
    return Scores(log_probs, top_ids=top_ids, top_log_probs=top_log_probs)


def _from_flat(flat: Any, sequence: Sequence, top_k: int) -> Scores:  # noqa: ANN401
    """Positions 1 on have the token that came first, then K by falling probability."""
    width, start = top_k + 1, sequence.response_start
    first = flat.start_indices[start]
    values = np.array(flat.logprobs[first:], dtype=np.float32).reshape(-1, width)
    if not top_k:
        return Scores(values[:, 0])
    ids = np.array(flat.token_ids[first:], dtype=np.int32).reshape(-1, width)
    return Scores(values[:, 0], top_ids=ids[:, 1:], top_log_probs=values[:, 1:])


def random_sequences(
    rows: int, prompt: int, response: int, vocabulary: int, seed: int
) -> list[Sequence]:
    """Rows of random ids, all of one length."""
    ids = np.random.default_rng(seed).integers(FIRST_ID, vocabulary, (rows, prompt + response))
    return [
        Sequence(seed * rows + row, ids[row].astype(np.int32), prompt, "random", f"row {row}")
        for row in range(rows)
    ]
