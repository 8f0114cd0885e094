"""What a run ends with: a summary on the terminal, the curves, and where everything is."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from opdvr.integration.checkpoints import complete_steps
from opdvr.integration.config import distills
from opdvr.integration.teacher_settings import has_several_teachers
from opdvr.integration.terminal import say
from opdvr.report.curves import plot_curves
from opdvr.report.html import write_report
from opdvr.report.run_folder import METRICS_NAME
from opdvr.report.summary import render, summarise

CURVES = "curves.png"
SUMMARY = "summary.txt"


def report(config: DictConfig) -> None:
    """Print accuracy before and after (and the demo teacher's); write summary.txt, curves.png and
    report.html.
    """
    folder = Path(config.trainer.default_local_dir)
    if not (folder / METRICS_NAME).exists():
        say(f"{folder} is not visible from here (a cluster's node wrote it): no summary")
        return
    teacher = {}
    # Of several teachers the configuration's model may be none.
    if config.opdvr.demo and distills(config) and not has_several_teachers(config):
        teacher = _demo_teacher(config)
    text = render(summarise(folder), teacher)
    (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
    say(text)
    plot_curves(
        folder, folder / CURVES, {f"teacher, {source}": value for source, value in teacher.items()}
    )
    say(f"curves:     {folder / CURVES}")
    write_page(folder)
    say(f"metrics:    {folder / 'metrics.jsonl'}")
    steps = complete_steps(folder)
    if steps:
        model = folder / f"global_step_{steps[-1]}" / "actor" / "huggingface"
        say(f"checkpoint: {model} (loads in transformers)")


def write_page(folder: Path) -> None:
    """The page is about a run that is over and saved: what hinders it is said and stops nothing."""
    try:
        say(f"report:     {write_report([folder])}")
    except ValueError as hindrance:
        say(f"report:     not written: {hindrance}")


def _demo_teacher(config: DictConfig) -> dict[str, float]:
    """The teacher's accuracy as validation measures the student's, sampled here and now."""
    from opdvr.demo.evaluate import evaluate

    say("measuring the teacher on the held-out problems")
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    result = evaluate(
        config.reward_model.model.path,
        config.data.val_files,
        n_samples=1,  # its error is that of the problems, not of the samples
        temperature=sampling.temperature,
        greedy=False,
    )
    return {"opdvr-demo": result["sampled_accuracy"]}
