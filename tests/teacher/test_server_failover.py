"""Servers that die, come back, or come back as another."""

import re
import time

import numpy as np
import pytest
from fake_server import FakeServer, after_probe, expected, wait_for
from server_setup import Running, sequences

from opdvr.teacher import pool_state
from opdvr.teacher.engines import TeacherUnavailable, WrongAnswer


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(pool_state, "FIRST_WAIT_S", 0.05)


def undisturbed(work, k=3):
    with FakeServer() as server, Running(server.url, top_k=k) as running:
        return running.score(work)


def test_a_server_killed_half_way_costs_no_score_and_changes_none(capfd):
    work = sequences(60)
    truth = undisturbed(work)
    with FakeServer(delay_s=0.02) as one, FakeServer(delay_s=0.02) as other:
        with Running(f"{one.url},{other.url}", top_k=3) as running:
            running.engine.add(work)
            wait_for(lambda: len(running.scores) > 15)
            one.stop()
            found = running.wait(work)
            assert running.twice == []
    assert one.scored > 5 and other.scored > 30
    for right, now in zip(truth, found, strict=True):
        np.testing.assert_array_equal(right.log_probs, now.log_probs)
        np.testing.assert_array_equal(right.top_ids, now.top_ids)
        np.testing.assert_array_equal(right.top_log_probs, now.top_log_probs)
        assert (now.log_probs < 0).all()
    said = capfd.readouterr().out
    lost = re.findall(rf"opdvr: teacher: {one.url} lost \((.*)\); (\d+) of its requests", said)
    assert len(lost) == 1 and 1 <= int(lost[0][1]) <= 4


def test_the_only_server_comes_back_and_work_goes_on(capfd):
    work = sequences(30)
    with FakeServer(delay_s=0.02) as first, Running(first.url) as running:
        running.engine.add(work)
        wait_for(lambda: len(running.scores) > 5)
        first.stop()
        time.sleep(0.3)
        with FakeServer(port=first.port) as second:
            found = running.wait(work)
            assert second.scored > 5
        assert running.twice == []
    for sequence, scores in zip(work, found, strict=True):
        own, _, _ = expected(sequence.token_ids, sequence.response_start)
        np.testing.assert_allclose(scores.log_probs, own, atol=1e-6)
    said = capfd.readouterr().out
    assert re.search(r"back after 0\.\d s, [1-4] requests were moved", said)


@pytest.mark.parametrize(
    ("another", "fault"),
    [
        ({"model": "fake/other"}, r"served fake/teacher before and came back with fake/other"),
        ({"seed": 5}, r"came back as fake/teacher with other weights .* differ by \d.* nats"),
    ],
)
def test_a_server_that_comes_back_as_another_gets_no_work(another, fault):
    work = sequences(30)
    with FakeServer(delay_s=0.02) as first, Running(first.url) as running:
        running.engine.add(work)
        wait_for(lambda: len(running.scores) > 5)
        first.stop()
        with FakeServer(port=first.port, **another) as second:
            with pytest.raises(WrongAnswer, match=fault):
                running.wait(work)
            assert second.scored <= 1  # its probe


def test_servers_of_one_teacher_must_agree_and_of_two_need_not():
    with FakeServer(seed=1) as one, FakeServer(seed=2) as other:
        with pytest.raises(WrongAnswer) as error:
            Running(f"{one.url},{other.url}")
        assert one.url in str(error.value) and other.url in str(error.value)
        with Running(f"a={one.url},b={other.url}"):
            pass


def test_a_server_that_is_away_at_the_start_is_taken_in_later(capfd):
    work = sequences(80)
    late = FakeServer()
    late.stop()
    with FakeServer(delay_s=0.02) as server:
        with Running(f"{server.url},{late.url}") as running:
            running.engine.add(work)
            with FakeServer(port=late.port) as late:
                running.wait(work)
                assert late.scored > 1
    said = capfd.readouterr().out
    assert f"{late.url} is not there (connection refused)" in said
    assert f"{late.url} back after" in said


def test_when_all_are_gone_patience_ends_with_the_reasons():
    work = sequences(40)
    with FakeServer(delay_s=0.02) as one, FakeServer(delay_s=0.02) as other:
        with Running(f"{one.url},{other.url}", patience_s=0.5) as running:
            running.engine.add(work)
            wait_for(lambda: len(running.scores) > 5)
            one.stop()
            other.stop()
            before = time.monotonic()
            with pytest.raises(TeacherUnavailable) as error:
                running.wait(work)
            assert 0.3 < time.monotonic() - before < 3
    for part in (one.url, other.url, "connection refused", "TEACHER_PATIENCE"):
        assert part in str(error.value)


def test_idle_time_is_not_counted_as_patience():
    with FakeServer() as first, Running(first.url, patience_s=0.4) as running:
        running.score(sequences(2))
        first.stop()
        time.sleep(0.8)
        work = sequences(3, first=2)
        running.engine.add(work)
        with FakeServer(port=first.port):
            running.wait(work)


def test_a_server_that_hangs_with_work_is_given_up():
    def hang(server, number, asked):
        server.delay_s = 60

    with FakeServer(fault=after_probe(hang)) as server:
        server.fault = after_probe(lambda s, n, a: None)
        with Running(server.url, timeout_s=0.2, patience_s=0.3) as running:
            server.delay_s = 60
            before = time.monotonic()
            with pytest.raises(TeacherUnavailable, match="no answer within 0.2 s"):
                running.score(sequences(2))
            assert time.monotonic() - before < 4


def test_work_goes_to_the_least_loaded():
    with FakeServer(delay_s=0.2) as slow, FakeServer(delay_s=0.005) as fast:
        with Running(f"{slow.url},{fast.url}") as running:
            running.score(sequences(60))
        assert fast.scored > 2 * slow.scored
