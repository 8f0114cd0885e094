"""The vLLM engine against plain transformers: every column, at a temperature, in pieces."""

import multiprocessing

import numpy as np
import pytest
import torch

from opdvr.teacher.engines import Sequence, TeacherSettings, Wanted

pytest.importorskip("vllm")

K, TEMPERATURE = 4, 0.7
PADDING = 5  # of the vocabulary, left out where the run says so


def make_sequences(vocabulary, count, with_candidates):
    """Prompts of 1 to 11 tokens, responses of 1 to 36, block edges among them."""
    random = np.random.default_rng(0)
    found = []
    for key in range(count):
        prompt, response = int(random.integers(1, 12)), int(random.integers(1, 37))
        ids = random.integers(0, vocabulary, prompt + response).astype(np.int32)
        candidates = None
        if with_candidates:
            candidates = random.integers(0, vocabulary, (response, 3)).astype(np.int32)
            candidates[0, 0] = -1
        found.append(Sequence(key, ids, prompt, "source", f"row {key}", candidates))
    return found


def score(model, wanted, count, with_candidates, given_logits):
    """In a process of its own: vLLM sets the environment and threads of the one it is in."""
    from opdvr.teacher.service import ScoringService

    service = ScoringService("vllm", TeacherSettings(model, "cpu", "float32", 48), wanted)
    if given_logits:
        runner = service._engine.llm.model_executor.driver_worker.worker.model_runner
        runner._get_prompt_logprobs_dict._layer = None
        runner._get_prompt_logprobs_dict._checked = True
    asked = make_sequences(vocabulary_of(model) - PADDING, count, with_candidates)
    service.submit(asked)
    first = service.collect([sequence.key for sequence in asked]).scores
    service.submit(asked)  # again: whatever is cached must not change anything
    second = service.collect([sequence.key for sequence in asked]).scores
    service.close()
    return first, second


def vocabulary_of(model):
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model).vocab_size


@pytest.fixture(scope="module")
def model():
    from opdvr.integration.config import DEMO_MODELS

    return str(DEMO_MODELS / "teacher-faulty")


@pytest.fixture(scope="module")
def reference(model):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def log_probs_of(reference, sequence, temperature, vocabulary):
    """[T,V] of the response's positions."""
    ids = torch.from_numpy(sequence.token_ids.astype(np.int64))
    with torch.no_grad():
        logits = reference(ids[None]).logits[0, sequence.response_start - 1 : -1].float()
    return (logits[:, :vocabulary] / temperature).log_softmax(-1)


@pytest.mark.parametrize("given_logits", [False, True], ids=["tiled-head", "own-logits"])
def test_every_column_is_that_of_transformers(model, reference, given_logits):
    vocabulary = vocabulary_of(model) - PADDING
    wanted = Wanted(K, TEMPERATURE, with_entropy=True, vocabulary=vocabulary)
    arguments = (model, wanted, 40, True, given_logits)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        first, second = pool.apply(score, arguments)
    asked = make_sequences(vocabulary, 40, True)
    expected = {
        name: [] for name in ("log_probs", "entropy", "top_log_probs", "candidate_log_probs")
    }
    for sequence in asked:
        log_p = log_probs_of(reference, sequence, TEMPERATURE, vocabulary)
        came = torch.from_numpy(sequence.token_ids[sequence.response_start :].astype(np.int64))
        expected["log_probs"].append(log_p.gather(1, came[:, None])[:, 0])
        expected["entropy"].append(-(log_p.exp() * log_p).sum(-1))
        expected["top_log_probs"].append(log_p.topk(K).values)
        chosen = torch.from_numpy(sequence.candidates.astype(np.int64))
        at = log_p.gather(1, chosen.clamp(min=0))
        expected["candidate_log_probs"].append(at.where(chosen >= 0, torch.zeros_like(at)))
    for name, parts in expected.items():
        for found in (first, second):
            difference = np.abs(found[name] - torch.cat(parts).numpy()).max()
            assert difference < 1e-4, (name, difference)
    assert first["top_ids"].max() < vocabulary  # the padding never shows up
    # the ids are those of the values (equal values may swap)
    every = torch.cat([log_probs_of(reference, s, TEMPERATURE, vocabulary) for s in asked])
    at_ids = every.gather(1, torch.from_numpy(first["top_ids"].astype(np.int64)))
    assert np.abs(at_ids.numpy() - first["top_log_probs"]).max() < 1e-4
