"""The line that says how far a rollout is, and the account of its time."""

import io

from opdvr.sft.rollout_progress import RolloutProgress, Stopwatch


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_slots_and_attempts_are_counted():
    clock = Clock()
    progress = RolloutProgress(io.StringIO(), 100, 10, 2, 7, clock)
    clock.now += 4.0
    progress.count(accepted=True, settled=True, tokens=300)
    progress.count(accepted=False, settled=False, tokens=200)
    progress.count(accepted=False, settled=True, tokens=100)
    # 11 of 100 filled, 9 attempts rejected, 3 slots given up; 600 tokens in 4 s; 2 slots settled
    # in 4 s, so the other 86 take 172 s
    assert progress.line() == ("11/100 accepted | 9 rejected | 3 given up | 150 tok/s | 2m52s left")


def test_seconds_add_up_over_processes(tmp_path):
    clock = Clock()
    first = Stopwatch(tmp_path, clock)
    clock.now += 50  # an engine that starts is no sampling
    first.start()
    clock.now += 12
    first.save()
    clock.now += 5  # and killed: what followed the last account is lost
    second = Stopwatch(tmp_path, clock)
    assert second.seconds() == 12
    second.start()
    clock.now += 3
    second.save()  # too soon
    assert Stopwatch(tmp_path, clock).seconds() == 12
    second.save(now=True)
    clock.now += 60
    assert second.seconds() == 15 == Stopwatch(tmp_path, clock).seconds()
