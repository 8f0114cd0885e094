"""What the study compares: methods, settings, and the runs in the order in which they are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchmarks.study_store import RUN, TUNE, RunKey, Store
from opdvr.core import MethodSpec
from opdvr.demo.tokenizer import TOKENS

SEEDS = (0, 1, 2, 3, 4)
TUNING_SEED = 100  # outside SEEDS
LEARNING_RATES = (1e-4, 3e-4, 1e-3)


class Method(NamedTuple):
    """A method of the study.

    spec: what it is. tuned_as: the method whose learning rate it takes, None for one of its own.
    schedule: the spec's gate_floor goes from 1 to 0 over the run.
    """

    spec: MethodSpec
    tuned_as: str | None = None
    schedule: bool = False

    def spec_at(self, step: int, steps: int) -> MethodSpec:
        """The spec of step `step` (from 0) of a run of `steps`."""
        if not self.schedule:
            return self.spec
        return replace(self.spec, gate_floor=1 - step / max(steps - 1, 1))


_FIRST_TOP_K = "opd_top16_only_stu"


def _top_k(k: int, strategy: str, **rest: object) -> Method:
    spec = MethodSpec(gate="none", log_prob_top_k=k, top_k_strategy=strategy, **rest)
    return Method(spec, tuned_as=_FIRST_TOP_K)


# What comes first, and in more than one setting.
MAIN_METHODS = {
    "opd": Method(MethodSpec(gate="none")),
    "opdvr": Method(MethodSpec()),
    "grpd": Method(MethodSpec(grpo_scaled=True)),
    "grpo": Method(MethodSpec(estimator="grpo", distill=False, gate="none")),
    "rescue": Method(MethodSpec(gate="rescue")),
    "mixed": Method(MethodSpec(gate="mixed")),
    "soft": Method(MethodSpec(gate="soft")),
}
EXTRA_METHODS = {
    _FIRST_TOP_K: _top_k(16, "only_stu")._replace(tuned_as=None),
    # All tokens, weighted by the student's probability: the gradient is the reverse KL's.
    "full_reverse_kl": _top_k(len(TOKENS), "only_stu"),
    "opdvr_top16_only_stu": Method(MethodSpec(log_prob_top_k=16, top_k_strategy="only_stu")),
    "opd_top4_only_stu": _top_k(4, "only_stu"),
    "opd_top4_only_tch": _top_k(4, "only_tch"),
    "opd_top16_only_tch": _top_k(16, "only_tch"),
    "opd_top4_union": _top_k(4, "union"),
    "opd_top16_union": _top_k(16, "union"),
    "opd_top4_only_stu_tail": _top_k(4, "only_stu", tail_bucket=True),
    "opd_top16_only_stu_teacher_p": _top_k(16, "only_stu", reward_weight_mode="teacher_p"),
    "opdvr_plus_grpo": Method(MethodSpec(estimator="token_reward_direct_plus_grpo"), "opdvr"),
    "leaky": Method(MethodSpec(gate="leaky")),
    "schedule": Method(MethodSpec(gate="leaky"), tuned_as="leaky", schedule=True),
    "margin": Method(MethodSpec(gate="margin")),
    "inverse": Method(MethodSpec(gate="inverse")),
}
METHODS: dict[str, Method] = MAIN_METHODS | EXTRA_METHODS


@dataclass(frozen=True)
class Setting:
    """A student and a teacher (names of models), how long to train and which methods to try.

    tuned_on: the setting on which the learning rates of its methods were picked.
    """

    student: str
    teacher: str
    steps: int
    methods: tuple[str, ...]
    tuned_on: str


HARD_TEACHER = "teacher-faulty-hard"
_COMMON = ("opd", "opdvr", "grpd", "grpo")
_STYLE_METHODS = (
    *("opd", "opdvr", "grpo", "rescue", "mixed", "soft"),
    *("grpd", "opdvr_plus_grpo"),  # in the long runs only
)
_STEPS = 20
_STYLE_STEPS = 80  # OPD takes up the teacher's style late
SETTINGS: dict[str, Setting] = {
    "faulty": Setting("student", "teacher-faulty", _STEPS, tuple(METHODS), "faulty"),
    "style": Setting("student-other-style", "teacher-good", _STYLE_STEPS, _STYLE_METHODS, "faulty"),
    "faulty-hard": Setting("student", HARD_TEACHER, _STEPS, (*_COMMON, "rescue", "soft"), "faulty"),
    "good": Setting("student", "teacher-good", _STEPS, _COMMON, "faulty"),
}


@dataclass(frozen=True)
class Choice:
    """Which of the plan's runs are wanted.

    steps: None for each setting's own number. learning_rates: to pick from; a single one is taken
    as it is.
    """

    settings: Sequence[str] = tuple(SETTINGS)
    methods: Sequence[str] = tuple(METHODS)
    seeds: Sequence[int] = SEEDS
    steps: int | None = None
    learning_rates: Sequence[float] = LEARNING_RATES

    def pairs(self, known: Iterable[str] = METHODS) -> list[tuple[str, str]]:
        """(setting, method) of the wanted ones among the `known` methods."""
        return [
            (name, method)
            for method in known
            for name, setting in SETTINGS.items()
            if method in self.methods and name in self.settings and method in setting.methods
        ]

    def _steps(self, setting: str) -> int:
        return self.steps or SETTINGS[setting].steps

    def tuning_of(self, setting: str, method: str) -> list[RunKey]:
        """The runs that decide the learning rate of `method` in `setting`."""
        where = SETTINGS[setting].tuned_on
        what = METHODS[method].tuned_as or method
        return [
            RunKey(TUNE, where, what, TUNING_SEED, lr, self._steps(where))
            for lr in self.learning_rates
        ]

    def tuning(self) -> list[RunKey]:
        """All runs that decide a learning rate, each once."""
        if len(self.learning_rates) == 1:
            return []
        return list(dict.fromkeys(key for pair in self.pairs() for key in self.tuning_of(*pair)))

    def runs(self, learning_rate: dict[tuple[str, str], float]) -> list[RunKey]:
        """The main runs, so ordered that a cut leaves the main methods, and whole seeds of them.

        Pairs (setting, method) without a learning rate are left out.
        """
        return [
            RunKey(RUN, name, method, seed, learning_rate[name, method], self._steps(name))
            for methods in (MAIN_METHODS, EXTRA_METHODS)
            for seed in self.seeds
            for name, method in self.pairs(methods)
            if (name, method) in learning_rate
        ]


def learning_rates(choice: Choice, store: Store) -> dict[tuple[str, str], float]:
    """The rate with the best sampled accuracy among the tuning runs, by (setting, method).

    The smaller of two that are equally good. Pairs whose tuning is not finished are left out.
    """
    if len(choice.learning_rates) == 1:
        return dict.fromkeys(choice.pairs(), choice.learning_rates[0])
    best = {}
    for pair in choice.pairs():
        rows = [store.find(key) for key in choice.tuning_of(*pair)]
        if all(rows):
            best[pair] = max(rows, key=lambda row: (row["sampled"], -row["lr"]))["lr"]
    return best
