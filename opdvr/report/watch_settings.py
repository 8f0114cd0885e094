"""Where the watchdogs speak, each bound with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WatchSettings:
    """Where a watchdog speaks.

    Attributes:
        baseline_steps: first steps of the run; the median of each metric over them is its level,
            of the entropy the highest value, since it may collapse within them.
        recent_steps: steps whose median is held against it, so that one odd batch is no alarm.
        length_growth: times the first length. Reasoning grows by half or doubles in sound runs;
            a student that no longer ends goes to the limit, several times that.
        least_growth: tokens that it must have grown, for tasks of short answers.
        truncated_rise, least_truncated: the share cut off must have risen by the one and reached
            the other; a long limit cuts a tenth or two in sound runs.
        most_truncated: a share that is too high even if it always was.
        entropy_share, entropy_floor: collapse is below this share of the first level and below
            these nats a token. Sound runs of the embedded task end at 0.13 of their first level
            and at 0.009, or with GRPO at 0.1 and 0.007.
        mostly_right: share of correct responses from which on a student may be that certain.
        teacher_share: and below this share of the teacher's entropy where that is known: a student
            that becomes as certain as its teacher is what distillation is for.
        least_effective: share of tokens with a reward below which there is no signal.
        least_log_ratio: nats; two models never agree so closely over a batch, so one step is proof.
            Later, an optimizer of unit-size steps has made a student of its own out of rounding.
        streak: steps in a row of no correct response, or no signal. At one correct response in
            fifty, five batches of 64 have none once in 600 times.
        repeat_steps: an alarm that lasts speaks again after so many steps.
        quiet_steps: one that was away for more steps than this begins anew.
    """

    baseline_steps: int = 5
    recent_steps: int = 3
    length_growth: float = 2.5
    least_growth: float = 32.0
    truncated_rise: float = 0.2
    least_truncated: float = 0.3
    most_truncated: float = 0.5
    entropy_share: float = 0.1
    entropy_floor: float = 0.01
    mostly_right: float = 0.9
    teacher_share: float = 0.5
    least_effective: float = 1e-3
    least_log_ratio: float = 1e-5
    streak: int = 5
    repeat_steps: int = 50
    quiet_steps: int = 5
