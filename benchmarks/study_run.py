"""One run of the study: train a student, evaluate it, report a line for the results file."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from benchmarks.study_models import Models
from benchmarks.study_plan import METHODS, SETTINGS
from benchmarks.study_rollout import accuracy, sample, test_problems, training_problems
from benchmarks.study_store import MODEL, TUNE, RunKey
from benchmarks.study_trace import trace_point
from benchmarks.study_update import learn, new_optimizer, teacher_logprobs

_TRACE_POINTS = 10
_BASELINE_SEED = 0


@dataclass(frozen=True)
class Sizes:
    """prompts, group: of a training batch. problems, samples: of an evaluation."""

    prompts: int = 16
    group: int = 8
    problems: int = 256
    samples: int = 4


QUICK = Sizes(prompts=4, group=4, problems=16, samples=2)


def run(key: RunKey, sizes: Sizes, models: Models) -> dict[str, object]:
    """The results line of one run: its key, accuracies, seconds, and the trace.

    acc: share of correct responses of every step's batch. trace: see trace_point.
    """
    started = time.monotonic()
    setting, method = SETTINGS[key.setting], METHODS[key.method]
    student = models.get(setting.student)
    teacher = models.get(setting.teacher)
    optimizer = new_optimizer(student, key.lr)
    tuning = key.kind == TUNE
    shares, trace = [], []
    every = max(1, round(key.steps / _TRACE_POINTS))
    batches = training_problems(key.seed, key.steps, sizes.prompts, tuning)
    for step, chosen in enumerate(batches):
        rollout = sample(student, chosen, sizes.group, key.seed, step)
        update = learn(method.spec_at(step, key.steps), student, teacher, optimizer, rollout)
        shares.append(round(rollout.scores.mean().item(), 3))
        if not tuning and (step % every == 0 or step == key.steps - 1):
            teacher_all = update.teacher_all
            if teacher_all is None:
                teacher_all = teacher_logprobs(teacher, rollout)
            trace.append(trace_point(step, rollout, update, teacher_all))
    measured = accuracy(student, test_problems(sizes.problems, tuning), sizes.samples, key.seed)
    seconds = round(time.monotonic() - started, 1)
    row = key._asdict() | measured | {"seconds": seconds, "acc": shares}
    return row if tuning else row | {"trace": trace}


def baseline(name: str, sizes: Sizes, models: Models) -> dict[str, object]:
    """The results line of a model as it is, evaluated like a main run."""
    model = models.get(name)
    with torch.inference_mode():
        chosen = test_problems(sizes.problems, tuning=False)
        measured = accuracy(model, chosen, sizes.samples, _BASELINE_SEED)
    return {"kind": MODEL, "model": name} | measured
