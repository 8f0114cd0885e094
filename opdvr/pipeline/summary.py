"""summary.json and a picture: what each stage's model came to, and how long the stages took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opdvr.eval.jsonl import write_whole
from opdvr.eval.scoring import read_results
from opdvr.report.panels import PALETTE
from opdvr.report.progress import format_duration

EVALUATION = "eval "  # begins the name of a stage that evaluates
SUMMARY, PICTURE = "summary.json", "accuracy-by-stage.png"


def accuracy_by_stage(evaluations: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Of each evaluated model: accuracy (mean over benchmarks), its 95 % interval, and `by_source`.

    Args:
        evaluations: folder of the finished evaluation by the stage's name.
    """
    found = {}
    for stage, folder in evaluations.items():
        results = read_results(folder)
        mean = results["mean"]
        found[stage] = {
            "accuracy": mean["avg"],
            "interval_95": mean["avg_95"],
            "tokens": mean["tokens"],
            "truncated": mean["truncated"],
            "by_source": {name: each["avg"] for name, each in results["benchmarks"].items()},
        }
    return found


def write_summary(
    folder: Path,
    accuracies: Mapping[str, Mapping[str, Any]],
    minutes: Mapping[str, float],
    settings: Mapping[str, Any],
) -> Path:
    """Write summary.json and the picture; returns the former's path."""
    content = {
        "accuracy": {stage: values["accuracy"] for stage, values in accuracies.items()},
        "stages": accuracies,
        "minutes": {name: round(value, 2) for name, value in minutes.items()},
        "minutes_in_all": round(sum(minutes.values()), 2),
        **settings,
    }
    write_whole(folder / SUMMARY, json.dumps(content, indent=2) + "\n")
    _draw(accuracies, folder / PICTURE)
    return folder / SUMMARY


def table(accuracies: Mapping[str, Mapping[str, Any]], minutes: Mapping[str, float]) -> str:
    """A line a stage for the terminal; its minutes are those of the training and evaluation."""
    width = max(map(len, accuracies))
    lines = [f"{'stage':<{width}}  accuracy  95 % interval   tokens  truncated  minutes"]
    for stage, values in accuracies.items():
        low, high = values["interval_95"]
        spent = minutes.get(stage, 0.0) + minutes.get(f"{EVALUATION}{stage}", 0.0)
        lines.append(
            f"{stage:<{width}}  {values['accuracy']:8.3f}  {low:.3f} to {high:.3f}  "
            f"{values['tokens']:7.1f}  {values['truncated']:8.1%}  {spent:7.1f}"
        )
    for stage, spent in minutes.items():
        if stage not in accuracies and not stage.startswith(EVALUATION):
            lines.append(f"{stage:<{width}}  {'':45}{spent:7.1f}")
    total = format_duration(sum(minutes.values()) * 60)
    return "\n".join([*lines, f"all stages: {total}"])


def _draw(accuracies: Mapping[str, Mapping[str, Any]], output: Path) -> None:
    from matplotlib.figure import Figure

    stages: Sequence[str] = list(accuracies)
    values = [accuracies[stage]["accuracy"] for stage in stages]
    intervals = [accuracies[stage]["interval_95"] for stage in stages]
    below = [max(0.0, value - low) for value, (low, _) in zip(values, intervals, strict=True)]
    above = [max(0.0, high - value) for value, (_, high) in zip(values, intervals, strict=True)]
    figure = Figure(figsize=(2.0 + 1.2 * len(stages), 4.5), dpi=100, layout="constrained")
    axes = figure.subplots()
    axes.bar(stages, values, 0.6, color=PALETTE[0])
    axes.errorbar(stages, values, yerr=[below, above], fmt="none", ecolor="black", capsize=4)
    for place, value in enumerate(values):
        axes.annotate(f"{value:.3f}", (place, 0.02), ha="center", color="white", fontsize=9)
    axes.set(ylabel="share correct (mean of samples, 95 % interval)", ylim=(0, 1.05))
    axes.spines[["top", "right"]].set_visible(False)
    temporary = output.with_name(f".{output.name}.tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(output)
