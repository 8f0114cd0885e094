"""The line that says how far sampling is."""

import io

from opdvr.eval.progress import PLAIN_EVERY_S, Progress


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_rate_and_time_left_count_this_process_alone():
    clock = Clock()
    progress = Progress(io.StringIO(), total=1000, done=400, clock=clock)
    clock.now += 50  # the engine starts
    progress.start()
    for _ in range(100):
        progress.add(tokens=30)
    clock.now += 20
    # 100 in 20 s: 5 a second, 150 tokens a second, 500 left: 100 s
    assert progress.line() == "500/1,000 samples | 50% | 5.0 samples/s | 150 tok/s | 1m40s left"


def test_a_line_every_ten_seconds_without_a_terminal():
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, total=100, clock=clock)
    for _ in range(100):
        clock.now += PLAIN_EVERY_S / 40
        progress.add(1)
    progress.finish()
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["40/100", "80/100", "100/100"]
    assert lines[-1].endswith("25s taken")


def test_one_line_refreshed_on_a_terminal():
    clock, stream = Clock(), Terminal()
    progress = Progress(stream, total=10, clock=clock)
    for _ in range(10):
        clock.now += 1
        progress.add(1)
    progress.finish()
    text = stream.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n")
    assert text.count("\r") == 11
