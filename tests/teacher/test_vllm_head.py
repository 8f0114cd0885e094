"""Scores inside vLLM's worker: prompts in pieces, several at once, a head that is not plain."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")
from vllm.model_executor.layers.vocab_parallel_embedding import (  # noqa: E402
    UnquantizedEmbeddingMethod,
)

from opdvr.teacher.engines import Wanted  # noqa: E402
from opdvr.teacher.vllm_head import CANDIDATES, START, TiledPromptScores  # noqa: E402

HIDDEN, VOCABULARY = 6, 11
WIDE = Wanted(top_k=2, with_entropy=True)


class Model:
    """One linear layer; `twist` makes its logits something else."""

    def __init__(self, twist=False, tp_size=1):
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(VOCABULARY + 3, HIDDEN, generator=generator)  # three of padding
        self.lm_head = SimpleNamespace(
            weight=weight,
            org_vocab_size=VOCABULARY,
            tp_size=tp_size,
            quant_method=object.__new__(UnquantizedEmbeddingMethod),
        )
        self.logits_processor = SimpleNamespace(scale=1.0, soft_cap=None)
        self._twist = twist

    def compute_logits(self, hidden):
        logits = hidden @ self.lm_head.weight[:VOCABULARY].T
        return logits.square() if self._twist else logits


class Runner:
    """The part of vLLM's model runner that is read; prompts are scheduled by the test."""

    def __init__(self, model, prompts, extras):
        self.model = model
        self.requests = {
            name: SimpleNamespace(
                prompt_token_ids=ids,
                num_computed_tokens=0,
                sampling_params=SimpleNamespace(extra_args=extras[name]),
            )
            for name, ids in prompts.items()
        }
        self.num_prompt_logprobs = dict.fromkeys(prompts, 0)
        self.states = {name: torch.randn(len(ids), HIDDEN) for name, ids in prompts.items()}

    def run(self, scorer, scheduled):
        """One batch: these numbers of tokens of these requests; what the scorer answers."""
        names = list(scheduled)
        rows, starts = [], [0]
        for name in names:
            begin = self.requests[name].num_computed_tokens
            rows.append(self.states[name][begin : begin + scheduled[name]])
            starts.append(starts[-1] + len(rows[-1]))
        self.query_start_loc = SimpleNamespace(np=np.array(starts))
        self.input_batch = SimpleNamespace(
            req_id_to_index={name: place for place, name in enumerate(names)}
        )
        answer = scorer(torch.cat(rows), scheduled)
        for name in names:
            self.requests[name].num_computed_tokens += scheduled[name]
        return answer


def setting(model):
    torch.manual_seed(1)
    prompts = {"a": [3, 1, 4, 1, 5, 9, 2], "b": [6, 5, 3]}
    candidates = np.array([[0, -1], [1, 2], [10, 3], [4, 4]], dtype=np.int32)
    extras = {"a": {START: 3, CANDIDATES: candidates}, "b": {START: 1}}
    extras["b"][CANDIDATES] = candidates[:2]
    return Runner(model, prompts, extras)


def expected(runner, name):
    """[T, 1 + 1 + 2 + 2] dense, in float64."""
    request = runner.requests[name]
    start = request.sampling_params.extra_args[START]
    logits = runner.model.compute_logits(runner.states[name][start - 1 : -1]).double()
    log_p = logits.log_softmax(-1)
    came = torch.tensor(request.prompt_token_ids[start:])[:, None]
    chosen = torch.from_numpy(request.sampling_params.extra_args[CANDIDATES]).long()
    at = log_p.gather(1, chosen.clamp(min=0)) * (chosen >= 0)
    entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
    return torch.cat((log_p.gather(1, came), entropy, log_p.topk(2).values, at), -1)


PIECES = {
    "whole": [{"a": 7, "b": 3}],
    "in-pieces": [{"a": 2}, {"a": 3, "b": 1}, {"b": 2, "a": 1}, {"a": 1}],
    "last-token-alone": [{"a": 6, "b": 2}, {"b": 1}, {"a": 1}],
    "within-the-prompt": [{"a": 1}, {"a": 1}, {"a": 1}, {"a": 4}, {"b": 3}],
}


@pytest.mark.parametrize("model", [Model(), Model(twist=True), Model(tp_size=2)])
@pytest.mark.parametrize("pieces", PIECES)
def test_any_division_into_batches_gives_the_dense_scores(model, pieces):
    runner = setting(model)
    scorer, answers = TiledPromptScores(runner, WIDE), {}
    for scheduled in PIECES[pieces]:
        answers |= runner.run(scorer, scheduled)
    assert sorted(answers) == ["a", "b"] and not runner.num_prompt_logprobs
    for name, answer in answers.items():
        wanted = expected(runner, name)
        assert answer.logprobs.shape == wanted.shape
        assert (answer.logprobs - wanted).abs().max() < 1e-5
        assert answer.logprob_token_ids.shape == (len(wanted), 2)


def test_a_prompt_that_begins_again_is_scored_as_if_it_had_not():
    """vLLM takes a request off in the middle of its prompt where the cache is full."""
    runner = setting(Model())
    scorer = TiledPromptScores(runner, WIDE)
    assert runner.run(scorer, {"a": 5}) == {}
    runner.requests["a"].num_computed_tokens = 0
    assert runner.run(scorer, {"b": 1}) == {}  # a is not scheduled at all
    answers = runner.run(scorer, {"a": 7, "b": 2})
    for name in "ab":
        assert (answers[name].logprobs - expected(runner, name)).abs().max() < 1e-5


def test_a_head_that_is_more_than_its_layer_is_noticed(capsys):
    runner = setting(Model(twist=True))
    scorer = TiledPromptScores(runner, WIDE)
    assert scorer.describe() == "the tiled head"
    runner.run(scorer, {"a": 7})
    assert "taking the model's own" in capsys.readouterr().out
    assert scorer.describe() != "the tiled head"
