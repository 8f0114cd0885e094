"""Answers of a server: read to the number, or refused with what was expected and found."""

import json

import numpy as np
import pytest

from opdvr.teacher.answers import Asked, Malformed, read_scores, server_message

IDS = np.array([3, 1, 2, 0], np.int32)


def entry(**log_probs):
    """An entry of vLLM, ranks by falling log-prob."""
    falling = sorted(log_probs.values(), reverse=True)
    return {
        key[1:]: {"logprob": value, "rank": falling.index(value) + 1, "decoded_token": None}
        for key, value in log_probs.items()
    }


def asked(start=2, k=2, vocabulary=9):
    return Asked(IDS, start, k, vocabulary, "m")


def body(*entries, model="m", **more):
    answer = {"model": model, "choices": [{"prompt_logprobs": [None, *entries]}]}
    return json.dumps(answer | more).encode()


# Token 2 is the most probable; token 0 comes behind the two most probable, 5 and 1. Any order.
FIRST = entry(_1=-9.0)
SECOND = entry(_7=-2.0, _2=-0.5)
THIRD = entry(_0=-3.0, _1=-1.5, _5=-0.5)
GOOD = body(FIRST, SECOND, THIRD)


def test_scores_by_id_and_by_falling_probability():
    scores = read_scores(GOOD, asked())
    np.testing.assert_array_equal(scores.log_probs, np.float32([-0.5, -3.0]))
    np.testing.assert_array_equal(scores.top_ids, [[2, 7], [5, 1]])
    np.testing.assert_array_equal(scores.top_log_probs, np.float32([[-0.5, -2.0], [-0.5, -1.5]]))
    assert scores.log_probs.dtype == scores.top_log_probs.dtype == np.float32
    assert scores.top_ids.dtype == np.int32


def test_entries_before_the_response_are_not_read():
    scores = read_scores(body(None, SECOND, THIRD), asked())
    assert scores.log_probs.shape == (2,)


def test_without_top_k_the_token_alone():
    scores = read_scores(body(FIRST, entry(_2=-0.5), entry(_0=-3.0)), asked(k=0))
    np.testing.assert_array_equal(scores.log_probs, np.float32([-0.5, -3.0]))
    assert scores.top_ids is None and scores.top_log_probs is None


def test_an_empty_response_has_empty_scores():
    scores = read_scores(GOOD, asked(start=4))
    assert scores.log_probs.shape == (0,)
    assert scores.top_ids.shape == (0, 2)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (body(FIRST, SECOND), "expected prompt_logprobs of 4 tokens, found 3"),
        (body(FIRST, SECOND, THIRD, THIRD), "of 4 tokens, found 5"),
        (body(FIRST, SECOND, None), "expected log-probs at token 3, found 'null'"),
        (body(FIRST, SECOND, entry(_0=-1.0)), "expected 2 or 3 log-probs at token 3, found 1"),
        (
            body(FIRST, SECOND, entry(_0=-3.0, _1=-1.5, _5=-0.5, _6=-4.0)),
            "expected 2 or 3 log-probs at token 3, found 4",
        ),
        (body(FIRST, SECOND, entry(_5=-0.5, _1=-1.5)), "expected token 0 itself at token 3"),
        (body(FIRST, SECOND, entry(_0=-0.5, _1=0.5)), "finite log-probs of 0 at most at token 3"),
        (body(FIRST, SECOND, entry(_0=-9999.0, _1=-0.5)), "probabilities above 0 at token 3"),
        (body(FIRST, SECOND, entry(_0=-1e300, _1=-0.5)), "probabilities above 0 at token 3"),
        (body(FIRST, SECOND, entry(_0=-3.0, _9=-0.5)), "expected ids below 9"),
        (body(FIRST, SECOND, {"-1": {"logprob": -1.0}} | entry(_0=-2.0)), "ids of tokens"),
        (body(FIRST, SECOND, {"9" * 30: {"logprob": -1.0}} | entry(_0=-2.0)), "at token 3"),
        (body(FIRST, SECOND, {"a": {"logprob": -1.0}} | entry(_0=-2.0)), "log-probs at token 3"),
        (body(FIRST, SECOND, {"0": {"logprob": None}} | entry(_1=-2.0)), "log-probs at token 3"),
        (body(FIRST, SECOND, {"0": {}} | entry(_1=-2.0)), "expected log-probs at token 3"),
        (body(FIRST, SECOND, entry(_0=-0.4, _1=-1.5, _5=-2.5)), "a more probable one beside them"),
        (body(FIRST, SECOND, entry(_0=-0.1, _1=-0.11)), "add up to 1 at most at token 3"),
        (GOOD.replace(b"-3.0", b"NaN"), "expected log-probs at token 3|NaN in place of a number"),
        (GOOD.replace(b"-3.0", b"-Infinity"), "not that of a vLLM"),
        (GOOD.replace(b"-3.0", b"1e999"), "expected log-probs at token 3"),
        (body(FIRST, SECOND, THIRD, model="n"), "expected model 'm', the answer is of 'n'"),
        (b"<html>hello</html>", "not that of a vLLM server"),
        (b"", "not that of a vLLM server"),
        (b"\xff\xfe", "not that of a vLLM server"),
        (GOOD[:-20], "not that of a vLLM server"),
        (b"[]", "not that of a vLLM server"),
        (b'{"model": "m", "choices": []}', "no choices"),
        (b'{"model": "m", "choices": [{"text": "x"}]}', "no prompt_logprobs"),
        (b'{"error": {"message": "broken", "code": 500}}', "an error came with status 200: broken"),
        (b'{"object": "error", "message": "broken"}', "no choices: broken"),
    ],
)
def test_what_is_wrong_is_refused(answer, fault):
    with pytest.raises(Malformed, match=fault):
        read_scores(answer, asked())


def test_a_log_prob_a_hair_above_zero_is_rounding():
    scores = read_scores(body(FIRST, SECOND, entry(_0=5e-5, _1=-12.0)), asked())
    assert scores.log_probs[1] == np.float32(5e-5)


def test_equal_log_probs_keep_the_token_out_of_the_top():
    # Ids 1 and 5 tie with the token itself, as the last of the top K may.
    tied = entry(_0=-1.5, _5=-0.5, _1=-1.5)
    tied["0"]["rank"] = 3
    scores = read_scores(body(FIRST, SECOND, tied), asked())
    np.testing.assert_array_equal(scores.top_ids[1], [5, 1])


def test_a_gap_among_the_top_is_found_by_its_rank():
    gap = {"0": {"logprob": -3.0, "rank": 3}, "5": {"logprob": -0.5, "rank": 1}}
    with pytest.raises(Malformed, match="ranks 1 to 2 at token 3, found others"):
        read_scores(body(FIRST, SECOND, gap), asked())


def test_answers_without_ranks_are_read():
    bare = {"0": {"logprob": -3.0}, "5": {"logprob": -0.5, "rank": None}}
    assert read_scores(body(FIRST, SECOND, bare), asked()).top_ids[1].tolist() == [5, 0]


def test_a_message_is_short_and_in_a_line():
    said = server_message(json.dumps({"error": {"message": "a\n b" + "x" * 999}}).encode())
    assert said.startswith("a bxxx") and len(said) < 310
