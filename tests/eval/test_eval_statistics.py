"""Figures worked out by hand, and what must hold of them."""

import numpy as np
import pytest

from opdvr.eval import statistics as st


def test_mean_is_over_problems_of_means_over_samples():
    # problem 1: 3 of 4, problem 2: 0 of 4 -> (0.75 + 0) / 2
    assert st.mean_at_n(np.array([[1, 1, 1, 0], [0, 0, 0, 0.0]])) == 0.375


def test_pass_at_k_by_hand():
    correct = np.array([[True, False, False, False]])
    # 1 - C(3,k)/C(4,k): 1 - 3/4, 1 - 3/6, 1 - 1/4, 1 - 0/1
    assert [st.pass_at_k(correct, k) for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    # two of five right, k=2: 1 - C(3,2)/C(5,2) = 1 - 3/10; none right: 0; the mean of both
    correct = np.array([[True, True, False, False, False], [False] * 5])
    assert st.pass_at_k(correct, 2) == pytest.approx((0.7 + 0.0) / 2)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one():
    from itertools import combinations

    rng = np.random.default_rng(3)
    correct = rng.random((6, 7)) < 0.3
    for k in range(1, 8):
        subsets = [correct[:, list(s)].any(axis=1).mean() for s in combinations(range(7), k)]
        assert st.pass_at_k(correct, k) == pytest.approx(np.mean(subsets))


def test_pass_at_one_is_the_mean_and_large_n_does_not_overflow():
    rng = np.random.default_rng(1)
    correct = rng.random((4, 2000)) < 0.01
    assert st.pass_at_k(correct, 1) == pytest.approx(st.mean_at_n(correct.astype(float)))
    assert 0.0 < st.pass_at_k(correct, 500) <= 1.0


@pytest.mark.parametrize("k", [0, 5])
def test_k_outside_of_one_to_n_is_refused(k):
    with pytest.raises(ValueError, match="n=4"):
        st.pass_at_k(np.zeros((1, 4), bool), k)
    with pytest.raises(ValueError, match="n=4"):
        st.majority_at_k(np.zeros((1, 4)), np.zeros((1, 4), int), k)


def test_majority_by_hand():
    values = np.array([[0.0, 1.0, 1.0, 0.0]])
    # answers a b b c: b wins, right
    assert st.majority_at_k(values, np.array([[0, 1, 1, 2]]), 4) == 1.0
    # answers a b c a: a wins, wrong
    assert st.majority_at_k(values, np.array([[0, 1, 2, 0]]), 4) == 0.0
    # a tie of a (given first) and b: a, wrong
    assert st.majority_at_k(values, np.array([[0, 1, 1, 0]]), 4) == 0.0
    # the same tie with b given first: right
    assert st.majority_at_k(values[:, ::-1], np.array([[2, 1, 1, 2]]), 4) == 0.0
    assert st.majority_at_k(values[:, [1, 0, 3, 2]], np.array([[1, 0, 0, 1]]), 4) == 1.0


def test_empty_answers_do_not_vote():
    values = np.array([[0.0, 0.0, 0.0, 1.0]])
    none = st.NO_VOTE
    # three without an answer, one right one: it wins
    assert st.majority_at_k(values, np.array([[none, none, none, 0]]), 4) == 1.0
    # no answer at all: wrong, whatever the scores say
    assert st.majority_at_k(np.ones((1, 4)), np.full((1, 4), none), 4) == 0.0


def test_majority_of_fewer_is_the_mean_over_subsets():
    values = np.array([[1.0, 0.0, 0.0, 0.0]])
    votes = np.array([[0, 1, 2, 3]])  # all different: the first drawn wins, right in 1 of 4 draws
    assert st.majority_at_k(values, votes, 2) == pytest.approx(0.25, abs=0.05)
    assert st.majority_at_k(values, votes, 2) == st.majority_at_k(values, votes, 2)


def test_solved_shares():
    correct = np.array([[True, True], [True, False], [False, False], [False, False]])
    assert st.solved_shares(correct) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("n", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_sizes(n, sizes):
    assert st.sizes_up_to(n) == sizes


def test_bootstrap_spreads_as_the_standard_error():
    values = (np.arange(400) % 2).astype(float)  # mean 0.5, standard deviation 0.5
    means = st.bootstrap_means(values)
    low, high = st.interval(means)
    # 1.96 * 0.5 / sqrt(400) = 0.049
    assert (low, high) == (pytest.approx(0.451, abs=0.004), pytest.approx(0.549, abs=0.004))
    assert np.array_equal(means, st.bootstrap_means(values))
    assert st.interval(st.bootstrap_means(np.full(9, 0.25))) == (0.25, 0.25)


def test_bootstrap_in_chunks_draws_as_many(monkeypatch):
    monkeypatch.setattr(st, "_CHUNK_ENTRIES", 30_000)
    assert len(st.bootstrap_means(np.arange(7.0))) == st.RESAMPLES


def test_benchmarks_count_the_same_and_are_drawn_within_themselves():
    large, small = np.zeros(1000), np.ones(2)
    # pooled problems would give 2 / 1002; no draw can leave a benchmark out
    drawn = st.bootstrap_of_benchmarks([large, small])
    assert set(drawn) == {0.5}
    # two benchmarks with standard errors s: the mean's is s / sqrt(2)
    values = (np.arange(100) % 2).astype(float)
    both = st.bootstrap_of_benchmarks([values, values])
    ratio = both.std() / st.bootstrap_means(values).std()
    assert ratio == pytest.approx(1 / np.sqrt(2), abs=0.03)


def test_two_sided_p():
    # 3 of 99 draws at or below 0: 2 * (1 + 3) / (1 + 99)
    assert st.two_sided_p(np.array([-1.0] * 3 + [1.0] * 96)) == pytest.approx(0.08)
    assert st.two_sided_p(np.array([1.0] * 3 + [-1.0] * 96)) == pytest.approx(0.08)
    assert st.two_sided_p(np.zeros(99)) == 1.0
    assert st.two_sided_p(np.ones(st.RESAMPLES)) == pytest.approx(2 / (st.RESAMPLES + 1))


def test_distinct_4gram():
    # abcd bcda cdab dabc abcd: 4 of 5 distinct
    assert st.distinct_4gram("abcdabcd") == pytest.approx(4 / 5)
    assert st.distinct_4gram("aaaaaaaa") == pytest.approx(1 / 5)
    assert st.distinct_4gram("abcd") == 1.0
    assert st.distinct_4gram("abc") is None
