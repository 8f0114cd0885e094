"""The summary's numbers, each worked out by hand."""

import math

import pytest

from opdvr.report.run_folder import RunFolder
from opdvr.report.summary import PhaseTime, SourceAccuracy, render, summarise

MATH_KEY = "val-core/org/MATH/acc/mean@16"
DEMO_KEY = "val-core/opdvr-demo/acc/mean@4"


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "run").open({}, [], None)
    run.append_metrics(0, {DEMO_KEY: 0.2})
    run.append_metrics(
        1, {"timing_s/step": 4.0, "timing_s/gen": 2.0, "perf/throughput": 100.0, DEMO_KEY: 0.6}
    )
    run.append_metrics(
        2,
        {
            "timing_s/step": 2.0,
            "timing_s/gen": 1.0,
            "timing_s/testing": 5.0,
            "perf/throughput": 400.0,
            "training/rollout_probs_diff_valid": 1,
            "training/rollout_probs_diff_mean": 2e-6,
            "training/rollout_probs_diff_max": 3e-5,
            DEMO_KEY: 0.6,
            MATH_KEY: 0.7,
        },
    )
    run.append_metrics(
        3, {"timing_s/step": 3.0, "timing_s/gen": math.nan, DEMO_KEY: 0.5, MATH_KEY: math.nan}
    )
    return run


def test_numbers(run):
    summary = summarise(run.path)
    assert summary.accuracies == (
        SourceAccuracy("opdvr-demo", 4, 0.2, 0.5, 3, best=0.6, best_step=1),
        SourceAccuracy("org/MATH", 16, None, 0.7, 2, best=0.7, best_step=2),
    )
    assert (summary.last_step, summary.steps_logged) == (3, 3)
    assert summary.mean_step_seconds == 3.0  # (4 + 2 + 3) / 3
    assert summary.phases == (PhaseTime("gen", 2, 1.5), PhaseTime("testing", 1, 5.0))
    # Steps 1 and 2 made 100 * 4 + 400 * 2 = 1200 tokens in 6 s; step 3 logged none.
    assert summary.tokens_per_second == 200.0
    assert summary.rollout_trainer_diff == {"mean": 2e-6, "max": 3e-5}


def test_table(run):
    # Of the gap from 0.2 to the teacher's 0.8, the student closed (0.5 - 0.2) / 0.6 = 50 %.
    text = render(summarise(run.path), {"opdvr-demo": 0.8, "AIME24": 0.36})
    assert text.splitlines()[1:] == [
        "accuracy    mean of  before  after  (step)   best  (step)  teacher  gap closed",
        "opdvr-demo        4   0.200  0.500       3  0.600       1    0.800         50%",
        "org/MATH         16       -  0.700       2  0.700       2        -           -",
        "AIME24            -       -      -       -      -       -    0.360           -",
        "3 steps, 3.00 s each (9s in all)",
        "of a step: gen 1.50 s",
        "besides:   testing 5.00 s (1 times)",
        "tokens a second and worker: 200",
        "rollout against trainer, probability difference, last step: mean 2.00e-06, max 3.00e-05",
    ]


def test_without_a_teacher_there_are_no_teacher_columns(run):
    assert render(summarise(run.path)).splitlines()[1:3] == [
        "accuracy    mean of  before  after  (step)   best  (step)",
        "opdvr-demo        4   0.200  0.500       3  0.600       1",
    ]


def test_a_teacher_no_better_than_the_student_was_has_no_gap(run):
    row = render(summarise(run.path), {"opdvr-demo": 0.2}).splitlines()[2]
    assert row.split()[-2:] == ["0.200", "-"]


def test_only_validated_before_training(tmp_path):
    RunFolder(tmp_path).open({}, [], None).append_metrics(0, {DEMO_KEY: 0.2})
    summary = summarise(tmp_path)
    assert summary.accuracies == (SourceAccuracy("opdvr-demo", 4, 0.2, None, None, 0.2, 0),)
    assert summary.steps_logged == 0
    assert len(render(summary).splitlines()) == 3  # The folder, the header and the row.


def test_nothing_logged(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    summary = summarise(tmp_path)
    assert (summary.last_step, summary.mean_step_seconds, summary.tokens_per_second) == (None,) * 3
    assert render(summary).splitlines()[1:] == ["accuracy: no validation was logged"]
    with pytest.raises(ValueError, match="does not exist"):
        summarise(tmp_path / "missing")


def test_a_teacher_on_engines_of_its_own(run):
    # 4 s of work, none hidden, then 1 s, all of it hidden: 1 of 5 s is 20 %.
    for step, busy, waited, hidden in ((4, 4.0, 4.5, 0.0), (5, 1.0, 0.5, 1.0)):
        run.append_metrics(
            step,
            {
                "opd/teacher_busy_seconds": busy,
                "opd/teacher_wait_seconds": waited,
                "opd/teacher_hidden_frac": hidden,
            },
        )
    summary = summarise(run.path)
    assert list(summary.teacher.values()) == [2.5, 2.5, 0.2]
    line = "teacher: 2.50 s of work a step, 20% of it during generation; the step waited 2.50 s"
    assert line in render(summary)
