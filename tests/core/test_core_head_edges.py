"""The tiled head at its edges: dtypes, masked rows, excluded ids, huge logits, no tokens."""

import pytest
import torch
from head_setup import H, N, V, assert_gradients, dense_scores, problem

from opdvr.core.head import score_tokens
from opdvr.core.output_layer import GivenLogits, OutputLayer

SMALL = {"tile_tokens": 5, "tile_vocabulary": 7}


@pytest.mark.parametrize("hidden_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(hidden_dtype, weight_dtype):
    ours = problem()
    hidden = ours.hidden.detach().to(hidden_dtype).requires_grad_()
    weight = ours.weight.detach().to(weight_dtype).requires_grad_()
    scores = score_tokens(
        OutputLayer(weight), hidden, ours.ids, with_entropy=True, temperature=0.7, **SMALL
    )
    # What is asked for: logits in the weight's dtype, float32 from there on.
    logits = (hidden.detach().to(weight_dtype) @ weight.detach().t()).float() / 0.7
    expected = dense_scores(logits, ours.ids)
    for mine, reference in zip(scores[:3], expected, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.detach(), reference, rtol=1e-5, atol=4e-6)
    scores.logprobs.sum().backward()
    assert hidden.grad.dtype == hidden_dtype and weight.grad.dtype == weight_dtype
    dense = problem(bias=False).copy(torch.float64)
    dense.hidden = hidden.detach().double().requires_grad_()
    dense.weight = weight.detach().double().requires_grad_()
    dense_scores(dense.dense(temperature=0.7), ours.ids)[0].sum().backward()
    tolerance = 1e-4 if hidden_dtype == weight_dtype == torch.float32 else 0.05
    for mine, reference in ((hidden, dense.hidden), (weight, dense.weight)):
        error = (mine.grad.double() - reference.grad).norm() / reference.grad.norm()
        assert error < tolerance


def test_weight_gradient_is_summed_in_float32():
    # 512 tokens, one a tile, each adding 0.5: a bfloat16 sum would stop growing at 128.
    hidden = torch.ones(512, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    ids = torch.zeros(512, 1, dtype=torch.int64)
    score_tokens(OutputLayer(weight), hidden, ids, tile_tokens=1).logprobs.sum().backward()
    # Each token gives 1 - p = 0.5 to its own id and -0.5 to the other.
    assert weight.grad.flatten().tolist() == [256.0, -256.0]


def test_hidden_gradient_is_summed_in_float32():
    # 1000 ids, one a tile, weight 1 but for the last, 0. All logits are 0, so p = 1/1000, and the
    # entropy's logit gradient is -p (log p + H) = 0; logsumexp gives 999 times 1/1000.
    weight = torch.ones(1000, 1, dtype=torch.bfloat16)
    weight[-1] = 0
    hidden = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    no_ids = torch.zeros(1, 0, dtype=torch.int64)
    scores = score_tokens(OutputLayer(weight), hidden, no_ids, tile_vocabulary=1)
    scores.logsumexp.sum().backward()
    # A bfloat16 sum of 0.001 would stop at 0.5 (its spacing there is 2^-8, half of it 0.002).
    assert hidden.grad.item() == pytest.approx(0.999, rel=5e-3)


def test_tokens_without_gradient_are_inert():
    reference, ours = problem(bias=False), problem(bias=False)
    mask = torch.arange(N) % 3 > 0
    expected = score_tokens(reference.layer(), reference.hidden, reference.ids, **SMALL)
    expected.logprobs[mask].sum().backward()
    with torch.no_grad():
        ours.hidden[~mask] = torch.nan
    scores = score_tokens(ours.layer(), ours.hidden, ours.ids, **SMALL)
    torch.where(mask[:, None], scores.logprobs, 0).sum().backward()
    assert not ours.hidden.grad[~mask].any()
    assert_gradients(ours.leaves(), reference.leaves(), rtol=1e-6, atol=1e-6)


def test_an_absent_id_gives_no_gradient():
    ours = problem(bias=False)
    ids = torch.full_like(ours.ids, -1)
    scores = score_tokens(ours.layer(), ours.hidden, ids)
    assert not scores.logprobs.any()
    # The incoming gradient is not 0, and still nothing may move.
    scores.logprobs.sum().backward()
    assert not ours.hidden.grad.any() and not ours.weight.grad.any()


def test_a_loss_of_zero_gives_zero_gradients():
    ours = problem()
    (score_tokens(ours.layer(), ours.hidden, ours.ids).logprobs * 0).sum().backward()
    assert all(torch.equal(t.grad, torch.zeros_like(t)) for t in ours.leaves())


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("k", [0, 2])
def test_no_tokens(with_entropy, k):
    ours = problem()
    hidden = torch.zeros(0, H, requires_grad=True)
    ids = torch.zeros(0, k, dtype=torch.int64)
    scores = score_tokens(ours.layer(), hidden, ids, with_entropy=with_entropy, top_k=3)
    assert scores.logprobs.shape == (0, k) and scores.logsumexp.shape == (0,)
    assert scores.top_ids.shape == scores.top_logprobs.shape == (0, 3)
    assert (scores.entropy is not None) == with_entropy
    (scores.logprobs.sum() + scores.logsumexp.sum()).backward()
    assert torch.equal(hidden.grad, torch.zeros(0, H))
    assert not ours.weight.grad.any() and not ours.bias.grad.any()


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("first_excluded", [0, V - 4])
def test_an_id_excluded_by_the_bias_is_as_if_absent(soft_cap, first_excluded):
    padded, short = problem(), problem()
    excluded = torch.arange(V).sub(first_excluded).remainder(V) < 4
    kept = (~excluded).nonzero().squeeze(1)
    with torch.no_grad():
        padded.bias[excluded] = -torch.inf
    ids = torch.arange(N)[:, None] % len(kept)
    options = {"with_entropy": True, **SMALL}
    scores = score_tokens(padded.layer(soft_cap=soft_cap), padded.hidden, kept[ids], **options)
    layer = OutputLayer(short.weight[kept], short.bias[kept], soft_cap=soft_cap)
    expected = score_tokens(layer, short.hidden, ids, **options)
    for one, other in zip(scores[:3], expected[:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    sum(score.sum() for score in scores[:3]).backward()
    sum(score.sum() for score in expected[:3]).backward()
    assert_gradients(padded.leaves(), short.leaves())
    assert not padded.weight.grad[excluded].any()


def test_large_logits_do_not_overflow():
    hidden, weight = torch.full((2, 1), 1000.0), torch.tensor([[1.0], [0.9], [-1.0]])
    ids = torch.tensor([[0], [2]])
    for width in (1, 2, 3):
        scores = score_tokens(
            OutputLayer(weight), hidden, ids, with_entropy=True, tile_vocabulary=width
        )
        # Logits 1000, 900, -1000: probability 1 for id 0, and id 2 lies 2000 nats below.
        torch.testing.assert_close(scores.logprobs, torch.tensor([[0.0], [-2000.0]]))
        torch.testing.assert_close(scores.entropy, torch.zeros(2))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_logits_of_1e8_keep_their_probabilities(width):
    # Two ids tie at 1e8 (float32 steps there are 8), two at -1e8: p = 1/2, 1/2, 0, 0.
    logits = torch.tensor([[1e8, -1e8, 1e8, -1e8]], requires_grad=True)
    scores = score_tokens(
        GivenLogits(logits), None, torch.tensor([[0]]), with_entropy=True, tile_vocabulary=width
    )
    assert scores.logprobs.item() == pytest.approx(-0.693147)
    assert scores.entropy.item() == pytest.approx(0.693147)
    (scores.logprobs.sum() + 3 * scores.logsumexp.sum() + scores.entropy.sum()).backward()
    # logprob: [1/2, 0, -1/2, 0]; 3 logsumexp: [3/2, 0, 3/2, 0]; entropy of equal p: 0
    torch.testing.assert_close(logits.grad, torch.tensor([[2.0, 0.0, 1.0, 0.0]]))


def test_a_saturated_soft_cap_passes_no_gradient():
    hidden = torch.tensor([[1e8]], requires_grad=True)
    layer = OutputLayer(torch.tensor([[1.0], [-1.0], [1.0]]), soft_cap=1.0)
    scores = score_tokens(layer, hidden, torch.tensor([[1]]), with_entropy=True)
    # Logits 1, -1, 1: log p of id 1 = -1 - ln(2e + 1/e) = -1 - 1.758625
    assert scores.logprobs.item() == pytest.approx(-2.758624, abs=1e-5)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    assert hidden.grad.item() == 0


def test_autocast_does_not_change_the_result():
    ours, plain = problem(), problem()
    expected = score_tokens(plain.layer(), plain.hidden, plain.ids, **SMALL).logprobs
    expected.sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs = score_tokens(ours.layer(), ours.hidden, ours.ids, **SMALL).logprobs
        logprobs.sum().backward()
    assert torch.equal(logprobs, expected)
    for mine, reference in zip(ours.leaves(), plain.leaves(), strict=True):
        assert torch.equal(mine.grad, reference.grad)
