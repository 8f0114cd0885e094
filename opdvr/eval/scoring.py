"""From a folder's samples to its results: verdicts, figures, table, chart."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from opdvr import verifier as rules
from opdvr.eval import judge as judging
from opdvr.eval.chart import draw_accuracy
from opdvr.eval.grading import Benchmark, Scored, as_benchmarks, grade
from opdvr.eval.jsonl import read_object, write_lines, write_whole, writing
from opdvr.eval.judge_models import asker
from opdvr.eval.options import JudgeOptions
from opdvr.eval.problems import Problem
from opdvr.eval.progress import PLAIN_EVERY_S
from opdvr.eval.results import MEAN, render_table, summarise
from opdvr.eval.samples import Sample, are_settings
from opdvr.eval.trained import validation_line
from opdvr.eval.verdicts import Rules, load_verifier

SCORED = "scored.jsonl"
PROBLEMS = "problems.jsonl"
RESULTS_JSON = "results.json"
RESULTS_TABLE = "results.md"
CHART = "accuracy.png"
_QUESTION_CHARS = 300


def score(
    folder: Path,
    problems: Sequence[Problem],
    samples: Sequence[Sample],
    run: dict[str, Any],
    verdicts_by: Rules,
    judge: JudgeOptions | None,
    say: Callable[[str], None],
) -> str:
    """Score all samples and write scored.jsonl, problems.jsonl, results.json, results.md and
    accuracy.png into the folder.

    Args:
        folder: the evaluation's.
        problems: all of it, in order.
        samples: all of it, n a problem.
        run: the content of run.json.
        verdicts_by: the project's verifier, or a user's.
        judge: a model to ask about what the rules reject.
        say: says a line.

    Returns:
        The table, below a line that names the verifier.

    Raises:
        VerifierFailure: a user's verifier failed on a sample; nothing is written.
        Unwritable: a file cannot be written.
    """
    started = time.monotonic()
    n = run["settings"]["n"]
    assert len(samples) == n * len(problems)
    scored, verifier_counts = _verdicts(problems, samples, verdicts_by, say)
    write_lines(folder / SCORED, [asdict(row) for row in scored])
    say(f"scored {len(scored):,} samples in {time.monotonic() - started:.1f} s")
    benchmarks = as_benchmarks(scored, n)
    judged, tally = None, None
    if judge is not None:
        judged, tally = _ask_judge(folder, problems, scored, benchmarks, judge, say)
    found = summarise(benchmarks, judged)
    content = {
        "model": run["settings"]["model"]["name"],
        "settings": run["settings"],
        **asdict(verdicts_by),
        "verifier_counts": verifier_counts,
        "trainer_validation": run["trainer_validation"],
        "judge": None if tally is None else {"model": judge.model, **asdict(tally)},
        "mean": found[MEAN],
        "benchmarks": {name: metrics for name, metrics in found.items() if name != MEAN},
    }
    # A verdict that is no finite number has ended the scoring.
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(folder / RESULTS_JSON, text)
    write_lines(folder / PROBLEMS, _per_problem(problems, benchmarks, judged))
    return _write_page(folder, run, verdicts_by, found, tally)


def read_results(folder: Path) -> dict[str, Any]:
    """The content of results.json.

    Raises:
        ValueError: there is none yet, or a damaged one.
    """
    path = folder / RESULTS_JSON
    if not path.is_file():
        raise ValueError(f"{folder} has no {RESULTS_JSON}; finish its evaluation first")
    results = read_object(path, ("model", "settings", *asdict(Rules())), again(folder))
    if not are_settings(results["settings"]):
        raise ValueError(f"{path} is damaged (its settings are not whole); {again(folder)}")
    return results


def again(folder: Path) -> str:
    """The remedy for a damaged file that scoring writes."""
    return (
        f"write it anew with: {shlex.join(['python', '-m', 'opdvr', 'eval', 'score', str(folder)])}"
    )


def _verdicts(
    problems: Sequence[Problem],
    samples: Sequence[Sample],
    verdicts_by: Rules,
    say: Callable[[str], None],
) -> tuple[list[Scored], dict[str, int]]:
    rules.counters(reset=True)
    rows: list[Scored] = []
    shown = time.monotonic()
    for some in grade(problems, samples, load_verifier(verdicts_by)):
        rows += some
        if time.monotonic() - shown > PLAIN_EVERY_S:
            shown = time.monotonic()
            say(f"scored {len(rows):,} of {len(samples):,} samples")
    counts = {name: rules.counters()[name] for name in ("timeout", "error")}
    if any(counts.values()):
        say(
            f"{counts['timeout']:,} comparisons ran out of time and {counts['error']:,} failed; "
            "they count as wrong"
        )
    return rows, counts


def _ask_judge(
    folder: Path,
    problems: Sequence[Problem],
    scored: Sequence[Scored],
    benchmarks: Sequence[Benchmark],
    judge: JudgeOptions,
    say: Callable[[str], None],
) -> tuple[dict[str, np.ndarray], judging.Tally]:
    """acc by benchmark with what the judge accepts, and how it went."""
    asked = judging.questions(problems, scored)
    say(f"asking {judge.model} about {len(asked):,} rejected answers")
    verdicts, tally = judging.judge(asked, folder, judge.model, asker(judge, folder, say))
    judged = judging.with_judge(benchmarks, scored, verdicts, tally)
    say(_judge_line(tally))
    return judged, tally


def _judge_line(tally: judging.Tally) -> str:
    line = (
        f"the judge accepts {tally.accepted:,} of {tally.asked:,} answers "
        f"({tally.accepted_samples:,} samples)"
    )
    if tally.failed:
        line += f"; {tally.failed:,} failed and are asked again next time: {tally.first_failure}"
    return line


def _per_problem(
    problems: Sequence[Problem], benchmarks: Sequence[Benchmark], judged: dict[str, Any] | None
) -> list[dict[str, Any]]:
    by_key = {problem.key: problem for problem in problems}
    lines = []
    for benchmark in benchmarks:
        for place, key in enumerate(benchmark.keys):
            problem = by_key[key]
            line = {
                "key": key,
                "data_source": benchmark.name,
                "row": problem.row,
                "avg": float(benchmark.acc[place].mean()),
                "correct": int(benchmark.correct[place].sum()),
                "tokens": float(benchmark.tokens[place].mean()),
                "gold": problem.gold,
                "question": problem.question[:_QUESTION_CHARS],
            }
            if judged is not None:
                line["avg_judge"] = float(judged[benchmark.name][place].mean())
            lines.append(line)
    return lines


def _sampling(settings: dict[str, Any]) -> str:
    thinking = "on" if settings["thinking"] else "off"
    return (
        f"n {settings['n']}, temperature {settings['temperature']:g}, top-p {settings['top-p']:g}, "
        f"max tokens {settings['max-tokens']}, thinking {thinking}"
    )


def _write_page(
    folder: Path,
    run: dict[str, Any],
    verdicts_by: Rules,
    found: dict[str, dict[str, Any]],
    tally: judging.Tally | None,
) -> str:
    """Table and chart; returns the table."""
    model = run["settings"]["model"]["name"]
    failed = 0 if tally is None else tally.failed
    table = f"Scored by {verdicts_by}\n\n{render_table(found, failed)}"
    write_whole(folder / RESULTS_TABLE, _page(model, run, verdicts_by, table, tally))
    with writing(folder / CHART):
        draw_accuracy(found, f"{model}\n{_sampling(run['settings'])}", folder / CHART)
    return table


def _page(
    model: str, run: dict[str, Any], verdicts_by: Rules, table: str, tally: judging.Tally | None
) -> str:
    settings = run["settings"]
    lines = [f"# {model}", "", f"{_sampling(settings)}, seed {settings['seed']}", "", table, ""]
    lines += [
        "The 95 % interval is a bootstrap over problems. Solved none, solved all: shares of "
        "problems. Tokens: mean length.",
        "",
    ]
    if run["trainer_validation"]:
        lines += [f"The trainer's own validation: {validation_line(run, verdicts_by)}.", ""]
    if tally is not None:
        lines += [f"With judge: {_judge_line(tally)}.", ""]
    return "\n".join(lines)
