"""What runs came to: accuracy before, after and at best, with intervals over the problems."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from opdvr.eval.statistics import bootstrap_means, interval
from opdvr.report.html.load import Group, LoadedRun
from opdvr.report.html.text import markup, number, table
from opdvr.report.summary import SourceAccuracy, summarise
from opdvr.report.validations import accuracies


def outcome_table(groups: Sequence[Group]) -> str:
    """A row a run and benchmark, and one with the mean over each group of several runs; markup."""
    rows = []
    several = any(len(group.runs) > 1 for group in groups)
    for group in groups:
        found = {run.label: summarise(run.folder).accuracies for run in group.runs}
        for run in group.runs:
            rows += [_row(group, run, accuracy) for accuracy in found[run.label]]
        if len(group.runs) > 1:
            rows += _mean_rows(group, list(found.values()))
    if not rows:
        return "<p>No validation was logged.</p>"
    head = ["run", "benchmark", "mean of", "before", "after", "step", "change", "best", "step"]
    note = (
        "In brackets: 95 % interval over the problems (bootstrap), where validation.jsonl has them"
    )
    if several:
        note += "; of a group, the range of its runs"
    return table(head, rows, f"{note}.", "numbers")


def _row(group: Group, run: LoadedRun, accuracy: SourceAccuracy) -> list[str]:
    name = accuracy.data_source
    change = "–"
    if accuracy.before is not None and accuracy.after is not None:
        change = f"{accuracy.after - accuracy.before:+.3f}"
        change += _brackets(change_interval(run, name, 0, accuracy.after_step), "+.3f")
    return [
        _named(group, run.label),
        markup(name),
        str(accuracy.n_samples),
        number(accuracy.before) + _brackets(accuracy_interval(run, name, 0)),
        number(accuracy.after) + _brackets(accuracy_interval(run, name, accuracy.after_step)),
        "–" if accuracy.after_step is None else str(accuracy.after_step),
        change,
        number(accuracy.best) + _brackets(accuracy_interval(run, name, accuracy.best_step)),
        str(accuracy.best_step),
    ]


def _mean_rows(group: Group, per_run: Sequence[Sequence[SourceAccuracy]]) -> list[list[str]]:
    rows = []
    keys = dict.fromkeys((a.data_source, a.n_samples) for found in per_run for a in found)
    for key in keys:
        same = [a for found in per_run for a in found if (a.data_source, a.n_samples) == key]
        before, after, best = (
            _mean_and_range([getattr(accuracy, name) for accuracy in same])
            for name in ("before", "after", "best")
        )
        changes = [
            a.after - a.before if a.after is not None and a.before is not None else None
            for a in same
        ]
        change = _mean_and_range(changes, "+.3f")
        title = _named(group, f"mean of {len(same)} runs")
        rows.append([title, markup(key[0]), str(key[1]), before, after, "", change, best, ""])
    return rows


def _named(group: Group, label: str) -> str:
    return f'<span class="swatch s{group.number + 1}"></span><bdi>{markup(label)}</bdi>'


def _mean_and_range(values: Sequence[float | None], form: str = ".3f") -> str:
    there = [value for value in values if value is not None]
    if not there:
        return "–"
    mean = f"{sum(there) / len(there):{form}}"
    return f"<strong>{mean}</strong>{_brackets((min(there), max(there)), form)}"


def _brackets(bounds: tuple[float, float] | None, form: str = ".3f") -> str:
    if bounds is None:
        return ""
    return f' <span class="interval">[{bounds[0]:{form}}, {bounds[1]:{form}}]</span>'


def accuracy_interval(run: LoadedRun, source: str, step: int | None) -> tuple[float, float] | None:
    """95 % bootstrap interval of a validation's accuracy; None where its problems are not known."""
    problems = _problems(run, source, step)
    return _interval(tuple(problems.values())) if problems else None


def change_interval(
    run: LoadedRun, source: str, first: int, last: int | None
) -> tuple[float, float] | None:
    """The same of a difference, paired by problem; None where the problems are not the same."""
    before, after = _problems(run, source, first), _problems(run, source, last)
    if not before or before.keys() != after.keys():
        return None
    return _interval(tuple(after[key] - before[key] for key in before))


def _problems(run: LoadedRun, source: str, step: int | None) -> dict[str, float]:
    for record in reversed(run.validation):
        if step is not None and record["step"] == step:
            return accuracies(record, source)
    return {}


# The table and the curves ask for the same intervals.
@lru_cache(maxsize=1024)
def _interval(values: tuple[float, ...]) -> tuple[float, float]:
    return interval(bootstrap_means(np.asarray(values, dtype=np.float64)))
