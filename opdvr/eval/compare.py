"""Two evaluations of the same problems: is the difference more than chance?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from opdvr.eval import paired
from opdvr.eval.jsonl import damaged, read_lines
from opdvr.eval.scoring import PROBLEMS, again, read_results
from opdvr.eval.verdicts import Rules

# Settings that should agree for the comparison to be about the models alone.
_SAME = ("n", "temperature", "top-p", "max-tokens", "thinking")
# What is read of a problem's line.
_READ = ("key", "data_source", "avg", "question", "gold")
_QUESTION_CHARS = 70


def compare_folders(before: Path, after: Path) -> dict[str, Any]:
    """Differences of avg@n, `after` minus `before`, over problems that both have (by key).

    Returns:
        before, after (folder, model, and the verifier that scored); unpaired (problems only one of
        them has); differing (settings that are not the same); rows: by benchmark and over
        benchmarks the two averages, their difference with its 95 % interval (paired bootstrap over
        problems) and a two-sided p; problems: every pair with its difference, the largest gain
        first.

    Raises:
        ValueError: a folder is not scored yet, or no problem is in both.
    """
    results = [read_results(folder) for folder in (before, after)]
    one, other = ({line["key"]: line for line in _problems(f)} for f in (before, after))
    both = [key for key in one if key in other]
    if not both:
        raise ValueError(
            f"{before} and {after} have no problem in common; compare evaluations of one data file"
        )
    pairs = [_pair(one[key], other[key]) for key in both]
    names = list(dict.fromkeys(pair["data_source"] for pair in pairs))
    values = {
        name: np.array([(p["before"], p["after"]) for p in pairs if p["data_source"] == name])
        for name in names
    }
    rows = paired.rows(values)
    return {
        "before": _side(before, results[0]),
        "after": _side(after, results[1]),
        "unpaired": {"before": len(one) - len(both), "after": len(other) - len(both)},
        "differing": {
            name: [result["settings"][name] for result in results]
            for name in _SAME
            if results[0]["settings"][name] != results[1]["settings"][name]
        },
        "rows": rows,
        "problems": sorted(pairs, key=lambda pair: -pair["difference"]),
    }


def _side(folder: Path, results: dict[str, Any]) -> dict[str, str]:
    rules = Rules(results["verifier"], results["answer_forms"])
    return {"folder": str(folder), "model": results["model"], "verifier": str(rules)}


def _problems(folder: Path) -> list[dict[str, Any]]:
    path = folder / PROBLEMS
    if not path.is_file():
        raise ValueError(f"{path} is missing; {again(folder)}")
    lines = []
    for number, line in read_lines(path, remedy=again(folder)):
        lacking = [key for key in _READ if key not in line]
        if lacking:
            raise damaged(path, number, f"it lacks {', '.join(lacking)}", again(folder))
        lines.append(line)
    return lines


def _pair(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        "key": one["key"],
        "data_source": one["data_source"],
        "before": one["avg"],
        "after": other["avg"],
        "difference": other["avg"] - one["avg"],
        "question": one["question"],
        "gold": one["gold"],
    }


def render(found: dict[str, Any], show: int, as_json: bool = False) -> str:
    """What `compare_folders` found, for a person or as JSON."""
    if as_json:
        return json.dumps(found, indent=2, ensure_ascii=False)
    lines = [
        f"A: {found['before']['model']} ({found['before']['folder']})",
        f"B: {found['after']['model']} ({found['after']['folder']})",
    ]
    left_out = found["unpaired"]
    if any(left_out.values()):
        lines.append(
            f"not in both, left out: {left_out['before']} problems of A, {left_out['after']} of B"
        )
    for name, (one, other) in found["differing"].items():
        lines.append(f"not sampled alike: {name} is {one} in A and {other} in B")
    one, other = (found[side]["verifier"] for side in ("before", "after"))
    if one != other:
        lines.append(f"not scored alike: A by {one}, B by {other}")
    lines += ["", *paired.table(found["rows"]), ""]
    gains = [p for p in found["problems"] if p["difference"] > 0]
    losses = [p for p in found["problems"] if p["difference"] < 0][::-1]
    equal = len(found["problems"]) - len(gains) - len(losses)
    lines.append(f"problems: {len(gains)} better, {len(losses)} worse, {equal} the same")
    for title, pairs in (("largest gains", gains[:show]), ("largest losses", losses[:show])):
        if pairs:
            lines += ["", f"{title}:", *map(_pair_line, pairs)]
    return "\n".join(lines)


def _pair_line(pair: dict[str, Any]) -> str:
    question = " ".join(pair["question"].split())[:_QUESTION_CHARS]
    return f"  {pair['before']:.3f} -> {pair['after']:.3f}  {pair['key']}  {question}"
