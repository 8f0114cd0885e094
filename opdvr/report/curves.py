"""The curves of one or more runs as one picture: did it learn, why, and what did it cost?"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from opdvr.report import metrics as names
from opdvr.report.panels import (
    LABEL_CHARS,
    PALETTE,
    draw_accuracy,
    draw_length,
    draw_lines,
    draw_seconds,
    plain_label,
    sample_line,
)
from opdvr.report.run_folder import read_metrics
from opdvr.report.series import Line, Run, smoothing_note

WIDTH_PX, HEIGHT_PX = 1500, 900
_DPI = 100

_GAP_LINES = (
    Line("mean log-ratio", (names.LOG_RATIO_MEAN,)),
    Line("mean |log-ratio|", (names.LOG_RATIO_ABS_MEAN,)),
)
_GATE_LINES = (
    Line("passed, correct", (names.GATE_PASS_CORRECT,)),
    Line("passed, incorrect", (names.GATE_PASS_INCORRECT,)),
    Line("zeroed, all", (names.REWARD_ZEROED_FRAC,)),
)
_ENTROPY_LINES = (
    Line("student", (names.ACTOR_ENTROPY,)),
    Line("teacher", (names.TEACHER_ENTROPY,)),
)


def plot_curves(
    run_folders: Path | str | Sequence[Path | str],
    output_png: Path | str,
    reference_accuracy: Mapping[str, float] | None = None,
) -> Path:
    """Draws a run's curves, or those of several runs for comparison, into one PNG.

    Six panels over training steps: accuracy (validation with its first and last point marked, and
    the training batches), teacher-student gap (nats a token), gate, entropy (nats a token),
    response length (tokens) with the share truncated, and seconds a step by phase. A panel
    without data says so. With one run a colour is a metric; with several it is a run, the
    accuracy is the mean over the data sources that all of them validated, and the seconds are
    means. Long runs are smoothed, with the raw values faint behind.

    Args:
        run_folders: One folder with a metrics.jsonl, or up to seven.
        output_png: The picture to write, 1500 x 900 px; its folder is created.
        reference_accuracy: Horizontal lines in the accuracy panel by label, e.g. the teacher's.

    Returns:
        `output_png`.

    Raises:
        ValueError: No folder or too many are given, or one has no readable metrics.jsonl.
    """
    from matplotlib.figure import Figure

    runs = _load_runs(run_folders)
    # A Figure of its own, without pyplot, leaves the caller's matplotlib state and backend alone.
    figure = Figure(figsize=(WIDTH_PX / _DPI, HEIGHT_PX / _DPI), dpi=_DPI, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    accuracy, gap, gate, entropy, length, seconds = figure.subplots(2, 3).flat
    draw_accuracy(accuracy, runs, reference_accuracy or {})
    if draw_lines(gap, runs, _GAP_LINES, "Teacher - student log-ratio", "nats per token"):
        gap.axhline(0.0, color="black", linewidth=0.8, zorder=1)
    if draw_lines(gate, runs, _GATE_LINES, "Gate", "share of token rewards"):
        # A little room, so that lines at 0 and 1 are not cut.
        gate.set_ylim(-0.03, 1.03)
    if draw_lines(entropy, runs, _ENTROPY_LINES, "Entropy", "nats per token"):
        entropy.set_ylim(bottom=0.0)
    draw_length(length, runs)
    draw_seconds(seconds, runs)
    if len(runs) == 1:
        figure.suptitle(runs[0].label, fontweight="bold")
    else:
        handles = [sample_line(run.label, run.colour, linewidth=4) for run in runs]
        figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    if note := smoothing_note(runs):
        figure.supxlabel(note, fontsize=9, color="#555555")
    output = Path(output_png)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.tmp")
    figure.savefig(temporary, format="png")
    os.replace(temporary, output)
    return output


def _load_runs(run_folders: Path | str | Sequence[Path | str]) -> list[Run]:
    single = isinstance(run_folders, (str, os.PathLike))
    folders = [Path(folder) for folder in ([run_folders] if single else run_folders)]
    if not 1 <= len(folders) <= len(PALETTE):
        raise ValueError(f"{len(folders)} run folders given: plot 1 to {len(PALETTE)} at a time")
    resolved = [folder.resolve() for folder in folders]
    labels = [folder.name for folder in resolved]
    if len(set(labels)) < len(labels):
        labels = [f"{folder.parent.name}/{folder.name}" for folder in resolved]
    # A single run's name has the width of the picture.
    most_chars = LABEL_CHARS if len(folders) > 1 else 2 * LABEL_CHARS
    return [
        Run(plain_label(label, most_chars), colour, read_metrics(folder))
        for label, colour, folder in zip(labels, PALETTE, folders, strict=False)
    ]
