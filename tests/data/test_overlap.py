"""The three rules at their edges; n-grams counted by hand."""

import random

import pytest

from opdvr.data.overlap import find_overlaps


def words(prefix, count):
    return " ".join(f"{prefix}{i}" for i in range(count))


def only(problem, *references):
    return find_overlaps([problem], references).get(0)


def test_exact_names_the_first_row_in_any_spelling():
    match = only("Find  $X$", "other", "find \\(x\\)", "Find x.")
    assert (match.row, match.kind, match.share) == (1, "exact", 1.0)


def test_short_reference_inside_a_longer_problem():
    # 6 words: short, but no less; 5 words only as a whole.
    assert only(f"First {words('a', 6)}, and then more", words("a", 6)).kind == "contained"
    assert only(f"First {words('a', 5)}, and then more", words("a", 5)) is None


def test_contained_means_every_sign():
    assert only("Well, what is the sum of 2+3 today", "what is the sum of 2+3") is not None
    assert only("Well, what is the sum of 2-3 today", "what is the sum of 2+3") is None


@pytest.mark.parametrize(("shared", "kind"), [(14, "n-gram"), (13, None)])
def test_a_tenth_of_the_runs_when_they_are_rare(shared, kind):
    # 32 words have 32 - 13 + 1 = 20 runs of 13. 14 shared words have 2 of them, 2/20 = 0.1; 13 have
    # 1, which is 0.05. The problem is longer, so the reference is the shorter one.
    reference = f"{words('s', shared)} {words('r', 32 - shared)}"
    match = only(f"{words('p', 60)} {words('s', shared)}", reference)
    assert (match and match.kind) == kind
    if match:
        assert match.share == pytest.approx(0.1)


@pytest.mark.parametrize(("shared", "found"), [(16, True), (15, False)])
def test_a_fifth_of_the_runs_when_they_are_common(shared, found):
    # Six problems share the phrase, more than four: its runs are common. Of 20 runs 16 shared words
    # have 4 (0.2), and 15 have 3 (0.15).
    phrase = words("s", shared)
    problems = [f"{words(f'p{i}x', 60)} {phrase}" for i in range(5)]
    matches = find_overlaps(problems, [f"{phrase} {words('r', 32 - shared)}"])
    assert list(matches) == (list(range(5)) if found else [])


def test_the_shorter_side_counts():
    # The problem has 20 words, so 8 runs, all of which stand in a reference of 200 words.
    long = f"{words('r', 90)} {words('s', 20)} {words('t', 90)}"
    match = only(f"{words('s', 20)}", long)
    assert (match.kind, match.share) == ("n-gram", 1.0)


def test_the_reference_with_most_in_common_is_named():
    passage = words("s", 30)
    near, far = f"{passage} {words('a', 10)}", f"{words('s', 18)} {words('b', 22)}"
    assert only(f"{passage} and so on", far, near).row == 1


def test_repeated_problems_do_not_make_their_runs_common():
    # The same problem 10 times is one problem.
    problem = f"{words('p', 60)} {words('s', 14)}"
    matches = find_overlaps([problem] * 10, [f"{words('s', 14)} {words('r', 18)}"])
    assert len(matches) == 10


def test_strangers_do_not_overlap():
    draw = random.Random(0)
    texts = [" ".join(str(draw.randrange(1000)) for _ in range(40)) for _ in range(200)]
    assert find_overlaps(texts[:100], texts[100:]) == {}
    assert list(find_overlaps(texts, texts[100:])) == list(range(100, 200))


def test_empty_sides():
    assert find_overlaps([], ["a"]) == {} and find_overlaps(["a"], []) == {}
