"""Which problems of one file stand in another: in the same words, inside a longer text, or nearly.

The first rule that holds decides:

1. exact: the same levelled text (`opdvr.data.text.levelled`);
2. contained: a reference of 6 to 12 words stands inside the problem;
3. n-gram: of the runs of 13 words that the shorter of the two has, a fifth stand in both, or a
   tenth when common runs are not counted: those that more than four problems have.

One shared run is no sign of a leak: "can be written as m/n, where m and n are relatively prime
positive integers, find m + n" is longer than 13 words and stands in hundreds of problems.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from opdvr.data.text import levelled, words_of

NGRAM_WORDS = 13
# Shorter references are met by chance: they count only when they are the whole problem.
SHORT_WORDS = 6
SHARED_FRACTION = 0.2
RARE_SHARED_FRACTION = 0.1
COMMON_ABOVE = 4


@dataclass(frozen=True, slots=True)
class Match:
    """The row of the reference that a problem overlaps with, by which rule, and how much.

    `share` is the fraction of the shorter one's n-grams that both have; 1.0 for the other rules.
    """

    row: int
    kind: str
    share: float = 1.0


class _Index:
    """Reference problems, prepared for looking up others; of equal ones the first counts."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.exact: dict[str, int] = {}
        self.short: dict[int, list[tuple[int, str]]] = {}
        self.ngrams: dict[int, list[int]] = {}
        self.n_ngrams: dict[int, int] = {}
        for row, problem in enumerate(problems):
            text = levelled(problem)
            if self.exact.setdefault(text, row) != row:
                continue
            words = words_of(problem)
            ngrams = set(_hashes(words, NGRAM_WORDS))
            self.n_ngrams[row] = len(ngrams)
            for ngram in ngrams:
                self.ngrams.setdefault(ngram, []).append(row)
            if SHORT_WORDS <= len(words) < NGRAM_WORDS:
                start = next(_hashes(words, SHORT_WORDS))
                self.short.setdefault(start, []).append((row, text))

    def contained(self, words: Sequence[str], text: str) -> int | None:
        """The first short reference inside a problem; its first words lead to the candidates."""
        if not self.short:
            return None
        for start in _hashes(words, SHORT_WORDS):
            for row, reference in self.short.get(start, ()):
                if reference in text:
                    return row
        return None

    def best(self, ngrams: Iterable[int], of: int) -> tuple[int | None, float]:
        """The row with the largest share of these common n-grams, where the problem has `of`."""
        shared = Counter(row for ngram in ngrams for row in self.ngrams[ngram])
        shares = {row: count / min(of, self.n_ngrams[row]) for row, count in shared.items()}
        # Of equal shares the earliest row, so that the answer does not hang on the hashes.
        row = max(shares, key=lambda row: (shares[row], -row), default=None)
        return row, shares.get(row, 0.0)


def find_overlaps(problems: Iterable[str], references: Sequence[str]) -> dict[int, Match]:
    """Where `problems` overlap with `references`: a match by position, in order."""
    index = _Index(references)
    matches: dict[int, Match] = {}
    # Problems that share n-grams with the references: those n-grams, and how many it has in all.
    candidates: dict[int, tuple[list[int], int]] = {}
    # In how many distinct problems an n-gram of the references stands, on both sides.
    problems_with = Counter({ngram: len(rows) for ngram, rows in index.ngrams.items()})
    seen: dict[str, int] = {}
    for row, problem in enumerate(problems):
        text = levelled(problem)
        first = seen.setdefault(text, row)
        if first != row:
            if first in matches:
                matches[row] = matches[first]
            elif first in candidates:
                candidates[row] = candidates[first]
        elif text in index.exact:
            matches[row] = Match(index.exact[text], "exact")
        else:
            words = words_of(problem)
            short = index.contained(words, text)
            if short is not None:
                matches[row] = Match(short, "contained")
                continue
            ngrams = set(_hashes(words, NGRAM_WORDS))
            shared = [ngram for ngram in ngrams if ngram in index.ngrams]
            problems_with.update(shared)
            if shared:
                candidates[row] = (shared, len(ngrams))
    for row, (shared, n_ngrams) in candidates.items():
        match = _ngram_match(index, shared, n_ngrams, problems_with)
        if match is not None:
            matches[row] = match
    return dict(sorted(matches.items()))


def _ngram_match(
    index: _Index, shared: list[int], n_ngrams: int, problems_with: Counter[int]
) -> Match | None:
    row, share = index.best(shared, n_ngrams)
    if row is not None and share >= SHARED_FRACTION:
        return Match(row, "n-gram", share)
    rare = [ngram for ngram in shared if problems_with[ngram] <= COMMON_ABOVE]
    row, share = index.best(rare, n_ngrams)
    if row is not None and share >= RARE_SHARED_FRACTION:
        return Match(row, "n-gram", share)
    return None


def _hashes(words: Sequence[str], length: int) -> Iterator[int]:
    # 64-bit hashes in place of the words: a million of them meet by chance once in 10^7 times.
    for start in range(len(words) - length + 1):
        yield hash(tuple(words[start : start + length]))
