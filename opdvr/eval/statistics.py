"""What is computed from verdicts: pure functions on arrays [P problems, n samples].

The bootstrap is over problems and seeded; its intervals are the 2.5th and 97.5th percentile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000
MEAN = "mean of benchmarks"  # name of the row over benchmarks
SEED = 42
LEVEL = (2.5, 97.5)
# Subsets of the samples that majority votes of fewer than all are averaged over.
VOTE_DRAWS = 1000
NO_VOTE = -1
# Problems drawn at once are bounded, so that long benchmarks fit any memory.
_CHUNK_ENTRIES = 10_000_000


def mean_at_n(values: np.ndarray) -> float:
    """Mean over problems of each problem's mean over its samples; values [P, n]."""
    return float(values.mean(axis=1).mean())


def pass_at_k(correct: np.ndarray, k: int) -> float:
    """Mean over problems of the unbiased pass@k, 1 - C(n-c, k) / C(n, k); correct [P, n] bool.

    c of a problem's n samples are correct. Chen et al. 2021 (arXiv 2107.03374), equation 1.
    With n=4, c=1, k=2: 1 - C(3,2)/C(4,2) = 1 - 3/6 = 0.5.

    Raises:
        ValueError: k is not between 1 and n.
    """
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 to n={n} samples")
    wrong = n - correct.sum(axis=1)
    # C(w, k) / C(n, k) as a product, which cannot overflow: (w - i) / (n - i) for i < k
    steps = np.arange(k)
    none_right = np.prod(np.clip(wrong[:, None] - steps, 0, None) / (n - steps), axis=1)
    return float((1.0 - none_right).mean())


def majority_at_k(values: np.ndarray, votes: np.ndarray, k: int, seed: int = SEED) -> float:
    """Mean over problems of the score of the answer that most of k samples give.

    A tie goes to the answer that was given first among the k; a problem without any vote scores 0.
    With k = n all samples vote, in their order. With fewer, the mean over `VOTE_DRAWS` subsets
    drawn without replacement, the same for every problem.

    Args:
        values: [P, n], the score of each sample; an answer's is that of its first sample.
        votes: [P, n] int, equal numbers for equal answers of a problem, `NO_VOTE` for none.
        k: voters, from 1 to n.
        seed: of the draws.

    Raises:
        ValueError: k is not between 1 and n.
    """
    n = values.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} needs 1 to n={n} samples")
    if k == n:
        draws = np.arange(n)[None]
    else:
        rng = np.random.default_rng(seed)
        draws = rng.permuted(np.tile(np.arange(n), (VOTE_DRAWS, 1)), axis=1)[:, :k]
    scores = [_voted(row, vote, draws).mean() for row, vote in zip(values, votes, strict=True)]
    return float(np.mean(scores))


def _voted(values: np.ndarray, votes: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Scores [D] of one problem's majority answers; values [n], votes [n], draws [D, k]."""
    drawn = votes[draws]
    counts = (drawn[:, :, None] == drawn[:, None, :]).sum(axis=2)
    counts[drawn == NO_VOTE] = 0
    winner = draws[np.arange(len(draws)), counts.argmax(axis=1)]
    return np.where(counts.max(axis=1) > 0, values[winner], 0.0)


def sizes_up_to(n: int) -> list[int]:
    """1, 2, 4, ... below n, and n: the k of pass@k and maj@k."""
    sizes = []
    size = 1
    while size < n:
        sizes.append(size)
        size *= 2
    return [*sizes, n]


def solved_shares(correct: np.ndarray) -> tuple[float, float]:
    """Shares of problems that none of the samples solves, and that all of them solve."""
    return float((~correct.any(axis=1)).mean()), float(correct.all(axis=1).mean())


def bootstrap_means(values: np.ndarray, seed: int = SEED) -> np.ndarray:
    """[RESAMPLES] means of values [P] with problems drawn with replacement."""
    rng = np.random.default_rng(seed)
    count = len(values)
    chunk = max(1, _CHUNK_ENTRIES // count)
    means = []
    for start in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - start)
        means.append(values[rng.integers(0, count, (size, count))].mean(axis=1))
    return np.concatenate(means)


def block_bootstrap_means(values: np.ndarray, block: int, seed: int = SEED) -> np.ndarray:
    """[RESAMPLES] means of a series [N] made anew of blocks of `block` neighbours.

    Kuensch 1989's moving blocks: neighbours depend on each other, and drawn one by one they would
    look more certain than they are. Blocks start anywhere, overlap, and the last is cut.

    Raises:
        ValueError: block is not between 1 and N.
    """
    count = len(values)
    if not 1 <= block <= count:
        raise ValueError(f"blocks of {block} cannot be drawn from a series of {count}")
    rng = np.random.default_rng(seed)
    blocks = -(-count // block)
    chunk = max(1, _CHUNK_ENTRIES // count)
    means = []
    for start in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - start)
        first = rng.integers(0, count - block + 1, (size, blocks))
        index = (first[:, :, None] + np.arange(block)).reshape(size, -1)[:, :count]
        means.append(values[index].mean(axis=1))
    return np.concatenate(means)


def interval(means: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of bootstrapped means."""
    low, high = np.percentile(means, LEVEL)
    return float(low), float(high)


def bootstrap_of_benchmarks(per_benchmark: Sequence[np.ndarray], seed: int = SEED) -> np.ndarray:
    """[RESAMPLES] means over benchmarks of values [P_b], each benchmark drawn within itself."""
    drawn = [bootstrap_means(values, seed + i) for i, values in enumerate(per_benchmark)]
    return np.mean(drawn, axis=0)


def two_sided_p(differences: np.ndarray) -> float:
    """How often bootstrapped mean differences fall on the far side of 0, doubled; at most 1.

    One is added to count and total, so that it is never 0: the smallest is 2 / (RESAMPLES + 1).
    """
    below, above = (differences <= 0).sum(), (differences >= 0).sum()
    return float(min(1.0, 2 * (1 + min(below, above)) / (1 + len(differences))))


def distinct_4gram(pieces: Sequence[str]) -> float | None:
    """Distinct 4-grams over all 4-grams of one text's pieces; None with fewer than four pieces.

    1.0 never repeats; text that goes round in circles comes near 0.
    """
    count = len(pieces) - 3
    if count < 1:
        return None
    grams = set(zip(pieces, pieces[1:], pieces[2:], pieces[3:], strict=False))
    return len(grams) / count
