"""The runner with an iterator that has more requests once it has seen completions."""

import pytest

from opdvr.inference import Request
from opdvr.inference.runner import _drive


class Pool:
    """Engines that finish one request a report, the longest at work first; `started` records."""

    def __init__(self, engines):
        self.names = list(range(engines))
        self.held = {name: [] for name in self.names}
        self.under_way = []
        self.started = []

    def start(self, name, requests):
        assert name not in self.under_way
        self.held[name] += requests
        self.started.append((name, [request.prompt for request in requests]))
        self.under_way.append(name)

    def wait(self):
        name = self.under_way.pop(0)
        done, self.held[name] = self.held[name][:1], self.held[name][1:]
        return name, done


class Retries:
    """Each prompt is asked for `times` times, the next time once the last was handed over."""

    def __init__(self, prompts, times):
        self.due = list(range(prompts))
        self.left = dict.fromkeys(self.due, times - 1)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.due:
            raise StopIteration
        return Request(self.due.pop(0), 0, (1,), 4)

    def take(self, request):
        if self.left[request.prompt]:
            self.left[request.prompt] -= 1
            self.due.append(request.prompt)


def drive(pool, requests, capacity):
    finished = []
    for request in _drive(pool, requests, capacity):
        finished.append(request.prompt)
        requests.take(request)
    return finished


@pytest.mark.parametrize("engines", [1, 2, 3])
@pytest.mark.parametrize("prompts", [0, 1, 2, 5, 20])
def test_what_comes_later_is_finished_too(engines, prompts):
    finished = drive(Pool(engines), Retries(prompts, 3), capacity=4)
    assert sorted(finished) == sorted(list(range(prompts)) * 3)


def test_an_engine_that_ran_idle_is_topped_up_again():
    class More(Retries):
        """Two more prompts once the first of two is done."""

        def take(self, request):
            if request.prompt == 0:
                self.due += [2, 3]

    pool = Pool(2)
    # one request for each engine; engine 0 reports, and gets one of the two that came meanwhile;
    # engine 1 reports next, idle, and gets the other
    assert drive(pool, More(2, 1), capacity=1) == [0, 1, 2, 3]
    assert pool.started == [(0, [0]), (1, [1]), (0, [2]), (1, [3])]


def test_all_idle_engines_share_what_comes():
    class Late(Retries):
        def take(self, request):
            if request.prompt == 0:
                self.due += [1, 2, 3, 4]

    pool = Pool(2)
    assert sorted(drive(pool, Late(1, 1), capacity=8)) == [0, 1, 2, 3, 4]
    # engine 1 had nothing at all until then
    assert pool.started[:3] == [(0, [0]), (0, [1, 3]), (1, [2, 4])]


def test_completions_are_handed_over_before_more_is_asked_for():
    events = []

    class Recorded(Retries):
        def __next__(self):
            request = super().__next__()
            events.append(("asked", request.prompt))
            return request

    requests = Recorded(2, 1)
    for request in _drive(Pool(1), requests, capacity=1):
        events.append(("had", request.prompt))
    assert events == [("asked", 0), ("had", 0), ("asked", 1), ("had", 1)]
