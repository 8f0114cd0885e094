"""The printed lines, character by character."""

import math

import numpy as np
import pytest

from opdvr.report.progress import StepLine, format_duration, format_step, format_validation

STEP = {
    "cg/correct_frac": np.float64(0.4062),
    "critic/score/mean": 9.0,
    "opd/log_ratio_mean": -0.1234,
    "opd/gate_pass_frac_correct": 0.55,
    "opd/gate_pass_frac_incorrect": 0.71,
    "actor/entropy": 0.4512,
    "response_length/mean": 36.24,
    "opd/truncated_frac": 0.0156,
    "timing_s/step": 3.21,
    "perf/throughput": 1480.4,
}


def test_step_line():
    # 10 steps took 40 s, so the other 90 take 360 s.
    assert format_step(10, 100, STEP, 40.0) == (
        "step  10/100 | acc 0.41 | log-ratio -0.123 | gate passed 0.55 correct 0.71 incorrect"
        " | entropy 0.451 | length 36.2 | truncated 1.6% | 3.2 s | 1,480 tok/s | ETA 6m00s"
    )


def test_after_a_resume_the_remaining_time_counts_the_steps_since():
    # Resumed at step 8: 2 steps took 40 s, so the other 90 take 1800 s.
    assert format_step(10, 100, {}, 40.0, steps_done=2) == "step  10/100 | ETA 30m00s"


def test_the_last_step_has_no_remaining_time():
    assert format_step(100, 100, {}, 40.0) == "step 100/100"


def test_fallbacks_and_missing_and_non_finite_metrics():
    metrics = {
        "critic/score/mean": 0.5,
        "response_length/clip_ratio": 0.25,
        "opd/log_ratio_mean": math.nan,
        "actor/entropy": None,
        "opd/gate_pass_frac_incorrect": 0.5,
    }
    assert format_step(1, 1, metrics, 0.0) == (
        "step 1/1 | acc 0.50 | log-ratio nan | gate passed 0.50 incorrect | entropy nan"
        " | truncated 25.0%"
    )


def test_validation_lines():
    metrics = {
        "val-core/opdvr-demo/acc/mean@4": 0.41,
        "val-core/org/MATH-500/acc/mean@16": np.float64(0.8),
        "val-core/org/MATH-500/acc/best@16/mean": 0.9,
        "val-aux/opdvr-demo/score/mean@4": 0.1,
        "val-core/bad/acc/mean@4": "text",
    }
    assert format_validation(5, metrics) == (
        "val opdvr-demo acc/mean@4 0.410 (step 5)\nval org/MATH-500 acc/mean@16 0.800 (step 5)"
    )
    assert format_validation(5, STEP) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (185, "3m05s"),
        (7620, "2h07m"),
        (97300, "1d03h"),
        (-1, "0s"),
        (math.inf, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_the_clock_starts_after_the_validation_before_training():
    now = [0.0]
    lines = StepLine(total_steps=12, resumed_step=2, clock=lambda: now[0])
    now[0] = 500.0
    before = {"val-core/opdvr-demo/acc/mean@4": 0.1}
    assert lines.lines(2, before) == ["val opdvr-demo acc/mean@4 0.100 (step 2)"]
    now[0] = 510.0
    # One step in 10 s; 9 remain.
    assert lines.lines(3, {"timing_s/step": 9.0}) == ["step  3/12 | 9.0 s | ETA 1m30s"]
    now[0] = 540.0
    # Two steps in 40 s, the validation included; 8 remain.
    assert lines.lines(4, {"timing_s/step": 9.0, **before}) == [
        "step  4/12 | 9.0 s | ETA 2m40s",
        "val opdvr-demo acc/mean@4 0.100 (step 4)",
    ]
