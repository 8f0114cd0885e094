"""Servers that want less, hang, or never end: what a run does with them."""

import time

import pytest
from aiohttp import web
from fake_server import FakeServer, after_probe
from server_setup import Running, require_right, sequences

from opdvr.teacher.engines import WrongAnswer


def test_a_server_that_takes_few_at_once_is_not_starved_by_its_own_refusals():
    """Four at once, 429 for all others: as fast, within reason, as with the right limit."""

    def crowded(server, number, asked):
        return web.Response(status=429) if server.now > 4 else None

    with FakeServer(delay_s=0.01, fault=crowded) as server:
        with Running(server.url, max_in_flight=64) as running:
            work = sequences(100)
            require_right(work, running.score(work, seconds=12))


def test_retry_after_is_obeyed_in_seconds_or_as_a_date():
    from opdvr.teacher.client import _seconds

    assert _seconds("25") == 25 and _seconds("") == 0 and _seconds("\u00b2") == 0
    assert _seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0  # long ago
    assert _seconds("Wed, 21 Oct 2500 07:28:00 GMT") > 1e9


def test_one_server_that_hangs_does_not_hold_up_the_start(monkeypatch):
    monkeypatch.setattr("opdvr.teacher.pool._GRACE_S", 0.3)
    with FakeServer(delay_s=30) as hung, FakeServer() as well:
        started = time.monotonic()
        with Running(f"{hung.url},{well.url}", timeout_s=20) as running:
            work = sequences(4)
            require_right(work, running.score(work))
            assert time.monotonic() - started < 10


def test_an_answer_without_end_is_refused():
    def endless(answer):
        answer["padding"] = "x" * 6_000_000

    with FakeServer(fault=after_probe(lambda *_: endless)) as server:
        with Running(server.url) as running, pytest.raises(WrongAnswer, match="is longer than"):
            running.score(sequences(1))
