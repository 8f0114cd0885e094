"""What the numbers say, in one of five words.

Rethinking OPD (arXiv 2604.13016) names two conditions for distillation to work: student and teacher
have compatible patterns of thought, seen in the overlap of their likely tokens where the student
goes; and the teacher has something to offer that the student lacks. Its remedies are a cold start
(fine-tuning on the teacher's own responses first) and prompts that the teacher was trained on. The
thresholds (`opdvr.diagnose.thresholds`) are our own choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opdvr.diagnose.numbers import pass_rate, token_numbers
from opdvr.diagnose.prompt_measure import PromptMeasure

GO = "go"
COLD_START = "cold-start first"
OTHER_PROMPTS = "other prompts"
NOTHING_NEW = "teacher adds nothing new"
INCOMPATIBLE = "incompatible"
VERDICTS = (GO, COLD_START, OTHER_PROMPTS, NOTHING_NEW, INCOMPATIBLE)


# An overlap of K tokens says something where far more than K exist: by chance it is K over them.
_IDS_A_TOP_TOKEN = 8


@dataclass(frozen=True)
class Verdict:
    """One of VERDICTS, and the numbers that decided it in words."""

    verdict: str
    reasons: list[str]


def incompatible_ids(difference: str) -> Verdict:
    """The verdict on two id-to-token maps that differ."""
    return Verdict(
        INCOMPATIBLE,
        [
            f"do not distill token by token: {difference}",
            "take a teacher with the student's tokenizer, or fine-tune on the teacher's text",
        ],
    )


def overlap_counts(top_k: int, vocabulary: int) -> bool:
    """Whether the overlap ratio can tell pairs apart: chance gives K / V."""
    return vocabulary >= _IDS_A_TOP_TOKEN * top_k


def decide(
    measures: Sequence[PromptMeasure],
    numbers: Mapping[str, Any],
    thresholds: Mapping[str, float],
    use_overlap: bool,
) -> Verdict:
    """The first rule that holds: end tokens, too hard, nothing new, no agreement; else go.

    Args:
        numbers: as `all_numbers` gives them of `measures`.
        thresholds: a value for each name in opdvr.diagnose.thresholds.
        use_overlap: as `overlap_counts` says.
    """
    rules = (_end_tokens, _too_hard, _nothing_new)
    for rule in rules:
        verdict = rule(numbers, thresholds)
        if verdict is not None:
            return verdict
    agreed = _agreed(numbers, thresholds, use_overlap)
    if agreed.verdict == GO:
        return Verdict(GO, [*agreed.reasons, *_gain_words(numbers, thresholds)])
    fitting = [m for m in measures if _fits(m, thresholds, use_overlap)]
    share = len(fitting) / len(measures)
    least = thresholds["min_fitting_prompts"]
    count = f"{len(fitting)} of {len(measures)} prompts agree and are solved by the teacher"
    if share >= least:
        remedy = f"{count} ({share:.2f}, at least {least:g}): train on such ones (opdvr data align)"
        return Verdict(OTHER_PROMPTS, [*agreed.reasons, remedy])
    remedy = f"{count}: fine-tune the student on the teacher's own responses first"
    return Verdict(COLD_START, [*agreed.reasons, remedy])


def _end_tokens(numbers: Mapping[str, Any], thresholds: Mapping[str, float]) -> Verdict | None:
    ends, least = numbers["ends"], thresholds["min_end_probability"]
    if not ends["finished"]:
        return None
    at_students, other = ends["teacher_at_student_ends"], ends["teacher_other_ends"]
    if at_students >= least or other < least:
        return None
    return Verdict(
        INCOMPATIBLE,
        [
            f"where the student ends, the teacher gives the student's end token {at_students:.3f} "
            f"(below {least:g}) and another of its own {other:.3f}: training would unlearn to stop",
            "give the student the teacher's end token, or take the teacher that it comes from",
        ],
    )


def _too_hard(numbers: Mapping[str, Any], thresholds: Mapping[str, float]) -> Verdict | None:
    least = thresholds["min_teacher_accuracy"]
    student, teacher = (numbers["accuracy"][role]["mean"] for role in ("student", "teacher"))
    if max(student, teacher) >= least:
        return None
    return Verdict(
        OTHER_PROMPTS,
        [
            f"neither solves these prompts: teacher {teacher:.3f}, student {student:.3f} (both "
            f"below {least:g}); take easier ones, or those the teacher was trained on; and see "
            "that the verifier reads the form in which the teacher answers"
        ],
    )


def _nothing_new(numbers: Mapping[str, Any], thresholds: Mapping[str, float]) -> Verdict | None:
    apart, least = numbers["log_ratio_abs_mean"], thresholds["min_divergence"]
    if apart < least:
        text = f"mean |log-ratio| {apart:.4f} nats (below {least:g}): the two are one model here"
        return Verdict(NOTHING_NEW, [text])
    gain, least = numbers["accuracy"]["gain"]["mean"], thresholds["min_gain"]
    if gain >= least:
        return None
    return Verdict(NOTHING_NEW, [f"{_gain_text(numbers)}, below {least:g}"])


def _agreed(
    numbers: Mapping[str, Any], thresholds: Mapping[str, float], use_overlap: bool
) -> Verdict:
    """GO where the likely tokens agree, else COLD_START, with the numbers."""
    good, bad = [], []
    names = {"agreement": "agreement", "overlap_ratio": "overlap ratio"}
    for name in names if use_overlap else ["agreement"]:
        least = thresholds[_LIMIT[name]]
        side, word = (good, "at least") if numbers[name] >= least else (bad, "below")
        side.append(f"{names[name]} {numbers[name]:.3f}, {word} {least:g}")
    return Verdict(COLD_START, bad) if bad else Verdict(GO, good)


_LIMIT = {"agreement": "min_agreement", "overlap_ratio": "min_overlap"}


def _fits(measure: PromptMeasure, thresholds: Mapping[str, float], use_overlap: bool) -> bool:
    numbers = token_numbers([measure])
    agrees = _agreed(numbers, thresholds, use_overlap).verdict == GO
    return agrees and pass_rate(measure.teacher_correct) > 0


def _gain_text(numbers: Mapping[str, Any]) -> str:
    gain = numbers["accuracy"]["gain"]
    return (
        f"the teacher's accuracy is {gain['mean']:+.3f} above the student's (95 %: "
        f"{gain['low']:+.3f} to {gain['high']:+.3f})"
    )


def _gain_words(numbers: Mapping[str, Any], thresholds: Mapping[str, float]) -> list[str]:
    words = [f"{_gain_text(numbers)}, at least {thresholds['min_gain']:g}"]
    if numbers["accuracy"]["gain"]["low"] <= 0:
        words.append("that gain is not told from none by so few prompts: raise --prompts or --n")
    failed = numbers["accuracy"]["teacher_where_student_fails"]
    if failed is not None:
        words.append(f"where a response of the student's is wrong the teacher has {_mean(failed)}")
    return words


def _mean(entry: Mapping[str, float]) -> str:
    return f"{entry['mean']:.3f} ({entry['low']:.3f} to {entry['high']:.3f})"
