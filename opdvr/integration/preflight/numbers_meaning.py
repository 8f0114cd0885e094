"""What the values of `rollout_measure` mean for a run, as findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opdvr.diagnose.thresholds import THRESHOLDS
from opdvr.integration.preflight.finding import Finding, error, note, warning
from opdvr.integration.preflight.sides import STUDENT, TEACHER, Side

if TYPE_CHECKING:
    from opdvr.integration.preflight.rollout_measure import Job, Measured

# Between two layouts of one sequence in float32, nats: rounding only.
SAME_NATS = 1e-3
MAX_NEW_TOKENS = 128  # of a sampled response, where the run allows as many
# Of fewer tokens a mean says nothing of the pair.
LEAST_TOKENS = 32
UNLOOKED = "nothing was measured on it"
DIAGNOSE = "measure the pair with `python -m opdvr diagnose`"


def judge(measured: Measured, job: Job, sides: dict[str, Side]) -> list[Finding]:
    """What the measured values mean for the run."""
    findings = []
    for role, side in sides.items():
        findings += _of_model(measured, role, side)
    if measured.lengths:
        findings += _of_lengths(measured, job, sides[STUDENT])
    agree = all(found["nats"] < SAME_NATS for found in measured.differences.values())
    if measured.numbers and agree:
        where = str(sides[TEACHER].option)
        findings += _of_ends(measured, where)
        findings += _of_pair(measured, where)
        findings.append(_summary(measured, where))
    return findings


def _of_model(measured: Measured, role: str, side: Side) -> Iterator[Finding]:
    where = str(side.option)
    if role in measured.failed:
        what = f"the {role} does not load as a causal language model: {measured.failed[role]}"
        yield error(where, what, remedy="give a folder that transformers loads")
    if role in measured.missing:
        names = measured.missing[role]
        what = f"the {role}'s folder lacks {len(names)} of its weights, such as {names[0]}"
        why = "transformers fills them with random numbers"
        yield error(where, what, why, "give the folder with all weight files")
    if role in measured.skipped:
        yield note(where, f"the {role}: {measured.skipped[role]}", UNLOOKED, DIAGNOSE)
    if role in measured.broken:
        what = f"the {role} gives log-probs that are no finite numbers (NaN or infinite)"
        why = "the first update would make the student NaN"
        yield error(where, what, why, "look for damaged weights; take another checkpoint")
    difference = measured.differences.get(role)
    if difference and difference["nats"] >= SAME_NATS:
        yield error(
            where,
            f"the {role} scores one response otherwise packed than alone: "
            f"{difference['nats']:.3g} nats apart at token {difference['place']} of response "
            f"{difference['response']} (float32; below {SAME_NATS:g} is rounding)",
            "log-ratios would hold that error even where the models are equal",
            "this model does not keep packed sequences apart: take one that does",
        )


def _of_lengths(measured: Measured, job: Job, student: Side) -> Iterator[Finding]:
    if any(measured.finished) or not job.student.ends:
        return
    longest = max(measured.lengths)
    limit = f"{job.max_new_tokens} tokens or {job.seconds:g} s"
    found = f"none of {len(measured.lengths)} responses ended within {longest} tokens"
    if longest >= job.max_new_tokens < MAX_NEW_TOKENS:
        yield warning(
            str(student.option),
            f"{found}, which is MAX_RESP_LENGTH (data.max_response_length)",
            "responses that are cut off have no answer to judge",
            "raise MAX_RESP_LENGTH",
        )
        return
    yield note(
        str(student.option),
        f"{found} (limit: {limit})",
        "its end tokens were not looked at",
        DIAGNOSE,
    )


def _of_ends(measured: Measured, where: str) -> Iterator[Finding]:
    """The rule of `opdvr diagnose`."""
    numbers, least = measured.numbers, THRESHOLDS["min_end_probability"].default
    at_students, other = numbers["teacher_at_student_ends"], numbers["teacher_other_ends"]
    if at_students is None or at_students >= least or other < least:
        return
    yield error(
        where,
        f"where the student ends, the teacher gives the student's end token {at_students:.3f} and "
        f"another end token of its own {other:.3f} (probabilities, limit {least:g})",
        "training would unlearn to stop",
        "give the student the teacher's end token (eos_token_id in its generation_config.json)",
    )


def _of_pair(measured: Measured, where: str) -> Iterator[Finding]:
    numbers = measured.numbers
    if numbers["tokens"] < LEAST_TOKENS:
        return
    apart, least = numbers["log_ratio_abs_mean"], THRESHOLDS["min_divergence"].default
    if apart < least:
        yield warning(
            where,
            f"mean |log-ratio| is {apart:.4f} nats (below {least:g}) on "
            f"{numbers['tokens']} tokens: student and teacher are one model here",
            "there is nothing to learn from it",
            f"take another teacher, or {DIAGNOSE} on more prompts",
        )
    agreement, least = numbers["agreement"], THRESHOLDS["min_agreement"].default
    spread = numbers["agreement_error"]
    if agreement + spread < least:
        yield warning(
            where,
            f"agreement is {agreement:.3f} ± {spread:.3f} (below {least:g}) on "
            f"{numbers['tokens']} tokens: the "
            "teacher finds other tokens likely where the student goes",
            "such pairs may get worse by distillation",
            f"{DIAGNOSE} first; a cold start may be needed (docs/recovery.md)",
        )


def _summary(measured: Measured, where: str) -> Finding:
    numbers = measured.numbers
    ended = sum(measured.finished)
    parts = [
        f"{len(measured.lengths)} responses of {sum(measured.lengths)} tokens, {ended} ended",
        f"log-ratio {numbers['log_ratio_mean']:+.3f} nats a token",
        f"|log-ratio| {numbers['log_ratio_abs_mean']:.3f} nats",
        f"in the first 5 tokens {numbers['log_ratio_abs_mean_first']:.3f} nats",
        f"agreement {numbers['agreement']:.3f} ± {numbers['agreement_error']:.3f} of 1",
        f"overlap {numbers['overlap_ratio']:.2f} of the top tokens",
        f"entropy {numbers['student_entropy']:.3f} student, {numbers['teacher_entropy']:.3f} "
        "teacher, nats",
    ]
    if ended:
        parts.append(f"teacher's probability of the end {numbers['teacher_at_student_ends']:.3f}")
    worst = max(difference["nats"] for difference in measured.differences.values())
    parts += [f"packed against alone {worst:.1g} nats", f"{measured.seconds:.1f} s"]
    return note(where, "measured: " + ", ".join(parts))
