"""Scores of whole batches against the models' own logits, a response at a time."""

import json
import shutil

import pytest
import torch
from diagnosing import MODELS
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from opdvr.diagnose import forward
from opdvr.diagnose.forward import Scoring, score_responses

IDS = 29
# Prompts and responses of different lengths.
SEQUENCES = [
    ((3, 8, 9, 10, 4), (11, 17, 12, 1)),
    ((3, 8, 4), (12,)),
    ((3, 20, 8, 9, 10, 17, 8, 4), (9, 9, 9, 18, 7, 1)),
    ((3, 8, 4), (12, 13, 14)),
]


def scoring(**others):
    settings = {"vocabulary": IDS, "end_ids": (1, 6), "top_k": 4, "temperature": 1.0}
    return Scoring(**{**settings, "device": "cpu", "dtype": "float32", **others})


def expected(folder, prompt, response, temperature=1.0):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1, :IDS]
    return (logits / temperature).log_softmax(-1)


@pytest.mark.parametrize("batch_tokens", [4096, 26, 1])
def test_batches_score_as_single_responses_do(monkeypatch, batch_tokens):
    monkeypatch.setitem(forward._BATCH_TOKENS, "cpu", batch_tokens)
    found = score_responses(MODELS / "student", SEQUENCES, scoring(temperature=0.7))
    for scored, (prompt, response) in zip(found, SEQUENCES, strict=True):
        logprobs = expected(MODELS / "student", prompt, response, 0.7)
        own = logprobs.gather(1, torch.tensor(response)[:, None])[:, 0]
        close = {"atol": 2e-5, "rtol": 1e-4}
        torch.testing.assert_close(scored.logprobs, own, **close)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        torch.testing.assert_close(scored.entropy, entropy, **close)
        top = logprobs.topk(4)
        assert torch.equal(scored.top_ids, top.indices)
        torch.testing.assert_close(scored.top_logprobs, top.values, **close)
        torch.testing.assert_close(scored.end_logprobs, logprobs[-1, [1, 6]], **close)


def test_rows_beyond_the_tokenizer_do_not_count(tmp_path):
    folder = shutil.copytree(MODELS / "student", tmp_path / "padded")
    weights = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"  # also the output layer
    weights[name] = torch.cat([weights[name], 3 * weights[name][5:12]])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": IDS + 7}))
    plain = score_responses(MODELS / "student", SEQUENCES, scoring())
    padded = score_responses(folder, SEQUENCES, scoring())
    for one, other in zip(plain, padded, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_more_top_ids_than_there_are_and_no_end_ids():
    (scored, *_) = score_responses(
        MODELS / "teacher-good", SEQUENCES[:1], scoring(top_k=IDS, end_ids=())
    )
    assert scored.top_ids.sort().values.tolist() == [list(range(IDS))] * 4
    assert scored.end_logprobs.shape == (0,)


def test_a_folder_that_is_no_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nothing"}')
    with pytest.raises(ValueError, match="does not load as a causal language model"):
        score_responses(tmp_path, SEQUENCES, scoring())
