"""A diagnosis as a short table for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from opdvr.data.wording import escaped
from opdvr.diagnose.prompt_measure import FIRST, THIRDS

_NAME_CHARS, _WIDTH = 30, 100


def render(diagnosis: Mapping[str, Any]) -> str:
    """The lines of `opdvr diagnose`, from what its JSON holds."""
    numbers = diagnosis["numbers"]
    lines = [*_models(diagnosis["settings"]), "", *_tokenizers(numbers["tokenizer"])]
    if "accuracy" in numbers:
        lines += [*_answers(numbers), *_tokens(numbers), *_ends(numbers)]
    lines += ["", f"verdict: {diagnosis['verdict']}"]
    for reason in diagnosis["reasons"]:
        wrapped = textwrap.wrap(reason, _WIDTH - 4)
        lines += [f"  - {wrapped[0]}", *(f"    {line}" for line in wrapped[1:])]
    return escaped("\n".join(lines))


def _row(name: str, *values: str) -> str:
    return f"{name:<{_NAME_CHARS}}{''.join(f'{value:<13}' for value in values)}".rstrip()


def _models(settings: Mapping[str, Any]) -> Iterator[str]:
    for name in ("student", "teacher", "data"):
        yield _row(name, settings[name])


def _tokenizers(tokenizer: Mapping[str, Any]) -> Iterator[str]:
    same = f"{tokenizer['ids']} ids, the same in both"
    yield _row("id-to-token map", tokenizer["difference"] or same)
    if tokenizer["difference"] is not None:
        return
    for name, pair in tokenizer["special"].items():
        values = [str(pair["student"]), str(pair["teacher"])]
        note = "the same" if values[0] == values[1] else "NOT the same"
        yield _row(name.replace("_", " "), *dict.fromkeys(values), note)
    yield _row("first prompt, rendered", tokenizer["template"] or "the same")


def _answers(numbers: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield _row(f"{numbers['prompts']} prompts", "student", "teacher")
    yield _row("responses", *(str(numbers[f"{who}_responses"]) for who in _BOTH))
    accuracy = numbers["accuracy"]
    yield _row("accuracy", *(f"{accuracy[who]['mean']:.3f}" for who in _BOTH))
    yield _row("  95 %", *(_span(accuracy[who]) for who in _BOTH))
    failed = accuracy["teacher_where_student_fails"]
    if failed is not None:
        yield _row("  where the student fails", "", f"{failed['mean']:.3f}")
        yield _row("  95 %", "", _span(failed))
    yield _row("mean tokens", *(f"{numbers[f'{who}_mean_tokens']:.1f}" for who in _BOTH))
    yield _row("truncated", *(f"{numbers[f'{who}_truncated']:.3f}" for who in _BOTH))


_BOTH = ("student", "teacher")


def _span(entry: Mapping[str, float]) -> str:
    return f"{entry['low']:.2f} to {entry['high']:.2f}"


def _tokens(numbers: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    parts = [numbers, *(numbers["by_position"][part] for part in (FIRST, *THIRDS))]
    heads = ["all", FIRST, "1st third", "2nd third", "3rd third"]
    yield _row("the student's tokens", *heads)
    rows = {
        "tokens": "tokens",
        f"overlap of top {numbers['top_k']}": "overlap_ratio",
        "agreement": "agreement",
        "mean log-ratio, nats": "log_ratio_mean",
        "mean |log-ratio|": "log_ratio_abs_mean",
        "student's entropy": "student_entropy",
        "teacher's entropy": "teacher_entropy",
        "gate passes, correct": "gate_pass_correct",
        "gate passes, incorrect": "gate_pass_incorrect",
    }
    for name, key in rows.items():
        yield _row(name, *(_shown(part[key]) for part in parts))


def _shown(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _ends(numbers: Mapping[str, Any]) -> Iterator[str]:
    ends = numbers["ends"]
    yield ""
    yield _row(f"where {ends['finished']} responses end", "student", "teacher")
    student, teacher = ends["student_ends"], ends["teacher_at_student_ends"]
    yield _row("p(the student's end token)", _shown(student), _shown(teacher))
    yield _row("p(the teacher's end token)", "", _shown(ends["teacher_ends"]))
