"""The head in models that do more than one linear layer, and where it cannot stand in."""

import pytest
import torch

pytest.importorskip("verl")

from engine_setup import (  # noqa: E402
    VOCABULARY,
    actor_config,
    free_port,
    make_batch,
    reference_scores,
    score,
    set_rank_environment,
    training_worker,
    update,
)
from transformers import (  # noqa: E402
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from opdvr.core import MethodSpec  # noqa: E402
from opdvr.integration.loss import ForwardLoss  # noqa: E402

PROCESS_GROUP_PORT = free_port()
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
}
MODELS = {
    "soft cap": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SMALL, head_dim=16, final_logit_softcapping=2.0, attn_logit_softcapping=None)
    ),
    "multiplied": lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.3)),
    "divided": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=0.4)),
}


@pytest.fixture(autouse=True)
def one_rank():
    set_rank_environment(0, 1, PROCESS_GROUP_PORT)


def _save(model, folder, factor=3.0):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    model.float().save_pretrained(folder)
    return str(folder)


def _signals(batch):
    rows, shape = len(batch["responses"]), batch["responses"].shape
    generator = torch.Generator().manual_seed(3)
    return {
        "teacher_log_probs": -3 * torch.rand(shape, generator=generator) * batch["response_mask"],
        "rollout_log_probs": torch.zeros(shape),
        "advantages": torch.zeros(shape),
        "correct": torch.arange(rows) % 3 == 0,
        "reward_scale": torch.ones(rows),
        "outcome": torch.zeros(rows),
        "group_correct_frac": torch.ones(rows),
        "sample_index": torch.arange(rows),
    }


def _gradient_norm(folder):
    batch = make_batch()
    worker = training_worker(folder)
    worker.set_loss_fn(ForwardLoss(MethodSpec(), "update", actor_config()))
    metrics = update(worker, batch | _signals(batch), log_entropy=True, advantages_given=False)
    return metrics["grad_norm"][0]


@pytest.mark.parametrize("kind", MODELS)
def test_a_scale_or_soft_cap_is_part_of_the_head(tmp_path, kind, capsys):
    folder = _save(MODELS[kind](), tmp_path)
    batch = make_batch()
    logprobs, entropy = score(training_worker(folder, forward_only=True), batch)
    expected, expected_entropy = reference_scores(folder, batch)
    torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(entropy, expected_entropy, atol=2e-5, rtol=0)
    assert expected.std() > 0.1
    assert "own logits" not in capsys.readouterr().out


class ShiftedLogits(Qwen3ForCausalLM):
    """Adds to its logits what no config names."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits + torch.arange(output.logits.shape[-1]) * 0.05
        return output


def test_what_it_cannot_stand_in_for_falls_back_with_one_warning(tmp_path, capsys, monkeypatch):
    import verl.workers.engine.fsdp.transformer_impl as verl_fsdp

    folder = _save(Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16)), tmp_path)
    plain = reference_scores(folder, make_batch())[0]
    plain_norm = _gradient_norm(folder)
    capsys.readouterr()
    build = verl_fsdp.FSDPEngineWithLMHead._build_module

    def shifted(self):
        module = build(self)
        module.__class__ = ShiftedLogits
        return module

    monkeypatch.setattr(verl_fsdp.FSDPEngineWithLMHead, "_build_module", shifted)
    worker = training_worker(folder, forward_only=True)
    batch = make_batch()
    first, _ = score(worker, batch)
    second, _ = score(worker, batch)
    printed = capsys.readouterr().out
    assert printed.count("takes the model's own logits") == 1
    assert "ShiftedLogits" in printed
    assert torch.equal(first, second)
    model = ShiftedLogits.from_pretrained(folder).eval()
    row = 0
    ids = batch["input_ids"][row][batch["attention_mask"][row].bool()]
    length = int(batch["response_mask"][row].sum())
    table = model(input_ids=ids[None]).logits[0, -length - 1 : -1].log_softmax(-1)
    expected = table.gather(-1, ids[-length:, None])[:, 0].detach()
    torch.testing.assert_close(first[row, :length], expected, atol=2e-5, rtol=0)
    assert (first - plain).abs().max() > 0.1
    assert _gradient_norm(folder) != pytest.approx(plain_norm, rel=1e-3)


def test_the_fallback_gives_the_gradient_of_the_model(tmp_path, monkeypatch):
    """The same model with its head replaced and by its own logits."""
    from opdvr.integration.head import ScoringHead

    folder = _save(Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16)), tmp_path)
    replaced = _gradient_norm(folder)
    monkeypatch.setattr(
        ScoringHead, "check", lambda self, *_: self._checked or self._fall_back("as asked")
    )
    assert _gradient_norm(folder) == pytest.approx(replaced, rel=1e-5)
    assert replaced > 1e-2
