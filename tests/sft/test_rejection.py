"""Which completions are rejected, for which reason, and who is asked about them."""

import time

import pytest

from opdvr.eval.problems import Problem
from opdvr.eval.verdicts import Rules, VerifierFailure
from opdvr.inference import Completion
from opdvr.sft.rejection import KEEP_ALL, REASONS, Rejection
from opdvr.sft.rollout_verdicts import Judge

LINE = "so the sum is 12 + 28\n"
RIGHT = "\\boxed{40}"


def problem(gold="40"):
    return Problem("a:d:0", 0, "a", [{"role": "user", "content": "12+28=?"}], gold, None)


def completion(text, finish="stop"):
    return Completion(0, 0, (5, 6), text, finish)


def reasons(texts, rejection=None, gold="40", rules=None, limit=60.0):
    judge = Judge(rejection or Rejection(), rules or Rules(), limit)
    completions = [
        completion(*text) if isinstance(text, tuple) else completion(text) for text in texts
    ]
    return judge.reasons([problem(gold)] * len(texts), completions)


def test_each_reason():
    chunk = "".join(chr(200 + place) for place in range(100))
    block = "".join(chr(400 + place) for place in range(60))
    long = "".join(chr(1000 + place) for place in range(5000))
    texts = [
        (RIGHT, "length"),
        "the sum is 40",
        "\\boxed{41}",
        LINE * 5 + RIGHT,
        chunk + "1" + chunk + "2" + chunk + RIGHT,
        block * 3 + long + RIGHT,
        RIGHT,
    ]
    assert reasons(texts) == [*REASONS, None]
    # the block is 180 characters in all, too few for a chunk of 100 thrice
    assert reasons([texts[5]], Rejection(block_times=0)) == [None]


def test_the_first_reason_counts():
    everything = LINE * 9 + "\\boxed{41}"
    assert reasons([(everything, "length")]) == ["truncated"]
    assert reasons([everything]) == ["incorrect"]
    assert reasons([LINE * 9], Rejection(box=False, correct=False)) == ["repeated_line"]
    # without a box it is wrong for the verifier too
    assert reasons(["40"], Rejection(box=False)) == ["incorrect"]


def test_each_filter_can_be_switched_off():
    text = LINE * 5 + "\\boxed{41}"
    assert reasons([(text, "length")], Rejection(truncated=False)) == ["incorrect"]
    off = Rejection(correct=False, line_times=0, chunk_times=0)
    assert reasons([text], off) == [None]
    assert reasons([(LINE * 300, "length")], KEEP_ALL) == [None]
    assert reasons([LINE * 4 + RIGHT], Rejection(line_times=4)) == ["repeated_line"]


def test_without_a_gold_answer_nothing_is_incorrect():
    assert reasons(["\\boxed{41}", "41"], gold=None) == [None, "no_box"]


def test_answer_forms_are_the_verifiers():
    text = "The answer is 40."
    assert reasons([text]) == ["no_box"]
    assert reasons([text], rules=Rules(answer_forms="any")) == [None]


def verifier(tmp_path, body):
    path = tmp_path / "mine.py"
    path.write_text(f"def f(data_source, solution_str, ground_truth, extra_info=None):\n{body}")
    return Rules(verifier=f"{path}:f")


def test_a_verifier_of_ones_own_decides(tmp_path):
    rules = verifier(tmp_path, "    return float('41' in solution_str)\n")
    assert reasons(["\\boxed{41}", RIGHT], rules=rules) == [None, "incorrect"]


def test_a_verifier_that_fails_is_named(tmp_path):
    rules = verifier(tmp_path, "    raise KeyError('no')\n")
    with pytest.raises(VerifierFailure, match="a:d:0.*KeyError") as failure:
        reasons([RIGHT], rules=rules)
    assert "mine.py" in failure.value.trace


@pytest.mark.parametrize(
    "body",
    [
        "    import time; time.sleep(60)\n",
        "    while True: pass\n",
        "    while True:\n        try:\n            sum(range(9))\n        except Exception:\n"
        "            pass\n",
    ],
)
def test_a_verifier_that_hangs_ends_the_run_and_not_the_patience(tmp_path, body):
    rules = verifier(tmp_path, body)
    started = time.monotonic()
    with pytest.raises(VerifierFailure, match=r"slot 0 of a:d:0: no verdict within 0.2 s"):
        reasons([RIGHT], rules=rules, limit=0.2)
    assert time.monotonic() - started < 10
