"""The process around an engine: scores by key, failures, and what was hidden behind generation."""

import threading

import numpy as np
import pytest

from opdvr.teacher import ENGINES
from opdvr.teacher.engines import (
    EngineKind,
    Scores,
    Secret,
    Sequence,
    TeacherError,
    TeacherSettings,
    TeacherUnavailable,
    Wanted,
)
from opdvr.teacher.service import BusyClock, ScoringService, pack

SETTINGS = TeacherSettings("model", "cpu", "float32", max_tokens=8)


class Waiting:
    """An engine that does nothing until the test lets it."""

    latest = None

    def __init__(self, settings, wanted, done, failed):
        self.done, self.failed, self.taken = done, failed, []
        Waiting.latest = self

    def add(self, sequences):
        self.taken += sequences

    def finish(self, key, value=0.0):
        self.done(key, Scores(np.full(2, value, dtype=np.float32)))


@pytest.fixture
def service(monkeypatch):
    kind = EngineKind("waiting", f"{__name__}:Waiting", True, True, False, True, True)
    monkeypatch.setitem(ENGINES, "waiting", kind)
    return ScoringService("waiting", SETTINGS, Wanted())


def sequences(*keys):
    ids = np.arange(4, dtype=np.int32)
    return [Sequence(key, ids, 2, "source", f"row {key}") for key in keys]


def test_scores_come_in_the_order_asked_for_and_once(service):
    service.submit(sequences(1, 2, 3))
    engine = Waiting.latest
    for key, value in ((3, -3.0), (1, -1.0), (2, -2.0)):
        engine.finish(key, value)
    assert service.collect([2, 1]).scores["log_probs"].tolist() == [-2, -2, -1, -1]
    assert service.collect([3]).scores["log_probs"].tolist() == [-3, -3]


def test_collecting_waits_for_what_is_submitted_later(service):
    engine, found = Waiting.latest, []
    thread = threading.Thread(target=lambda: found.append(service.collect([5])))
    thread.start()
    service.submit(sequences(5))
    assert not found
    engine.finish(5, -0.5)
    thread.join(timeout=10)
    assert found[0].scores["log_probs"].tolist() == [-0.5, -0.5]


def test_a_failed_engine_fails_whoever_waits_and_whoever_comes(service):
    engine, raised = Waiting.latest, []

    def wait():
        try:
            service.collect([1])
        except TeacherUnavailable as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    engine.failed(TeacherUnavailable("no server"))
    thread.join(timeout=10)
    assert [str(error) for error in raised] == ["no server"]
    with pytest.raises(TeacherUnavailable, match="no server"):
        service.submit(sequences(2))


def test_an_engine_that_breaks_is_a_teacher_error_with_its_cause(service):
    Waiting.latest.failed(MemoryError("all of it"))
    with pytest.raises(TeacherError, match="MemoryError: all of it"):
        service.collect([1])


def test_an_engine_that_failed_gives_out_nothing_more(service):
    """Not even what it finished before: it is not trusted any more."""
    service.submit(sequences(1))
    Waiting.latest.finish(1)
    Waiting.latest.failed(TeacherError("the server lied"))
    with pytest.raises(TeacherError, match="lied"):
        service.collect([1])


def test_an_engine_that_does_not_come_up_says_so_when_asked(monkeypatch):
    monkeypatch.setattr(Waiting, "__init__", lambda *_: 1 / 0)
    kind = EngineKind("waiting", f"{__name__}:Waiting", True, True, False, True, True)
    monkeypatch.setitem(ENGINES, "waiting", kind)
    with pytest.raises(TeacherError, match="ZeroDivisionError"):
        ScoringService("waiting", SETTINGS, Wanted()).ready()


def test_work_that_is_refused_fails_whoever_waits_for_it(service, monkeypatch):
    def refuse(sequences):
        raise TeacherError("row 1: no server for its data_source")

    monkeypatch.setattr(Waiting.latest, "add", refuse)
    for action in (lambda: service.submit(sequences(1)), lambda: service.collect([1])):
        with pytest.raises(TeacherError, match="row 1"):
            action()


def test_busy_seconds_are_those_with_work_in_hand():
    at = [0.0]
    clock = BusyClock(lambda: at[0])
    for moment, action in ((1, clock.begin), (2, clock.begin)):
        at[0] = moment
        action(1)
    at[0] = 4
    clock.end()
    assert clock.seconds() == 3  # from 1 to 4, one still in hand
    at[0] = 5
    clock.end()
    at[0] = 9
    assert clock.seconds() == 4  # 1 to 5, idle since
    clock.begin(1)
    at[0] = 11
    assert clock.seconds() == 6


def test_what_was_busy_before_anybody_asked_was_hidden(service, monkeypatch):
    at = [0.0]
    monkeypatch.setattr(service, "_clock", BusyClock(lambda: at[0]))
    engine = Waiting.latest
    service.submit(sequences(1, 2))
    at[0] = 3.0
    engine.finish(1)
    engine.finish(2)
    at[0] = 10.0
    first = service.collect([1, 2])
    assert (first.busy_s, first.hidden_s) == (3.0, 3.0)  # all of it
    service.submit(sequences(3))
    at[0] = 12.0  # 2 s of work, then somebody asks; 6 s more
    real_wait = service._changed.wait_for

    def six_seconds(condition):
        at[0] = 18.0
        engine.finish(3)
        return real_wait(condition)

    monkeypatch.setattr(service._changed, "wait_for", six_seconds)
    second = service.collect([3])
    assert (second.busy_s, second.hidden_s) == (8.0, 2.0)


def test_packing_joins_rows_and_leaves_out_what_is_not_wanted():
    one = Scores(np.zeros(2, np.float32), top_ids=np.ones((2, 3), np.int32))
    two = Scores(np.ones(1, np.float32), top_ids=np.zeros((1, 3), np.int32))
    packed = pack([one, two])
    assert sorted(packed) == ["log_probs", "top_ids"]
    assert packed["log_probs"].tolist() == [0, 0, 1] and packed["top_ids"].shape == (3, 3)


def test_a_secret_is_not_shown():
    settings = TeacherSettings("m", "cpu", "float32", 8, api_key=Secret("abc123"))
    assert "abc123" not in repr(settings) + str(settings) + f"{settings.api_key}"
    assert settings.api_key.reveal() == "abc123"
