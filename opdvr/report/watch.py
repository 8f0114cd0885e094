"""Watchdogs: what a step's metrics say about a run that goes wrong, in one line with a remedy.

Pure: numbers in, alarms out. A resumed run keeps its baselines, which come from metrics.jsonl, and
gets a few steps before anything that was found before is found again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from opdvr.report import metrics as names
from opdvr.report.metrics import number_of
from opdvr.report.watch_settings import WatchSettings

MODES = ("warn", "stop", "off")

NON_FINITE, LENGTH, ENTROPY, ACCURACY, GATE = "non-finite", "length", "entropy", "accuracy", "gate"

EFFECTIVE_TOKENS = "opd/effective_token_frac"
ALL_EQUAL_GROUPS = "opd/all_equal_group_frac"
DIVERGENCE_PASSED = "opd/divergence_passed_frac"
# What training is made of. Others may be NaN in a sound run: verl's correlation of rollout and
# trainer where all probabilities are equal, a utilisation that is not known on a device.
_MUST_BE_FINITE = ("actor/", "opd/", "teacher/", "cg/", "gs/")
_MOST_NAMES = 3  # in a line


@dataclass(frozen=True)
class Alarm:
    """What is wrong at a step.

    Attributes:
        kind: NON_FINITE, LENGTH, ENTROPY, ACCURACY or GATE.
        metric: the metric that shows it, by the name it is logged under.
        value: its number; None where it is not finite.
        bound: what it was held against; None where any number would do.
        text: what happened and what to change, without the step.
        lasts: it spoke before and has not gone since.
    """

    kind: str
    step: int
    metric: str
    value: float | None
    bound: float | None
    text: str
    lasts: bool = False

    def line(self) -> str:
        """For the terminal."""
        still = "still " if self.lasts else ""
        return f"watchdog: step {self.step}: {still}{self.text}"

    def record(self) -> dict[str, Any]:
        """For alarms.jsonl."""
        return {
            "step": self.step,
            "kind": self.kind,
            "metric": self.metric,
            "value": self.value,
            "bound": self.bound,
            "lasts": self.lasts,
            "line": self.line(),
        }


class Watch:
    """Looks at what a run logs, step after step.

    Args:
        settings: where it speaks.
        history: what the run logged before it was resumed; gives the baselines.
    """

    def __init__(
        self,
        settings: WatchSettings = WatchSettings(),  # noqa: B008  (frozen)
        history: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._settings = settings
        self._first = {name: [] for name in (names.RESPONSE_LENGTH, _TRUNCATED, _ENTROPY)}
        self._recent = {name: deque(maxlen=settings.recent_steps) for name in self._first}
        self._streaks = {ACCURACY: 0, GATE: 0}
        self._last_seen: dict[str, int] = {}
        self._last_said: dict[str, int] = {}
        for metrics in history:
            self._remember(self._first, metrics)

    def look(self, step: int, metrics: Mapping[str, Any]) -> list[Alarm]:
        """The alarms to give at a step, none for one that goes on; a validation alone has none."""
        if number_of(metrics, names.STEP_SECONDS) is None:
            return []
        self._remember(self._first, metrics)
        self._remember(self._recent, metrics)
        found = [
            self._non_finite(step, metrics),
            self._length(step),
            self._entropy(step, metrics),
            self._accuracy(step, metrics),
            self._gate(step, metrics),
        ]
        return [said for alarm in found if alarm and (said := self._to_say(alarm))]

    def _remember(self, series: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """Add a step's values; the first ones are kept only up to the baseline's length."""
        if number_of(metrics, names.STEP_SECONDS) is None:
            return
        for name, values in series.items():
            value = number_of(metrics, *_LOGGED_AS[name])
            is_full = isinstance(values, list) and len(values) == self._settings.baseline_steps
            if value is not None and math.isfinite(value) and not is_full:
                values.append(value)

    def _to_say(self, alarm: Alarm) -> Alarm | None:
        """The alarm if it begins or has lasted long, else None."""
        seen, said = self._last_seen.get(alarm.kind), self._last_said.get(alarm.kind)
        self._last_seen[alarm.kind] = alarm.step
        begins = seen is None or alarm.step - seen > self._settings.quiet_steps
        if not begins and alarm.step - said < self._settings.repeat_steps:
            return None
        self._last_said[alarm.kind] = alarm.step
        return Alarm(**{**vars(alarm), "lasts": not begins})

    def _level(self, name: str) -> float | None:
        values = self._first[name]
        level = max if name == _ENTROPY else median
        return level(values) if len(values) == self._settings.baseline_steps else None

    def _now(self, name: str) -> float | None:
        values = self._recent[name]
        return median(values) if len(values) == self._settings.recent_steps else None

    def _non_finite(self, step: int, metrics: Mapping[str, Any]) -> Alarm | None:
        looked_at = [name for name in metrics if name.startswith(_MUST_BE_FINITE)]
        # What is no number counts as 0 and so as finite.
        bad = [name for name in looked_at if not math.isfinite(number_of(metrics, name) or 0.0)]
        if not bad:
            return None
        shown = ", ".join(bad[:_MOST_NAMES]) + (", ..." if len(bad) > _MOST_NAMES else "")
        text = (
            f"{shown} {'is' if len(bad) == 1 else 'are'} NaN or infinite: lower ACTOR_LR, or set "
            "MODEL_DTYPE=float32; a verifier or teacher may return such numbers too"
        )
        return Alarm(NON_FINITE, step, bad[0], None, None, text)

    def _length(self, step: int) -> Alarm | None:
        return self._truncation(step) or self._growth(step)

    def _truncation(self, step: int) -> Alarm | None:
        s = self._settings
        now, level = self._now(_TRUNCATED), self._level(_TRUNCATED)
        bound = s.most_truncated
        if level is not None:
            bound = min(bound, max(level + s.truncated_rise, s.least_truncated))
        if now is None or now < bound:
            return None
        before = "" if level is None else f" (first {s.baseline_steps} steps: {level:.0%})"
        text = f"{now:.0%} of responses are cut off{before}, bound {bound:.0%}: {_LENGTH_REMEDY}"
        return Alarm(LENGTH, step, names.TRUNCATED_FRAC, now, bound, text)

    def _growth(self, step: int) -> Alarm | None:
        s = self._settings
        now, level = self._now(names.RESPONSE_LENGTH), self._level(names.RESPONSE_LENGTH)
        if now is None or level is None:
            return None
        bound = max(s.length_growth * level, level + s.least_growth)
        if now <= bound:
            return None
        text = (
            f"responses have {now:,.0f} tokens, {level:,.0f} in the first {s.baseline_steps} "
            f"steps, bound {bound:,.0f}: {_LENGTH_REMEDY}"
        )
        return Alarm(LENGTH, step, names.RESPONSE_LENGTH, now, bound, text)

    def _entropy(self, step: int, metrics: Mapping[str, Any]) -> Alarm | None:
        s = self._settings
        now, level = self._now(_ENTROPY), self._level(_ENTROPY)
        correct = number_of(metrics, names.CORRECT_FRAC)
        if now is None or level is None or (correct or 0.0) >= s.mostly_right:
            return None
        bound = min(s.entropy_share * level, s.entropy_floor)
        teacher = number_of(metrics, names.TEACHER_ENTROPY)
        against = ""
        if teacher is not None and math.isfinite(teacher):
            bound = min(bound, s.teacher_share * teacher)
            against = f", the teacher's {teacher:.2g}"
        if now >= bound:
            return None
        text = (
            f"the student's entropy has collapsed to {now:.2g} nats a token ({level:.2g} in the "
            f"first {s.baseline_steps} steps{against}), bound {bound:.2g}: lower ACTOR_LR, raise "
            "TEMPERATURE, look at actor_rollout_ref.actor.entropy_coeff, or set USE_KL=True"
        )
        return Alarm(ENTROPY, step, names.ACTOR_ENTROPY, now, bound, text)

    def _accuracy(self, step: int, metrics: Mapping[str, Any]) -> Alarm | None:
        correct = number_of(metrics, names.CORRECT_FRAC)
        text = (
            "no response was correct in the last {steps} steps: look at what the verifier reads "
            "(VERIFIER, ANSWER_FORMS, gold answers), at the form that the prompts ask for, and "
            "whether they are too hard or cut off"
        )
        return self._streak(step, ACCURACY, names.CORRECT_FRAC, correct, 0.0, text)

    def _gate(self, step: int, metrics: Mapping[str, Any]) -> Alarm | None:
        s = self._settings
        effective = number_of(metrics, EFFECTIVE_TOKENS)
        ratio, least = number_of(metrics, names.LOG_RATIO_ABS_MEAN), s.least_log_ratio
        if ratio is not None and ratio < least:
            text = (
                f"teacher and student give the same log-probs (mean |log-ratio| {ratio:.2g} nats): "
                "they are one model, so there is nothing to learn; look at REWARD_MODEL_PATH"
            )
            return Alarm(GATE, step, names.LOG_RATIO_ABS_MEAN, ratio, least, text)
        if effective is not None:
            text = (
                "next to no token had a reward in the last {steps} steps: the gate passes nothing; "
                "look at CORRECTNESS_GATED_MODE, GATE_MARGIN, CORRECTNESS_THRESHOLD and, with "
                "GRPO_SCALED, at groups whose scores are all alike"
            )
            return self._streak(step, GATE, EFFECTIVE_TOKENS, effective, s.least_effective, text)
        passed = number_of(metrics, DIVERGENCE_PASSED)
        if passed is not None:
            text = (
                "the gate has passed nothing of the divergence in the last {steps} steps: look at "
                "CORRECTNESS_GATED_MODE and CORRECTNESS_THRESHOLD"
            )
            return self._streak(step, GATE, DIVERGENCE_PASSED, passed, s.least_effective, text)
        alike = number_of(metrics, ALL_EQUAL_GROUPS)
        if alike is None or number_of(metrics, names.LOG_RATIO_MEAN) is not None:
            return None
        text = (
            "in the last {steps} steps all responses to a prompt scored alike, so the verifier "
            "gave no signal: take prompts that are neither too easy nor too hard, or raise "
            "N_RESPONSES"
        )
        unlike = self._streak(step, GATE, ALL_EQUAL_GROUPS, 1.0 - alike, 0.0, text)
        return unlike and Alarm(**{**vars(unlike), "value": alike, "bound": 1.0})

    def _streak(
        self, step: int, kind: str, metric: str, value: float | None, least: float, text: str
    ) -> Alarm | None:
        """An alarm when the value was at `least` or below for long enough."""
        is_low = value is not None and value <= least
        self._streaks[kind] = self._streaks[kind] + 1 if is_low else 0
        steps = self._streaks[kind]
        if steps < self._settings.streak:
            return None
        return Alarm(kind, step, metric, value, least, text.format(steps=steps))


_TRUNCATED, _ENTROPY = names.TRUNCATED_FRAC, names.ACTOR_ENTROPY
_LOGGED_AS = {
    names.RESPONSE_LENGTH: (names.RESPONSE_LENGTH,),
    _TRUNCATED: (names.TRUNCATED_FRAC, names.CLIP_RATIO),
    _ENTROPY: (names.ACTOR_ENTROPY,),
}
_LENGTH_REMEDY = (
    "compare the end tokens of student and teacher (python -m opdvr diagnose), and look at "
    "MAX_RESP_LENGTH and TRUNCATED_RESPONSES"
)
