"""What a run came to, in numbers and as a small table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdvr.report import metrics as names
from opdvr.report.metrics import ValidationKey, number_of, phase_key, validation_accuracies
from opdvr.report.progress import format_duration
from opdvr.report.run_folder import read_metrics


@dataclass(frozen=True)
class SourceAccuracy:
    """Validation accuracies of one data source, each the mean over `n_samples` a prompt.

    Attributes:
        before: At step 0, before any training; None where that was not validated.
        after: At the last validation of a trained step (`after_step`); None where there is none.
        best: The highest of all, step 0 included, the earliest (`best_step`) of equal ones.
    """

    data_source: str
    n_samples: int
    before: float | None
    after: float | None
    after_step: int | None
    best: float
    best_step: int


@dataclass(frozen=True)
class PhaseTime:
    """A phase of the step: how many steps had it, and the mean seconds of those."""

    name: str
    steps: int
    mean_seconds: float


@dataclass(frozen=True)
class Summary:
    """A run's outcome.

    Attributes:
        accuracies: One entry a data source and number of samples, in the order logged.
        last_step: The last step logged; None for a run that logged nothing.
        steps_logged: Training steps in metrics.jsonl (a validation before training is none).
        mean_step_seconds: Mean of timing_s/step, which leaves validation and checkpoints out.
        phases: Those logged; "testing" and "save_checkpoint" come on top of the step's seconds.
        tokens_per_second: Prompt and response tokens a second for one worker, over all steps
            (perf/throughput weighted by the step's seconds).
        rollout_trainer_diff: Absolute difference between the rollout engine's and the trainer's
            probability of the sampled tokens at the last step that logged it, by statistic
            ("mean", "max", "std").
        teacher: Of a teacher on engines of its own: mean seconds a step by TEACHER_BUSY and
            TEACHER_WAIT, and TEACHER_HIDDEN over all of its work. Empty for others.
    """

    run_folder: Path
    accuracies: tuple[SourceAccuracy, ...]
    last_step: int | None
    steps_logged: int
    mean_step_seconds: float | None
    phases: tuple[PhaseTime, ...]
    tokens_per_second: float | None
    rollout_trainer_diff: dict[str, float]
    teacher: dict[str, float]


def summarise(run_folder: Path | str) -> Summary:
    """Reads a run folder's metrics.jsonl into a `Summary`.

    Raises:
        ValueError: The folder has no metrics.jsonl, or the file is damaged.
    """
    records = read_metrics(run_folder)
    seconds = _finite(number_of(record, names.STEP_SECONDS) for record in records)
    phases = []
    for phase in (*names.INNER_PHASES, *names.OUTER_PHASES):
        phase_seconds = _finite(number_of(record, phase_key(phase)) for record in records)
        if phase_seconds:
            phases.append(PhaseTime(phase, len(phase_seconds), _mean(phase_seconds)))
    return Summary(
        run_folder=Path(run_folder),
        accuracies=_accuracies(records),
        last_step=records[-1]["step"] if records else None,
        steps_logged=sum(names.STEP_SECONDS in record for record in records),
        mean_step_seconds=_mean(seconds) if seconds else None,
        phases=tuple(phases),
        tokens_per_second=_tokens_per_second(records),
        rollout_trainer_diff=_rollout_trainer_diff(records),
        teacher=_teacher(records),
    )


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _accuracies(records: Sequence[Mapping[str, Any]]) -> tuple[SourceAccuracy, ...]:
    by_source: dict[ValidationKey, dict[int, float]] = {}
    for record in records:
        for key, accuracy in validation_accuracies(record).items():
            if math.isfinite(accuracy):
                by_source.setdefault(key, {})[record["step"]] = accuracy
    found = []
    for key, by_step in by_source.items():
        after_step = max((step for step in by_step if step > 0), default=None)
        best_step = min(by_step, key=lambda step: (-by_step[step], step))  # noqa: B023
        found.append(
            SourceAccuracy(
                *key,
                before=by_step.get(0),
                after=None if after_step is None else by_step[after_step],
                after_step=after_step,
                best=by_step[best_step],
                best_step=best_step,
            )
        )
    return tuple(found)


def _tokens_per_second(records: Sequence[Mapping[str, Any]]) -> float | None:
    tokens = seconds = 0.0
    for record in records:
        rate = number_of(record, names.THROUGHPUT)
        step_seconds = number_of(record, names.STEP_SECONDS)
        if len(_finite([rate, step_seconds])) == 2:
            tokens += rate * step_seconds
            seconds += step_seconds
    return tokens / seconds if seconds > 0 else None


def _teacher(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    keys = (names.TEACHER_BUSY, names.TEACHER_WAIT, names.TEACHER_HIDDEN)
    rows = [[number_of(record, key) for key in keys] for record in records]
    rows = [row for row in rows if len(_finite(row)) == len(keys)]
    busy = sum(row[0] for row in rows)
    if not busy:
        return {}
    hidden = sum(row[0] * row[2] for row in rows) / busy
    values = (busy / len(rows), _mean([row[1] for row in rows]), hidden)
    return dict(zip(keys, values, strict=True))


def _rollout_trainer_diff(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    for record in reversed(records):
        diff = {
            name.removeprefix(names.ROLLOUT_DIFF_PREFIX): number_of(record, name)
            for name in record
            if name.startswith(names.ROLLOUT_DIFF_PREFIX)
        }
        # verl's "valid" is a flag beside the statistics, not one of them.
        diff.pop("valid", None)
        if diff:
            return diff
    return {}


def render(summary: Summary, teacher_accuracy: Mapping[str, float] | None = None) -> str:
    """The summary as plain text for a terminal, without a newline at its end.

    Args:
        teacher_accuracy: The teacher's accuracy by data source. Adds its column and the share
            of the way from the student before training to the teacher that was gone. A source
            that the run did not validate gets a row of its own.
    """
    lines = [f"run {summary.run_folder}", *_accuracy_table(summary, teacher_accuracy or {})]
    if summary.mean_step_seconds is not None:
        total = summary.mean_step_seconds * summary.steps_logged
        lines.append(
            f"{summary.steps_logged} steps, {summary.mean_step_seconds:.2f} s each"
            f" ({format_duration(total)} in all)"
        )
    inner = [p for p in summary.phases if p.name in names.INNER_PHASES]
    if inner:
        lines.append("of a step: " + ", ".join(f"{p.name} {p.mean_seconds:.2f} s" for p in inner))
    if summary.teacher:
        busy, waited, hidden = summary.teacher.values()
        lines.append(
            f"teacher: {busy:.2f} s of work a step, {hidden:.0%} of it during generation; the step "
            f"waited {waited:.2f} s for it"
        )
    outer = [p for p in summary.phases if p.name in names.OUTER_PHASES]
    if outer:
        lines.append(
            "besides:   "
            + ", ".join(f"{p.name} {p.mean_seconds:.2f} s ({p.steps} times)" for p in outer)
        )
    if summary.tokens_per_second is not None:
        lines.append(f"tokens a second and worker: {summary.tokens_per_second:,.0f}")
    if summary.rollout_trainer_diff:
        diff = ", ".join(f"{name} {v:.2e}" for name, v in summary.rollout_trainer_diff.items())
        lines.append(f"rollout against trainer, probability difference, last step: {diff}")
    return "\n".join(lines)


def _accuracy_table(summary: Summary, teacher_accuracy: Mapping[str, float]) -> list[str]:
    header = ["accuracy", "mean of", "before", "after", "(step)", "best", "(step)"]
    if teacher_accuracy:
        header += ["teacher", "gap closed"]
    rows = [header]
    for source in summary.accuracies:
        row = [source.data_source, str(source.n_samples), _share(source.before)]
        row += [_share(source.after), _optional(source.after_step)]
        row += [_share(source.best), str(source.best_step)]
        if teacher_accuracy:
            teacher = teacher_accuracy.get(source.data_source)
            row += [_share(teacher), _gap_closed(source, teacher)]
        rows.append(row)
    validated = {source.data_source for source in summary.accuracies}
    for data_source, accuracy in teacher_accuracy.items():
        if data_source not in validated:
            rows.append([data_source, *["-"] * 6, _share(accuracy), "-"])
    if len(rows) == 1:
        return ["accuracy: no validation was logged"]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _gap_closed(source: SourceAccuracy, teacher: float | None) -> str:
    if source.before is None or source.after is None or teacher is None:
        return "-"
    if teacher <= source.before:
        return "-"
    return f"{(source.after - source.before) / (teacher - source.before):.0%}"


def _share(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{accuracy:.3f}"


def _optional(step: int | None) -> str:
    return "-" if step is None else str(step)
