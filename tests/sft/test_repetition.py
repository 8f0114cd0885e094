"""Repetition: each rule at its threshold, against brute force, and in time on texts of 100 kB."""

import random
import string
import time

import pytest

from opdvr.sft.repetition import repeated_block, repeated_chunk, repeated_line

SIZE = 100_000


def noise(count, seed=0, letters=string.ascii_letters + string.digits + " "):
    generator = random.Random(seed)
    return "".join(generator.choice(letters) for _ in range(count))


def test_a_line_counts_from_20_characters_and_5_times():
    line = "x = 1; y = 2; z = 30"  # 20 characters
    assert len(line) == 20
    assert repeated_line("\n".join([line] * 5))
    assert not repeated_line("\n".join([line] * 4))
    assert not repeated_line("\n".join([line[:-1]] * 5))
    # white space around it does not count, and other lines may stand between
    assert repeated_line("\n other\n".join(["  " + line, line + " ", line, line, line]))
    assert not repeated_line("\n".join([" " * 30] * 9))


def test_a_chunk_counts_from_100_characters_and_3_times():
    chunk = noise(100)
    apart = [noise(333, seed) for seed in (1, 2, 3, 4)]
    three = chunk.join(apart)
    assert three.count(chunk) == 3 and repeated_chunk(three)
    assert not repeated_chunk(chunk.join(apart[:3]))
    assert not repeated_chunk(three.replace(chunk, chunk[:99]))


def test_chunks_that_overlap_count_once():
    # of 299 times the same letter 100 fit in twice, of 300 three times
    assert not repeated_chunk("a" * 299)
    assert repeated_chunk("a" * 300)


def test_a_block_counts_from_50_characters_and_3_times_in_a_row():
    block = noise(50)
    head, tail = noise(3000, 1), noise(3000, 2)
    assert repeated_block(head + block * 3 + tail)
    assert not repeated_block(head + block * 2 + tail)
    assert not repeated_block(head + block * 2 + block[:-1] + "%" + tail)
    # not in a row
    assert not repeated_block(head + "%".join([block] * 3) + tail)
    # 25 characters six times are 50 three times; five times are not
    assert repeated_block(head + block[:25] * 6 + tail)
    assert not repeated_block(head + block[:25] * 5 + tail)
    # up to 5,000 characters nothing is searched
    long = block * 3 + noise(6000, 3)
    assert not repeated_block(long[:5000])
    assert repeated_block(long[:5001])


@pytest.mark.parametrize("period", [50, 299, 300, 301, 599, 600, 1201, 7777, 30_000])
def test_blocks_of_every_length_wherever_they_stand(period):
    for start in (0, 1, 449, 5003):
        block = noise(period, period)
        text = noise(start, 1) + block * 3 + noise(6000, 2)
        assert repeated_block(text)
        place = start + 2 * period + period // 2
        other = text[:place] + "%" + text[place + 1 :]
        assert not repeated_block(other)


def brute_block(text, length, times):
    return any(
        text[start : start + period] * times == text[start : start + times * period]
        for period in range(length, len(text) // times + 1)
        for start in range(len(text) - times * period + 1)
    )


def brute_chunk(text, length, times):
    return any(
        text.count(text[start : start + length]) >= times for start in range(len(text) - length + 1)
    )


def test_as_brute_force_finds():
    generator = random.Random(1)
    found = [0, 0]
    for _ in range(4000):
        text = noise(generator.randint(0, 60), generator.random(), generator.choice(["ab", "abc"]))
        if generator.random() < 0.6:
            piece = noise(generator.randint(1, 16), generator.random(), "ab")
            place = len(text) // 3
            text = text[:place] + piece * generator.randint(1, 5) + text[place:]
        length, times = generator.randint(1, 4), generator.randint(2, 4)
        block = repeated_block(text, length, times, over=0)
        chunk = repeated_chunk(text, length, times)
        assert block == brute_block(text, length, times), (text, length, times)
        assert chunk == brute_chunk(text, length, times), (text, length, times)
        found[0] += block
        found[1] += chunk
    assert min(found) > 500 and max(found) < 3950


def fibonacci(count):
    one, other = "a", "ab"
    while len(other) < count:
        one, other = other, other + one
    return other[:count]


def marked(text, every):
    """With a sign of its own at every so many places: nearly periodic, and no block in a row."""
    return "".join("#" if place % every == 0 else sign for place, sign in enumerate(text))


HOSTILE = {
    "one letter": "a" * SIZE,
    "two letters": "ab" * (SIZE // 2),
    "fibonacci": fibonacci(SIZE),
    "thue-morse": "".join("ab"[place.bit_count() % 2] for place in range(SIZE)),
    "nearly periodic": marked((noise(700) * SIZE)[:SIZE], 1301),
    "short runs": "".join("a" * 140 + chr(200 + place) for place in range(700)),
    "runs of periods": "".join(noise(290, place) * 2 + "%" for place in range(170)),
    "a long block": noise(33_000) * 3,
    "noise of two": noise(SIZE, letters="ab"),
    "noise": noise(SIZE),
    "line breaks": "\n" * SIZE,
    "a line": (noise(30) + "\n") * (SIZE // 31),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_in_time_on_100_kb(name):
    started = time.process_time()
    for rule in (repeated_line, repeated_chunk, repeated_block):
        rule(HOSTILE[name])
    # 0.15 s on two slow cores; a quadratic search takes minutes
    assert time.process_time() - started < 3


def test_none_are_found_in_noise_and_without_cubes():
    assert not any(rule(HOSTILE["noise"]) for rule in (repeated_line, repeated_chunk))
    assert not repeated_block(HOSTILE["noise"])
    # the Thue-Morse word has no block three times in a row, and Fibonacci's has
    assert not repeated_block(HOSTILE["thue-morse"])
    assert repeated_block(HOSTILE["fibonacci"])
    assert not repeated_block(HOSTILE["runs of periods"])
    assert not repeated_block(HOSTILE["nearly periodic"])


def test_half_characters_are_characters():
    assert repeated_block("\ud800" * 6000)
    assert not repeated_block("")
