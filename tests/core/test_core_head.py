"""The tiled head against dense float64 autograd, and what it must never allocate."""

import pytest
import torch
from head_setup import H, K, N, V, assert_gradients, dense_scores, problem, weighted
from torch.utils._python_dispatch import TorchDispatchMode

from opdvr.core.head import score_tokens
from opdvr.core.output_layer import GivenLogits, OutputLayer

TILES = [(1, 1), (3, 4), (7, 31), (1000, 5), (None, None)]
WEIGHTS = torch.Generator().manual_seed(1)
WEIGHTS = [torch.randn(N, K, generator=WEIGHTS), *torch.randn(2, N, generator=WEIGHTS)]


def scored(source, hidden, ids, tiles=(None, None), **options):
    return score_tokens(
        source, hidden, ids, tile_tokens=tiles[0], tile_vocabulary=tiles[1], **options
    )


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("soft_cap", [None, 1.5])
@pytest.mark.parametrize("vocabulary", [None, 26])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_match_dense_float64(tiles, soft_cap, vocabulary, bias, dtype):
    shape = {"soft_cap": soft_cap, "vocabulary": vocabulary, "logit_scale": 0.7}
    ours = problem(bias, dtype, vocabulary=vocabulary or V)
    dense = ours.copy(torch.float64)
    scores = scored(
        ours.layer(**shape), ours.hidden, ours.ids, tiles, temperature=0.6, with_entropy=True
    )
    expected = dense_scores(dense.dense(temperature=0.6, **shape), dense.ids)
    precision = {"rtol": 1e-5, "atol": 2e-5} if dtype == torch.float32 else {}
    for mine, reference in zip(scores[:3], expected, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, reference.to(dtype), **precision)
    assert scores.top_ids is None and scores.top_logprobs is None
    weighted(scores[:3], WEIGHTS).backward()
    weighted(expected, WEIGHTS).backward()
    precise = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {}
    assert_gradients(ours.leaves(), dense.leaves(), **precise)
    if vocabulary is not None:
        assert not ours.weight.grad[vocabulary:].any()


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("output", [0, 1, 2])
def test_gradient_of_each_output_alone(tiles, output):
    ours, dense = problem(), problem().copy(torch.float64)
    scores = scored(ours.layer(), ours.hidden, ours.ids, tiles, temperature=1.7, with_entropy=True)
    expected = dense_scores(dense.dense(temperature=1.7), dense.ids)
    (scores[output] * WEIGHTS[output]).sum().backward()
    (expected[output] * WEIGHTS[output]).sum().backward()
    assert_gradients(ours.leaves(), dense.leaves())


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("vocabulary", [None, 26])
def test_given_logits(tiles, vocabulary):
    ids = problem(vocabulary=vocabulary or V).ids
    logits = (2 * problem().dense().detach()).requires_grad_()
    dense = logits.detach().double().requires_grad_()
    scores = scored(
        GivenLogits(logits, vocabulary), None, ids, tiles, temperature=0.6, with_entropy=True
    )
    expected = dense_scores(dense[:, :vocabulary] / 0.6, ids)
    for mine, reference in zip(scores[:3], expected, strict=True):
        torch.testing.assert_close(mine.double(), reference, rtol=1e-5, atol=2e-5)
    mask = torch.arange(N) % 3 > 0  # rows that are left out, too
    weighted([s[mask] for s in scores[:3]], [w[mask] for w in WEIGHTS]).backward()
    weighted([s[mask] for s in expected], [w[mask] for w in WEIGHTS]).backward()
    assert_gradients([logits], [dense])


def test_three_ids_by_hand():
    # Logits ln 1, ln 2, ln 5: probabilities 1/8, 2/8, 5/8.
    logits = torch.tensor([[1.0, 2.0, 5.0]]).log().requires_grad_()
    scores = score_tokens(
        GivenLogits(logits), None, torch.tensor([[1, -1]]), with_entropy=True, top_k=2
    )
    assert scores.logprobs.tolist() == [[pytest.approx(-1.386294), 0.0]]  # ln(2/8), and nothing
    assert scores.logsumexp.tolist() == [pytest.approx(2.079442)]  # ln 8
    # ln 8 - (2 ln 2 + 5 ln 5) / 8 = 2.079442 - (1.386294 + 8.047190) / 8
    assert scores.entropy.tolist() == [pytest.approx(0.900256)]
    assert scores.top_ids.tolist() == [[2, 1]]
    assert scores.top_logprobs.tolist() == [[pytest.approx(-0.470004), pytest.approx(-1.386294)]]
    scores.logprobs.sum().backward()
    assert logits.grad.tolist() == [pytest.approx([-0.125, 0.75, -0.625])]


def test_a_tied_weight_gets_both_gradients():
    ours, dense = problem(bias=False), problem(bias=False).copy(torch.float64)
    tokens = torch.arange(N) % V
    logprobs = scored(ours.layer(), ours.weight[tokens], ours.ids, (5, 7)).logprobs
    dense.hidden = dense.weight[tokens]
    expected = dense_scores(dense.dense(), dense.ids)[0]
    (logprobs * WEIGHTS[0]).sum().backward()
    (expected * WEIGHTS[0]).sum().backward()
    assert_gradients([ours.weight], [dense.weight])


class LargestTensor(TorchDispatchMode):
    """Records the most elements of any tensor that an operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_never_allocates_tokens_times_vocabulary(dtype):
    n, v, h = 300, 500, 8
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, h, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(v, h, generator=generator).to(dtype).requires_grad_()
    bias = torch.zeros(v, dtype=dtype, requires_grad=True)
    ids = torch.randint(0, v, (n, 3), generator=generator)
    with LargestTensor() as largest:
        layer = OutputLayer(weight, bias, soft_cap=5.0)
        scores = scored(layer, hidden, ids, (40, 100), with_entropy=True, top_k=4)
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
    assert weight.grad is not None and hidden.grad is not None
    assert largest.numel == 40 * 100 == v * h  # a tile, the weight's gradient, and nothing larger
    # The measure does see a dense table.
    with LargestTensor() as dense:
        (hidden @ weight.t()).log_softmax(-1)
    assert dense.numel == n * v


class MatmulCount(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in ("mm", "addmm", "addmm_")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("wanted", "products"),
    [  # a tile's logits once more, then one product for hidden and one for weight
        ((True, False, False), 2),
        ((False, True, False), 2),
        ((False, False, True), 1),
        ((True, True, True), 3),
    ],
)
def test_only_wanted_gradients_are_computed(wanted, products):
    ours = problem()
    for tensor, want in zip(ours.leaves(), wanted, strict=True):
        tensor.requires_grad_(want)
    logprobs = score_tokens(ours.layer(), ours.hidden, ours.ids).logprobs
    with MatmulCount() as matmuls:
        logprobs.sum().backward()
    assert matmuls.count == products
    assert tuple(tensor.grad is not None for tensor in ours.leaves()) == wanted


def test_frozen_inputs_and_no_grad_build_no_graph():
    ours = problem()
    with torch.no_grad():
        ungraphed = score_tokens(ours.layer(), ours.hidden, ours.ids, top_k=3)
    graphed = score_tokens(ours.layer(), ours.hidden, ours.ids, top_k=3)
    for tensor in ours.leaves():
        tensor.requires_grad_(False)
    frozen = score_tokens(ours.layer(), ours.hidden, ours.ids, top_k=3)
    assert not frozen.logprobs.requires_grad and not ungraphed.logprobs.requires_grad
    assert graphed.logprobs.requires_grad and graphed.logsumexp.requires_grad
    assert not graphed.top_logprobs.requires_grad and graphed.entropy is None
    assert torch.equal(frozen.logprobs, ungraphed.logprobs)


def test_a_second_derivative_is_refused():
    ours = problem()
    logprobs = score_tokens(ours.layer(), ours.hidden, ours.ids).logprobs
    loss = (logprobs**2).sum()
    (gradient,) = torch.autograd.grad(loss, ours.hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "TEMPERATURE=0.0"),
        ({"temperature": float("nan")}, "TEMPERATURE=nan"),
        ({"temperature": float("inf")}, "TEMPERATURE=inf"),
        ({"tile_tokens": 0}, "tile_tokens=0"),
        ({"tile_vocabulary": -1}, "tile_vocabulary=-1"),
        ({"top_k": -2}, "top_k=-2"),
        ({"ids": torch.full((N, 1), V)}, f"id {V} is outside the vocabulary of {V}"),
        ({"ids": torch.full((N, 1), -2)}, "id -2 is outside"),
    ],
)
def test_bad_options_are_named(options, message):
    ours = problem()
    with pytest.raises(ValueError, match=message):
        score_tokens(ours.layer(), ours.hidden, **({"ids": ours.ids} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": V + 1}, f"vocabulary={V + 1} must be between 1 and the {V}"),
        ({"vocabulary": 0}, "vocabulary=0"),
        ({"soft_cap": 0.0}, "soft_cap=0.0"),
        ({"logit_scale": 0.0}, "logit_scale=0.0"),
        ({"logit_scale": float("nan")}, "logit_scale=nan"),
    ],
)
def test_a_bad_layer_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        OutputLayer(torch.zeros(V, H), **options)
    if "vocabulary" in options:
        with pytest.raises(ValueError, match=message):
            GivenLogits(torch.zeros(N, V), **options)
