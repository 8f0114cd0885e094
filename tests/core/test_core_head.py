"""The chunked head against dense float64 autograd, and what it must never allocate."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opdvr.core import score_tokens

N, H, V = 23, 6, 31


def problem(seed=0, dtype=torch.float32, bias=True):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, H, generator=generator).to(dtype)
    weight = torch.randn(V, H, generator=generator).to(dtype)
    bias = torch.randn(V, generator=generator).to(dtype) if bias else None
    target_ids = torch.randint(0, V, (N,), generator=generator)
    return hidden, weight, bias, target_ids


def dense_reference(hidden, weight, bias, target_ids, temperature):
    """Log-probs and entropies of the whole [N,V] table in float64, by autograd."""
    logits = hidden.double() @ weight.double().t()
    if bias is not None:
        logits = logits + bias.double()
    table = (logits / temperature).log_softmax(-1)
    return table.gather(1, target_ids[:, None]).squeeze(1), -(table.exp() * table).sum(-1)


def leaves(*tensors):
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("chunk_tokens", [1, 7, 23, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_values_and_gradients_match_dense_float64(
    chunk_tokens, temperature, with_bias, with_entropy
):
    *tensors, target_ids = problem(bias=with_bias)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(2, N, generator=generator)

    dense = leaves(*[None if t is None else t.double() for t in tensors])
    expected = dense_reference(*dense, target_ids, temperature)
    ours = leaves(*tensors)
    logprobs, entropy = score_tokens(
        ours[0],
        ours[1],
        target_ids,
        bias=ours[2],
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        with_entropy=with_entropy,
    )
    torch.testing.assert_close(logprobs.double(), expected[0], rtol=1e-5, atol=1e-5)
    loss, expected_loss = weights[0] @ logprobs, weights[0].double() @ expected[0]
    if with_entropy:
        torch.testing.assert_close(entropy.double(), expected[1], rtol=1e-5, atol=1e-5)
        loss, expected_loss = (
            loss + weights[1] @ entropy,
            expected_loss + weights[1].double() @ (expected[1]),
        )
    else:
        assert entropy is None
    loss.backward()
    expected_loss.backward()
    for mine, reference in zip(ours, dense, strict=True):
        if mine is not None:
            torch.testing.assert_close(mine.grad.double(), reference.grad, rtol=1e-4, atol=2e-5)


def test_gradient_of_entropy_alone():
    hidden, weight, bias, target_ids = problem()
    dense = leaves(hidden.double(), weight.double(), bias.double())
    dense_reference(*dense, target_ids, 0.8)[1].sum().backward()
    ours = leaves(hidden, weight, bias)
    _, entropy = score_tokens(
        *ours[:2], target_ids, bias=ours[2], temperature=0.8, chunk_tokens=5, with_entropy=True
    )
    entropy.sum().backward()
    for mine, reference in zip(ours, dense, strict=True):
        torch.testing.assert_close(mine.grad.double(), reference.grad, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("hidden_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(hidden_dtype, weight_dtype):
    hidden, weight, bias, target_ids = problem()
    hidden = hidden.to(hidden_dtype).requires_grad_()
    weight = weight.to(weight_dtype).requires_grad_()
    logprobs, entropy = score_tokens(
        hidden, weight, target_ids, chunk_tokens=8, with_entropy=True, temperature=0.7
    )
    # What is asked for: logits in the weight's dtype, float32 from there on.
    logits = (hidden.detach().to(weight_dtype) @ weight.detach().t()).float() / 0.7
    table = logits.log_softmax(-1)
    expected = table.gather(1, target_ids[:, None]).squeeze(1)
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs.detach(), expected, rtol=1e-5, atol=2e-6)
    logprobs.sum().backward()
    assert hidden.grad.dtype == hidden_dtype and weight.grad.dtype == weight_dtype
    dense = leaves(hidden.double(), weight.double())
    dense_reference(*dense, None, target_ids, 0.7)[0].sum().backward()
    tolerance = 1e-4 if hidden_dtype == weight_dtype == torch.float32 else 0.05
    for mine, reference in zip((hidden, weight), dense, strict=True):
        error = (mine.grad.double() - reference.grad).norm() / reference.grad.norm()
        assert error < tolerance


def test_weight_gradient_is_summed_in_float32():
    # 512 tokens, one a chunk, each adding 0.5: a bfloat16 sum would stop growing at 128.
    hidden = torch.ones(512, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    target_ids = torch.zeros(512, dtype=torch.int64)
    logprobs, _ = score_tokens(hidden, weight, target_ids, chunk_tokens=1)
    logprobs.sum().backward()
    # Each token gives 1 - p = 0.5 to its own id and -0.5 to the other.
    assert weight.grad.flatten().tolist() == [256.0, -256.0]


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
    n, chunk = 300, 16
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, 8, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(500, 8, generator=generator).to(dtype).requires_grad_()
    bias = torch.zeros(500, dtype=dtype, requires_grad=True)
    target_ids = torch.randint(0, 500, (n,), generator=generator)
    with LargestTensor() as largest:
        logprobs, entropy = score_tokens(
            hidden, weight, target_ids, bias=bias, chunk_tokens=chunk, with_entropy=True
        )
        (logprobs.sum() + entropy.sum()).backward()
    assert weight.grad is not None and hidden.grad is not None
    assert largest.numel == chunk * 500  # the buffer of one chunk, and nothing larger
    # The measure does see a dense table.
    with LargestTensor() as dense:
        dense_reference(hidden, weight, bias, target_ids, 1.0)
    assert dense.numel == n * 500


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
    [  # a chunk's logits once more, then one product for hidden and one for weight
        ((True, False, False), 2),
        ((False, True, False), 2),
        ((False, False, True), 1),
        ((True, True, True), 3),
    ],
)
def test_only_wanted_gradients_are_computed(wanted, products):
    *tensors, target_ids = problem()
    for tensor, want in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(want)
    logprobs, _ = score_tokens(*tensors[:2], target_ids, bias=tensors[2])
    with MatmulCount() as matmuls:
        logprobs.sum().backward()
    assert matmuls.count == products
    assert tuple(tensor.grad is not None for tensor in tensors) == wanted


def test_frozen_inputs_and_no_grad_build_no_graph():
    hidden, weight, _, target_ids = problem()
    frozen, _ = score_tokens(hidden, weight, target_ids)
    with torch.no_grad():
        ungraphed, _ = score_tokens(hidden.requires_grad_(), weight, target_ids)
    assert not frozen.requires_grad and not ungraphed.requires_grad
    assert torch.equal(frozen, ungraphed)


def test_tokens_without_gradient_are_inert():
    hidden, weight, _, target_ids = problem()
    mask = torch.arange(N) % 3 > 0
    reference = leaves(hidden, weight)
    score_tokens(*reference, target_ids, chunk_tokens=4)[0][mask].sum().backward()
    planted = hidden.masked_fill(~mask[:, None], torch.nan)
    ours = leaves(planted, weight)
    logprobs, _ = score_tokens(*ours, target_ids, chunk_tokens=4)
    torch.where(mask, logprobs, 0).sum().backward()
    assert not ours[0].grad[~mask].any()
    for mine, expected in zip(ours, reference, strict=True):
        torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-6, atol=1e-6)


def test_a_loss_of_zero_gives_zero_gradients():
    hidden, weight, _, target_ids = problem()
    ours = leaves(hidden, weight)
    (score_tokens(*ours, target_ids)[0] * 0).sum().backward()
    assert all(torch.equal(tensor.grad, torch.zeros_like(tensor)) for tensor in ours)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_no_tokens(with_entropy):
    _, weight, bias, _ = problem()
    ours = leaves(torch.zeros(0, H), weight, bias)
    logprobs, entropy = score_tokens(
        *ours[:2], torch.zeros(0, dtype=torch.int64), bias=ours[2], with_entropy=with_entropy
    )
    assert logprobs.shape == (0,)
    assert entropy is None or entropy.shape == (0,)
    logprobs.sum().backward()
    assert torch.equal(ours[0].grad, torch.zeros(0, H))
    assert not ours[1].grad.any() and not ours[2].grad.any()


def test_an_id_excluded_by_the_bias_is_as_if_absent():
    hidden, weight, _, _ = problem()
    target_ids = torch.arange(N) % (V - 4)
    bias = torch.zeros(V)
    bias[-4:] = -torch.inf
    padded, short = leaves(hidden, weight), leaves(hidden, weight[:-4])
    with_padding = score_tokens(*padded, target_ids, bias=bias, chunk_tokens=5, with_entropy=True)
    without = score_tokens(*short, target_ids, chunk_tokens=5, with_entropy=True)
    for one, other in zip(with_padding, without, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    sum(with_padding).sum().backward()
    sum(without).sum().backward()
    torch.testing.assert_close(padded[0].grad, short[0].grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(padded[1].grad[:-4], short[1].grad, rtol=1e-4, atol=1e-5)
    assert not padded[1].grad[-4:].any()


def test_large_logits_do_not_overflow():
    hidden, weight = torch.full((2, 1), 1000.0), torch.tensor([[1.0], [0.9], [-1.0]])
    logprobs, entropy = score_tokens(hidden, weight, torch.tensor([0, 2]), with_entropy=True)
    # Logits 1000, 900, -1000: probability 1 for id 0, and id 2 lies 2000 nats below.
    torch.testing.assert_close(logprobs, torch.tensor([0.0, -2000.0]))
    torch.testing.assert_close(entropy, torch.zeros(2))


def test_autocast_does_not_change_the_result():
    hidden, weight, _, target_ids = problem()
    ours, plain = leaves(hidden, weight), leaves(hidden, weight)
    expected, _ = score_tokens(*plain, target_ids, chunk_tokens=7)
    expected.sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs, _ = score_tokens(*ours, target_ids, chunk_tokens=7)
        logprobs.sum().backward()
    assert torch.equal(logprobs, expected)
    assert torch.equal(ours[0].grad, plain[0].grad)
    assert torch.equal(ours[1].grad, plain[1].grad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "TEMPERATURE=0.0"),
        ({"temperature": float("nan")}, "TEMPERATURE=nan"),
        ({"chunk_tokens": 0}, "chunk_tokens=0"),
    ],
)
def test_bad_options_are_named(options, message):
    hidden, weight, _, target_ids = problem()
    with pytest.raises(ValueError, match=message):
        score_tokens(hidden, weight, target_ids, **options)
