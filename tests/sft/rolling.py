"""Prompts, a stand-in for the engines, and commands in small, for the tests of rollouts."""

import json
import os
import sys
import time
from pathlib import Path

import evaluating
from evaluating import ROOT, write_data  # noqa: F401  (for the tests that import this)

from opdvr.inference import Completion
from opdvr.inference.runner import _drive

TEACHER = ROOT / "opdvr" / "demo" / "models" / "teacher-good"


def row(question, gold="40", source="opdvr-demo"):
    return evaluating.row(question, gold, source)


def answer(seed):
    """(text, finish) by a request's seed: right, wrong, without a box, or cut."""
    texts = ("\\boxed{40}", "\\boxed{41}", "40", "12*3+")
    return texts[seed % 4], "length" if seed % 4 == 3 else "stop"


class Pool:
    """Engines that finish two of their requests a report, in turn."""

    def __init__(self, engines, seconds=0.0):
        self.names = list(range(engines))
        self.held = {name: [] for name in self.names}
        self.under_way = []
        self.seconds = seconds

    def start(self, name, requests):
        assert name not in self.under_way
        self.held[name] += requests
        self.under_way.append(name)

    def wait(self):
        time.sleep(self.seconds)
        name = self.under_way.pop(0)
        done, self.held[name] = self.held[name][:2], self.held[name][2:]
        return name, [complete(request) for request in done]


def complete(request):
    text, finish = answer(0 if request.seed is None else request.seed)
    return Completion(request.prompt, request.sample, (5, 6, 1), text, finish)


class Engines:
    """Stands in for `generate`; `asked` has every request."""

    def __init__(self, seconds=0.0, stop_after=None):
        self.asked = []
        self.seconds = seconds
        self.stop_after = stop_after

    def generate(self, settings, sampling, requests, engines, apart, ready):
        self.settings, self.sampling = settings, sampling
        ready()

        def recorded():
            while True:
                request = next(requests, None)
                if request is not None:
                    self.asked.append(request)
                yield request

        asking = recorded()
        completions = _drive(Pool(engines, self.seconds), MayHaveMore(asking), capacity=4)
        for count, completion in enumerate(completions):
            if count == self.stop_after:
                raise KeyboardInterrupt
            yield completion


class MayHaveMore:
    """An iterator over what a generator gives, where None stands for "none now"."""

    def __init__(self, asking):
        self.asking = asking

    def __iter__(self):
        return self

    def __next__(self):
        request = next(self.asking)
        if request is None:
            raise StopIteration
        return request


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def attempts_of(out):
    """All lines of both files by (key, slot, attempt); fails where one comes twice."""
    lines = lines_of(out / "rollouts.jsonl") + lines_of(out / "rejected.jsonl")
    named = {(line["key"], line["slot"], line["attempt"]): line for line in lines}
    assert len(named) == len(lines)
    return named


def environment():
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def command(*arguments):
    """The command line of a rollout in a process of its own."""
    return [sys.executable, "-m", "opdvr", "sft", "rollout", *map(str, arguments)]
