"""The inference server's batch call against an engine that answers as it is told."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("verl")
pytest.importorskip("vllm")

from case_setup import END, LENGTH  # noqa: E402

from opdvr.integration.rollout import _assemble  # noqa: E402
from opdvr.integration.vllm_server import BatchServer, _sampled_logprobs  # noqa: E402

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 8}


class FlatLogprobs:
    """vLLM's flat form: one list of entries, cut into positions."""

    def __init__(self, *positions):
        entries = [entry for position in positions for entry in position.items()]
        self.token_ids = [token for token, _ in entries]
        self.logprobs = [value for _, value in entries]
        sizes = np.cumsum([0, *(len(position) for position in positions)])
        self.start_indices, self.end_indices = sizes[:-1].tolist(), sizes[1:].tolist()

    def __len__(self):
        return len(self.start_indices)


class Engine:
    """Samples token 7 up to the limit, or what `answers` has for the prompt."""

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.asked = []

    async def generate(self, prompt, sampling_params, request_id):
        ids = prompt["prompt_token_ids"]
        self.asked.append((prompt, sampling_params))
        default = [7] * sampling_params.max_tokens, "length", sampling_params.max_tokens
        tokens, reason, values = self.answers.get(tuple(ids), default)
        logprobs = FlatLogprobs(*[{token: -0.5} for token in tokens[:values]])
        answer = SimpleNamespace(token_ids=tokens, logprobs=logprobs, finish_reason=reason)
        yield SimpleNamespace(outputs=[answer])


def ask(prompts, answers=None, max_model_len=10):
    server = object.__new__(BatchServer)
    server.config = SimpleNamespace(max_model_len=max_model_len)
    server.engine = Engine(answers)
    return asyncio.run(server.generate_batch(prompts, SAMPLING)), server.engine


def test_a_response_cut_by_the_models_context_counts_as_cut():
    # 10 tokens of context less 4 of prompt leave 6, under the 8 that a response may have.
    result, engine = ask([[1, 2, 3, 4], [1]], {(1,): ([7, END], "stop", 2)})
    assert [parameters.max_tokens for _, parameters in engine.asked] == [6, 8]
    assert result["lengths"].tolist() == [6, 2] and result["finish"].tolist() == [LENGTH, 0]
    batch = _assemble([[1, 2, 3, 4], [1]], [result], 4, 8, END).batch
    assert batch["truncated"].tolist() == [True, False]


def test_a_prompt_that_fills_the_context_is_named():
    with pytest.raises(ValueError, match="a prompt of 10 tokens leaves no room .* of 10 tokens"):
        ask([list(range(10))])


def test_the_engine_gets_ids_and_makes_no_text():
    _, engine = ask([[1, 2]])
    ((prompt, parameters),) = engine.asked
    assert prompt["prompt_token_ids"] == [1, 2] and "prompt" not in prompt
    assert parameters.detokenize is False
    assert parameters.logprobs == 0  # the sampled token's alone, at the sampling temperature


def test_the_sampled_token_is_looked_up_by_its_id():
    # Sampled 99 stands third of three; sampled 5 is alone: -7.0 and -0.3.
    flat = FlatLogprobs({5: -0.1, 6: -2.5, 99: -7.0}, {5: -0.3})
    assert _sampled_logprobs([99, 5], flat) == [-7.0, -0.3]


def test_a_position_without_its_token_is_an_error():
    with pytest.raises(ValueError, match="99"):
        _sampled_logprobs([99, 5], FlatLogprobs({5: -0.1, 6: -2.5}, {5: -0.3}))


def test_too_few_log_probs_are_an_error():
    with pytest.raises(RuntimeError, match="4 log-probs for 5 sampled tokens"):
        ask([[1], [2]], {(2,): ([7] * 5, "length", 4)})


def test_too_few_log_probs_name_the_sample():
    with pytest.raises(RuntimeError, match="row 1"):
        ask([[1], [2]], {(2,): ([7] * 5, "length", 4)})


def test_a_request_that_the_engine_gave_up_is_an_error():
    with pytest.raises(RuntimeError, match="ended a request with 'abort'"):
        ask([[1]], {(1,): ([7], "abort", 1)})
