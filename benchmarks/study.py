"""Compare the methods on the embedded task: several settings, several seeds, one CPU thread.

python -m benchmarks.study run      # hours at most; stopped and started again it goes on
python -m benchmarks.study report   # tables and figures from the results file
python -m benchmarks.study all
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.measure import note
from benchmarks.study_models import Models
from benchmarks.study_plan import LEARNING_RATES, METHODS, SEEDS, SETTINGS, Choice, learning_rates
from benchmarks.study_run import QUICK, Sizes, baseline, run
from benchmarks.study_store import MODEL, RUN, RunKey, Store

RESULTS = Path(__file__).parent / "results" / "study.jsonl"
WORK = Path("outputs/study")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ends the process on a mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.study",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("run", "report", "all"))
    parser.add_argument("--settings", type=_names(SETTINGS), default=tuple(SETTINGS))
    parser.add_argument("--methods", type=_names(METHODS), default=tuple(METHODS))
    parser.add_argument("--seeds", type=_numbers(int), default=SEEDS, help="such as 0,1,2")
    parser.add_argument(
        "--lrs", type=_numbers(float), default=LEARNING_RATES, help="to pick from; or one for all"
    )
    parser.add_argument("--steps", type=int, help="instead of each setting's own number")
    parser.add_argument("--minutes", type=float, help="start no run after this time")
    parser.add_argument("--results", type=Path, help=f"JSON lines (default {RESULTS.name})")
    parser.add_argument("--work", type=Path, default=WORK, help="for the teacher that is trained")
    parser.add_argument("--output", type=Path, default=Path("docs"), help="folder of results.md")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args(arguments)
    if options.steps is not None and options.steps < 1:
        parser.error("--steps must be at least 1")
    if options.quick:
        options.steps = options.steps or 2
    # Tiny runs must not stand among the real ones.
    default = options.work / "quick.jsonl" if options.quick else RESULTS
    options.results = options.results or default
    return options


def _names(known: dict[str, object]) -> object:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return read


def _numbers(kind: type) -> object:
    def read(text: str) -> tuple:
        return tuple(kind(number) for number in text.split(","))

    return read


class _Progress:
    """Says what is done and how long the rest takes, at the speed of the runs so far."""

    def __init__(self, steps_left: int, minutes: float | None) -> None:
        self._started = time.monotonic()
        self._end = float("inf") if minutes is None else self._started + 60 * minutes
        self._left, self._done = steps_left, 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end

    def finished(self, key: RunKey, row: dict) -> None:
        self._done += key.steps
        self._left -= key.steps
        seconds_left = self._left * (time.monotonic() - self._started) / self._done
        note(
            f"{key.kind} {key.setting} {key.method} seed {key.seed} lr {key.lr:g}: sampled "
            f"{row['sampled']:.3f} greedy {row['greedy']:.3f} in {row['seconds']} s; "
            f"{seconds_left / 60:.0f} minutes left"
        )


def _choice(options: argparse.Namespace) -> Choice:
    return Choice(options.settings, options.methods, options.seeds, options.steps, options.lrs)


def run_all(options: argparse.Namespace) -> None:
    """Models as they are, tuning, then the main runs; whatever is in the file is not run again."""
    torch.set_num_threads(1)
    sizes = QUICK if options.quick else Sizes()
    store = Store(options.results)
    choice = _choice(options)
    models = Models(options.work)
    _measure_models(options.settings, sizes, models, store)
    tuning = _missing(choice.tuning(), store)
    main_runs = choice.runs(dict.fromkeys(choice.pairs(), 0.0))  # the rates are not known yet
    done = {
        (r["setting"], r["method"], r["seed"], r["steps"])
        for r in store.of_kind(RUN)
        if r["lr"] in choice.learning_rates
    }
    later = [k for k in main_runs if (k.setting, k.method, k.seed, k.steps) not in done]
    progress = _Progress(sum(key.steps for key in [*tuning, *later]), options.minutes)
    _run_each(tuning, sizes, models, store, progress)
    picked = learning_rates(choice, store)
    note("learning rates: " + ", ".join(f"{s} {m} {lr:g}" for (s, m), lr in picked.items()))
    _run_each(_missing(choice.runs(picked), store), sizes, models, store, progress)


def _measure_models(settings: Sequence[str], sizes: Sizes, models: Models, store: Store) -> None:
    known = {row["model"] for row in store.of_kind(MODEL)}
    for setting in (SETTINGS[name] for name in settings):
        for model in {setting.student, setting.teacher} - known:
            store.add(baseline(model, sizes, models))
            known.add(model)


def _missing(keys: Sequence[RunKey], store: Store) -> list[RunKey]:
    return [key for key in keys if store.find(key) is None]


def _run_each(
    keys: Sequence[RunKey], sizes: Sizes, models: Models, store: Store, progress: _Progress
) -> None:
    for key in keys:
        if progress.is_over:
            return
        row = run(key, sizes, models)
        store.add(row)
        progress.finished(key, row)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study, write its report, or both."""
    options = parse(arguments)
    try:
        if options.command != "report":
            run_all(options)
        if options.command != "run":
            from benchmarks.study_report import write_report  # needs matplotlib and scipy

            write_report(_choice(options), Store(options.results), options.output)
    except ValueError as mistake:
        sys.exit(f"error: {mistake}")


if __name__ == "__main__":
    main()
