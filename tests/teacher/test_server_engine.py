"""The engine against servers that answer well, wrongly, late or not at all."""

import gc
import threading
import time
import traceback

import numpy as np
import pytest
from aiohttp import web
from fake_server import ABORT, VOCABULARY, FakeServer, after_probe, wait_for
from server_setup import Running, require_right, sequences

from opdvr.teacher import pool_state
from opdvr.teacher.engines import TeacherError, TeacherUnavailable, WrongAnswer


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(pool_state, "FIRST_WAIT_S", 0.02)


@pytest.mark.parametrize("k", [0, 1, 5])
def test_scores_are_those_of_the_model(k):
    work = sequences(12)
    with FakeServer() as server, Running(server.url, top_k=k) as running:
        require_right(work, running.score(work), k)
        assert running.twice == []


def test_requests_carry_ids_and_bend_nothing():
    work = sequences(1)
    with FakeServer() as server, Running(server.url, top_k=3) as running:
        running.score(work)
        asked = server.asked[-1]
    assert asked["prompt"] == work[0].token_ids.tolist()
    assert (asked["max_tokens"], asked["prompt_logprobs"]) == (1, 3)
    neutral = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
    assert {name: asked[name] for name in neutral} == neutral


def test_requests_under_way_are_bounded_and_the_bound_is_reached():
    with FakeServer(delay_s=0.03) as server, Running(server.url, max_in_flight=3) as running:
        running.score(sequences(15))
        assert server.most_at_once == 3


def test_the_bound_holds_for_a_server_of_two_teachers():
    work = sequences(10, "a") + sequences(10, "b", first=10)
    with FakeServer(delay_s=0.03) as server:
        urls = f"a={server.url},b={server.url}"
        with Running(urls, max_in_flight=3) as running:
            require_right(work, running.score(work))
            assert server.most_at_once == 3


def test_each_source_has_its_own_teacher():
    code, rest = sequences(6, "code"), sequences(6, "else", first=6)
    with FakeServer(seed=1) as one, FakeServer(seed=2) as other:
        with Running(f"code={one.url},{other.url}") as running:
            running.engine.add(code + rest)
            require_right(code, running.wait(code), seed=1)
            require_right(rest, running.wait(rest), seed=2)


def test_a_source_without_a_teacher_is_refused():
    with FakeServer() as server, Running(f"code={server.url}") as running:
        with pytest.raises(TeacherError, match="row 0: .*no server for data_source 'any'"):
            running.engine.add(sequences(1))


def broken(edit):
    """A fault of the answer to anything but the probe, in the middle of the response."""
    return after_probe(
        lambda *_: lambda answer: edit(answer["choices"][0]["prompt_logprobs"], answer)
    )


def first_of(entry):
    return next(iter(entry.values()))


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda e, a: e.pop(), "tokens, found"),
        (lambda e, a: e.__setitem__(6, None), "at token 6, found 'null'"),
        (lambda e, a: e[6].popitem(), "at token 6, found"),
        (lambda e, a: e[6].pop(next(iter(e[6]))), "at token 6"),
        (lambda e, a: first_of(e[6]).update(logprob=float("nan")), "at token 6|no|not that"),
        (lambda e, a: first_of(e[6]).update(logprob=0.5), "0 at most at token 6"),
        (lambda e, a: first_of(e[6]).update(logprob=-9999.0), "form of probability 0"),
        (lambda e, a: a.update(model="other"), "the answer is of 'other'"),
        (lambda e, a: a.update(error={"message": "ill"}), "with status 200: ill"),
    ],
)
def test_a_wrong_answer_ends_the_run(edit, fault):
    with FakeServer(fault=broken(edit)) as server, Running(server.url, top_k=2) as running:
        with pytest.raises(WrongAnswer, match=rf"{server.url}: row \d: .*({fault})"):
            running.score(sequences(3))
        assert running.scores == {}


def test_a_page_instead_of_an_answer_ends_the_run():
    page = after_probe(lambda *_: web.Response(text="<html>welcome</html>"))
    with FakeServer(fault=page) as server, Running(server.url) as running:
        with pytest.raises(WrongAnswer, match="not that of a vLLM server"):
            running.score(sequences(1))


def test_a_wrong_probe_stops_the_start():
    with FakeServer(fault=lambda *_: lambda answer: answer.update(model="x")) as server:
        with pytest.raises(WrongAnswer, match="the probe: expected model"):
            Running(server.url)


def test_ids_beyond_the_students_vocabulary_are_refused():
    few = 30
    with FakeServer() as server, Running(server.url, top_k=9, vocabulary=few) as running:
        work = sequences(8)
        for sequence in work:
            np.minimum(sequence.token_ids, few - 1, out=sequence.token_ids)
        with pytest.raises(WrongAnswer, match="ids below 30, the student's vocabulary"):
            running.score(work)


@pytest.mark.parametrize(
    ("status", "headers"), [(500, {}), (503, {}), (429, {"Retry-After": "0"}), (502, {})]
)
def test_passing_faults_are_tried_again(status, headers):
    def fault(server, number, asked):
        if number in (2, 5, 6):
            return web.Response(status=status, text="busy", headers=headers)

    work = sequences(8)
    with FakeServer(fault=fault) as server, Running(server.url) as running:
        require_right(work, running.score(work))
        assert running.twice == []


def test_a_connection_cut_half_way_through_an_answer_is_tried_again(capfd):
    work = sequences(8)
    with FakeServer(fault=lambda s, n, a: ABORT if n in (3, 4) else None) as server:
        with Running(server.url, top_k=2) as running:
            require_right(work, running.score(work), 2)
            assert running.twice == []
    said = capfd.readouterr().out
    assert "lost (the connection broke half way through an answer)" in said
    assert "back after" in said


def test_a_request_out_of_time_is_tried_again():
    def slow(server, number, asked):
        if number == 2:
            time.sleep(0.6)  # the whole server: nothing else is answered meanwhile

    work = sequences(4)
    with FakeServer(fault=slow) as server, Running(server.url, timeout_s=0.2) as running:
        require_right(work, running.score(work))


def test_a_sequence_that_always_fails_is_named():
    def poison(server, number, asked):
        return web.Response(status=500, text="boom") if len(asked["prompt"]) == 15 else None

    with FakeServer(fault=poison) as server, Running(server.url, max_in_flight=1) as running:
        with pytest.raises(TeacherUnavailable, match=r"row 3 failed 6 times.*500: boom"):
            running.score(sequences(4))


def test_too_many_log_probs_have_a_remedy():
    with FakeServer(max_logprobs=3) as server:
        with pytest.raises(TeacherError, match="logprobs of 5.*--max-logprobs K"):
            Running(server.url, top_k=5)


def test_a_model_that_is_gone_is_a_wrong_answer():
    def rename(server, number, asked):
        server.model = "other"

    with FakeServer(fault=rename) as server:
        with pytest.raises(WrongAnswer, match="does not exist|the answer is of 'other'"):
            with Running(server.url) as running:
                running.score(sequences(2))


KEY = "sk-very-secret-1234"


def test_the_key_is_sent_as_bearer():
    with FakeServer(key=KEY) as server, Running(server.url, key=KEY) as running:
        running.score(sequences(1))
        assert server.keys == {f"Bearer {KEY}"}


@pytest.mark.parametrize("kind", ["refused", "echoed", "gone"])
def test_no_message_shows_the_key(kind, capfd):
    def echo(server, number, asked):
        return web.Response(status=400, text=f"bad request of {KEY}")

    server = FakeServer(key="other" if kind == "refused" else None, fault=echo)
    if kind == "gone":
        server.stop()
    with pytest.raises(TeacherError) as error:
        Running(server.url, key=KEY, patience_s=0.2)
    server.stop()
    shown = "".join(traceback.format_exception(error.value)) + "".join(capfd.readouterr())
    assert KEY not in shown
    assert (kind == "refused") == ("TEACHER_API_KEY" in str(error.value))
    cause = error.value
    while cause is not None:
        assert KEY not in repr(cause)
        cause = cause.__cause__ or cause.__context__


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakeServer() as server, Running(server.url) as running:
        work = sequences(1)
        require_right(work, running.score(work))


def test_close_leaves_nothing_behind(capfd):
    with FakeServer(delay_s=5) as server:
        server.delay_s = 0
        running = Running(server.url)
        server.delay_s = 5
        running.engine.add(sequences(6))
        wait_for(lambda: server.now > 0)
        before = time.monotonic()
        running.engine.close()
        assert time.monotonic() - before < 2
        running.engine.close()
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name == "teacher-server"]
    assert running.scores == {} and running.failures == []
    errors = capfd.readouterr().err
    assert "destroyed" not in errors and "Unclosed" not in errors and "Traceback" not in errors


def test_a_fault_of_our_own_reaches_failed(monkeypatch):
    def fails(key, scores):
        raise ZeroDivisionError("of the receiver")

    with FakeServer() as server, Running(server.url) as running:
        monkeypatch.setattr(running.engine._pool, "_done", fails)
        with pytest.raises(ZeroDivisionError):
            running.score(sequences(2))


def test_the_probe_is_below_the_vocabulary():
    with FakeServer() as server, Running(server.url):
        probe = server.asked[0]["prompt"]
    assert len(probe) == 64 and max(probe) < VOCABULARY
