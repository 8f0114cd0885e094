"""When the watchdogs speak, and that they are silent over a sound run."""

import math
from pathlib import Path

import pytest

from opdvr.report.step_records import read_records
from opdvr.report.watch import ACCURACY, ENTROPY, GATE, LENGTH, NON_FINITE, Watch

# Metrics of a real run of the embedded task: 30 steps, accuracy .53 to .97, entropy .068 to .009.
HEALTHY = read_records(Path(__file__).with_name("healthy_run.jsonl"))
SOUND = {
    "timing_s/step": 1.0,
    "actor/loss": 0.1,
    "actor/grad_norm": 1.0,
    "actor/entropy": 0.4,
    "opd/log_ratio_mean": -0.3,
    "opd/log_ratio_abs_mean": 0.3,
    "opd/effective_token_frac": 0.6,
    "response_length/mean": 100.0,
    "opd/truncated_frac": 0.1,
    "cg/correct_frac": 0.5,
}


def spoken(steps, watch=None, first=1):
    """(step, kind, lasts) of all alarms; steps are what differs from a sound step."""
    watch = watch or Watch()
    return [
        (alarm.step, alarm.kind, alarm.lasts)
        for step, changes in enumerate(steps, start=first)
        for alarm in watch.look(step, {**SOUND, **changes})
    ]


def lines(steps):
    watch = Watch()
    return [a.line() for i, new in enumerate(steps, 1) for a in watch.look(i, {**SOUND, **new})]


def test_a_sound_run_is_left_alone():
    watch = Watch()
    assert [a for record in HEALTHY for a in watch.look(record["step"], record)] == []
    assert len(HEALTHY) == 31
    assert HEALTHY[-1]["actor/entropy"] < 0.14 * HEALTHY[1]["actor/entropy"]


@pytest.mark.parametrize("resumed", range(1, 30, 4))
def test_a_sound_run_is_left_alone_after_a_resume(resumed):
    watch = Watch(history=HEALTHY[: resumed + 1])
    rest = HEALTHY[resumed + 1 :]
    assert [a for record in rest for a in watch.look(record["step"], record)] == []


def test_a_short_run_has_no_level_to_hold_anything_against():
    # Four steps are fewer than the five of the baseline.
    assert (
        spoken([{"response_length/mean": 10.0**i, "actor/entropy": 0.1**i} for i in range(4)]) == []
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, None])  # None: as metrics.jsonl has it
@pytest.mark.parametrize("name", ["actor/grad_norm", "actor/loss", "opd/log_ratio_mean"])
def test_non_finite_at_once(name, value):
    assert spoken([{}, {name: value}]) == [(2, NON_FINITE, False)]
    (line,) = lines([{name: value}])
    assert line.startswith(f"watchdog: step 1: {name} is NaN or infinite") and "ACTOR_LR" in line


def test_what_may_be_nan():
    harmless = {"training/rollout_actor_probs_pearson_corr": math.nan, "perf/mfu/actor": math.inf}
    assert spoken([harmless] * 5) == []


def test_length_against_its_first_level():
    # First 100, bound 250. Medians of three from step 6: 100, 260, 260.
    grown = [{}] * 5 + [{"response_length/mean": 260.0}] * 3
    assert spoken(grown) == [(7, LENGTH, False)]
    assert spoken([{}] * 5 + [{"response_length/mean": 250.0}] * 9) == []
    (line,) = lines(grown)
    assert "260 tokens, 100 in the first 5 steps, bound 250" in line
    assert "diagnose" in line and "MAX_RESP_LENGTH" in line and "TRUNCATED_RESPONSES" in line


def test_short_answers_may_grow_a_little():
    # First 4 tokens: 2.5 times would be 10, but 32 more tokens are needed: bound 36.
    short = [{"response_length/mean": 4.0}] * 5
    assert spoken(short + [{"response_length/mean": 36.0}] * 5) == []
    assert spoken(short + [{"response_length/mean": 37.0}] * 5) == [(7, LENGTH, False)]


def test_one_odd_batch_is_no_explosion():
    assert spoken([{}] * 5 + [{"response_length/mean": 4000.0}] + [{}] * 5) == []


@pytest.mark.parametrize(
    ("first", "then", "speaks"),
    [
        (0.1, 0.31, True),  # bound max(.1 + .2, .3) = .3
        (0.1, 0.29, False),
        (0.0, 0.25, False),  # risen by .2, but below .3
        (0.45, 0.49, False),  # bound min(.65, .5)
        (0.45, 0.51, True),
    ],
)
def test_truncated_share(first, then, speaks):
    steps = [{"opd/truncated_frac": first}] * 5 + [{"opd/truncated_frac": then}] * 4
    assert spoken(steps) == ([(7, LENGTH, False)] if speaks else [])


def test_half_cut_off_from_the_beginning():
    steps = [{"opd/truncated_frac": 0.6}] * 4
    assert spoken(steps) == [(3, LENGTH, False)]


def test_verls_own_share_where_ours_is_not_logged():
    steps = [{"opd/truncated_frac": "no number", "response_length/clip_ratio": 0.6}] * 3
    assert spoken(steps) == [(3, LENGTH, False)]


@pytest.mark.parametrize(
    ("then", "teacher", "speaks"),
    [
        (0.009, None, True),  # bound min(.1 * .4, .01) = .01
        (0.011, None, False),
        (0.009, 0.02, True),  # .009 < .5 * .02
        (0.009, 0.015, False),  # as certain as its teacher
    ],
)
def test_entropy(then, teacher, speaks):
    late = {"actor/entropy": then} | ({"teacher/entropy": teacher} if teacher else {})
    assert spoken([{}] * 5 + [late] * 4) == ([(7, ENTROPY, False)] if speaks else [])


def test_who_is_right_may_be_certain():
    late = {"actor/entropy": 0.001, "cg/correct_frac": 0.9}
    assert spoken([{}] * 5 + [late] * 9) == []
    assert spoken([{}] * 5 + [late | {"cg/correct_frac": 0.89}] * 9) == [(7, ENTROPY, False)]


def test_entropy_that_collapses_within_the_first_steps():
    # First .4, the highest, so the bound is .01 and not .1 * .004.
    steps = [{}, *[{"actor/entropy": 0.004}] * 5]
    assert spoken(steps) == [(5, ENTROPY, False)]


def test_entropy_of_a_student_that_began_certain():
    # First .02: the bound is .1 * .02 = .002, not the floor of .01.
    certain = [{"actor/entropy": 0.02}] * 5
    assert spoken(certain + [{"actor/entropy": 0.003}] * 5) == []
    assert spoken(certain + [{"actor/entropy": 0.0019}] * 5) == [(7, ENTROPY, False)]


def test_nothing_correct():
    wrong = {"cg/correct_frac": 0.0}
    assert spoken([wrong] * 4 + [{}] + [wrong] * 4) == []
    assert spoken([wrong] * 5) == [(5, ACCURACY, False)]


def test_the_gate_passes_nothing():
    nothing = {"opd/effective_token_frac": 0.0}
    assert spoken([nothing] * 4 + [{}] + [nothing] * 4) == []
    assert spoken([nothing] * 5) == [(5, GATE, False)]
    divergence = {"opd/effective_token_frac": "no number", "opd/divergence_passed_frac": 0.0}
    assert spoken([divergence] * 5) == [(5, GATE, False)]


def test_one_step_of_one_model_is_proof():
    assert spoken([{"opd/log_ratio_abs_mean": 0.0}]) == [(1, GATE, False)]
    assert spoken([{"opd/log_ratio_abs_mean": 1e-4}] * 9) == []


def test_without_a_teacher_groups_that_are_all_alike():
    grpo = {"timing_s/step": 1.0, "cg/correct_frac": 1.0, "opd/all_equal_group_frac": 1.0}
    watch = Watch()
    assert [a.kind for step in range(1, 6) for a in watch.look(step, grpo)] == [GATE]
    assert spoken([{"opd/all_equal_group_frac": 1.0}] * 9) == []  # a teacher's signal is left


def test_it_repeats_after_fifty_steps_and_begins_anew_after_quiet():
    wrong = {"cg/correct_frac": 0.0}
    said = spoken([wrong] * 110)
    assert said == [(5, ACCURACY, False), (55, ACCURACY, True), (105, ACCURACY, True)]
    assert (
        "step 55: still no response"
        in [a.split("watchdog: ")[1] for a in lines([wrong] * 60)][1][:40]
    )
    # Quiet for three steps: the same trouble (the streak needs five more steps: 12 - 5 > 5).
    bad = {"actor/grad_norm": math.inf}
    assert spoken([bad, {}, {}, {}, {}, bad]) == [(1, NON_FINITE, False)]
    assert spoken([bad, {}, {}, {}, {}, {}, bad]) == [
        (1, NON_FINITE, False),
        (7, NON_FINITE, False),
    ]


def test_a_resumed_run_keeps_its_level_and_gets_its_chance():
    history = [{"step": 0, "val": 1}] + [{"step": step, **SOUND} for step in range(1, 9)]
    long = {"response_length/mean": 300.0}
    # Without the history 300 would be the level itself.
    assert spoken([long] * 9, Watch(history=history), first=9) == [(11, LENGTH, False)]
    assert spoken([long] * 9, first=9) == []
    wrong = [{**SOUND, "step": step, "cg/correct_frac": 0.0} for step in range(1, 9)]
    assert spoken([{"cg/correct_frac": 0.0}] * 5, Watch(history=wrong), first=9) == [
        (13, ACCURACY, False)
    ]


def test_a_validation_is_no_step():
    watch = Watch()
    for step in range(9):
        assert watch.look(step, {"cg/correct_frac": 0.0, "actor/loss": math.nan}) == []


def test_several_at_once_and_the_record():
    watch = Watch()
    steps = [{**SOUND, "cg/correct_frac": 0.0, "opd/effective_token_frac": 0.0}] * 5
    alarms = [a for step, metrics in enumerate(steps, 1) for a in watch.look(step, metrics)]
    assert [a.kind for a in alarms] == [ACCURACY, GATE]
    assert alarms[0].record() == {
        "step": 5,
        "kind": "accuracy",
        "metric": "cg/correct_frac",
        "value": 0.0,
        "bound": 0.0,
        "lasts": False,
        "line": alarms[0].line(),
    }
    assert all("\n" not in alarm.line() for alarm in alarms)
