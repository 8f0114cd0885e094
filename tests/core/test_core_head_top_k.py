"""The tiled head's top-k against torch.topk over dense logits."""

import pytest
import torch
from head_setup import N, V, problem

from opdvr.core.head import score_tokens
from opdvr.core.output_layer import GivenLogits, OutputLayer

TILES = [(1, 1), (3, 4), (7, 31), (1000, 9), (None, None)]


def top_k(source, hidden, k, tiles=(None, None), n=N, **options):
    scores = score_tokens(
        source,
        hidden,
        torch.zeros(n, 0, dtype=torch.int64),
        top_k=k,
        tile_tokens=tiles[0],
        tile_vocabulary=tiles[1],
        **options,
    )
    return scores.top_ids, scores.top_logprobs


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("k", [1, 5, 26])
@pytest.mark.parametrize("vocabulary", [None, 26])
def test_matches_torch_topk(tiles, k, vocabulary):
    ours = problem()
    layer = ours.layer(vocabulary=vocabulary)
    ids, logprobs = top_k(layer, ours.hidden, k, tiles, temperature=0.6)
    table = ours.dense(vocabulary, temperature=0.6).log_softmax(-1)
    expected = table.topk(k)
    assert ids.dtype == torch.int64 and logprobs.dtype == torch.float32
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(logprobs, expected.values.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [40, 100, 256, 999, 1000])
@pytest.mark.parametrize("k", [1, 7, 64, 400])
def test_groups_of_columns_lose_nothing(width, k):
    generator = torch.Generator().manual_seed(k)
    logits = torch.randn(13, 1000, generator=generator)
    logits[0] = torch.arange(1000.0)  # every tile beats all before it
    logits[1] = -logits[0]  # and none does
    logits[2, :64] += 100.0  # all in one tile
    logits[3, ::125] += 100.0  # all in one group of eight columns
    ids, logprobs = top_k(GivenLogits(logits), None, k, (5, width), n=13)
    expected = logits.log_softmax(-1).topk(k)
    torch.testing.assert_close(logprobs, expected.values, rtol=1e-5, atol=1e-4)
    assert torch.equal(ids, expected.indices)


@pytest.mark.parametrize("tiles", TILES)
def test_ties_are_kept_by_value(tiles):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 4, (N, V), generator=generator).float()
    ids, logprobs = top_k(GivenLogits(logits), None, 12, tiles)
    table = logits.log_softmax(-1)
    torch.testing.assert_close(logprobs, table.topk(12).values)
    torch.testing.assert_close(table.gather(1, ids), logprobs)
    assert all(len(set(row)) == 12 for row in ids.tolist())  # no id twice


@pytest.mark.parametrize("tiles", TILES)
def test_more_than_there_are(tiles):
    ours = problem()
    ids, logprobs = top_k(ours.layer(vocabulary=20), ours.hidden, 25, tiles)
    assert torch.equal(ids[:, :20].sort().values, torch.arange(20).expand(N, -1))
    assert (ids[:, 20:] == -1).all() and not logprobs[:, 20:].any()
    torch.testing.assert_close(logprobs[:, :20].exp().sum(-1), torch.ones(N))


@pytest.mark.parametrize("tiles", TILES)
def test_an_excluded_id_is_never_among_them(tiles):
    ours = problem()
    with torch.no_grad():
        ours.bias[:28] = -torch.inf
    ids, logprobs = top_k(ours.layer(), ours.hidden, 5, tiles)
    assert torch.equal(ids[:, :3].sort().values, torch.tensor([28, 29, 30]).expand(N, -1))
    assert (ids[:, 3:] == -1).all() and not logprobs[:, 3:].any()


def test_bfloat16_weights_rank_what_they_compute():
    ours = problem(bias=False)
    hidden, weight = ours.hidden.detach().bfloat16(), ours.weight.detach().bfloat16()
    ids, logprobs = top_k(OutputLayer(weight), hidden, 6, (3, 4))
    table = (hidden @ weight.t()).float().log_softmax(-1)
    torch.testing.assert_close(table.gather(1, ids), logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logprobs, table.topk(6).values, rtol=1e-5, atol=1e-5)
