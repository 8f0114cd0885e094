"""What is measured on one prompt, as sums: they add up over prompts and fit a line of JSON.

B responses, T response tokens, K of the top-k, E end ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from opdvr.core import MethodSpec, overlap_sums, token_rewards, token_sums, top_k_overlap
from opdvr.diagnose.forward import Scored

FIRST_TOKENS = 16
ALL, FIRST = "all", f"first {FIRST_TOKENS}"
THIRDS = ("first third", "middle third", "last third")
PARTS = (ALL, FIRST, *THIRDS)


@dataclass(frozen=True)
class PromptMeasure:
    """One prompt's responses and scores; both models' responses are counted, the student's scored.

    Attributes:
        key: the problem's. row: its place in its file.
        student_correct, teacher_correct: a verdict for each response.
        student_tokens, teacher_tokens: their lengths, end tokens included.
        student_finished, teacher_finished: whether each has an end token.
        sums: for each of PARTS, sums over the student's tokens there (`token_sums`,
            `overlap_sums`, and of `agreement`).
        ends: sums over the student's finished responses; see `end_sums`.
    """

    key: str
    row: int
    student_correct: list[bool]
    teacher_correct: list[bool]
    student_tokens: list[int]
    teacher_tokens: list[int]
    student_finished: list[bool]
    teacher_finished: list[bool]
    sums: dict[str, dict[str, float]]
    ends: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `from_json` takes them."""
        return asdict(self)

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> PromptMeasure:
        """The measure of such a line.

        Raises:
            TypeError: other keys.
        """
        return cls(**line)


def part_masks(mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """For each of PARTS the valid tokens [B,T] that lie there; mask [B,T] bool, valid from 0 on.

    The thirds are each response's own: of 7 tokens 2, 2 and 3.
    """
    place = torch.arange(mask.shape[1]).expand_as(mask)
    length = mask.sum(-1, keepdim=True)
    bounds = [0 * length, length // 3, 2 * length // 3, length]
    thirds = {
        name: mask & (place >= bounds[i]) & (place < bounds[i + 1]) for i, name in enumerate(THIRDS)
    }
    return {ALL: mask, FIRST: mask & (place < FIRST_TOKENS), **thirds}


def agreement(
    student_ids: torch.Tensor,
    student_logprobs: torch.Tensor,
    teacher_ids: torch.Tensor,
    teacher_logprobs: torch.Tensor,
) -> torch.Tensor:
    """[B,T] sum over the tokens in both top K of min(p_student, p_teacher), 0 to 1.

    Student (7: 0.5, 3: 0.25), teacher (3: 0.5, 5: 0.3): min(0.25, 0.5) = 0.25. With all tokens in
    the top K it is 1 minus the total variation distance; with K it is at most that.

    Args:
        student_ids, teacher_ids: [B,T,K] int64, -1 where there are fewer.
        student_logprobs, teacher_logprobs: [B,T,K], nats.
    """
    total = torch.zeros(student_ids.shape[:-1])
    # One of the student's at a time: all pairs at once would take K K values a token.
    for slot in range(student_ids.shape[-1]):
        ids, logprobs = student_ids[..., slot, None], student_logprobs[..., slot, None]
        smaller = torch.minimum(logprobs, teacher_logprobs).exp()
        total += torch.where((ids == teacher_ids) & (ids >= 0), smaller, 0.0).sum(-1)
    return total


def score_sums(
    student: Sequence[Scored], teacher: Sequence[Scored], correct: Sequence[bool], spec: MethodSpec
) -> dict[str, dict[str, float]]:
    """For each of PARTS the sums over one prompt's B responses, scored by both models."""
    lengths = [len(scored.logprobs) for scored in student]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ours, theirs = _padded(student), _padded(teacher)
    is_correct = torch.tensor(list(correct))
    rewards = token_rewards(spec, theirs.logprobs, ours.logprobs, mask, is_correct)
    tops = (ours.top_ids, ours.top_logprobs, theirs.top_ids, theirs.top_logprobs)
    overlap, shared = top_k_overlap(*tops), agreement(*tops)
    sums = {}
    for name, part in part_masks(mask).items():
        # The log-ratio at masked places is 0 in token_rewards alone; here they are other tokens.
        masked = type(rewards)(*(torch.where(part, stage, 0.0) for stage in rewards))
        sums[name] = token_sums(
            masked,
            part,
            is_correct,
            ours.logprobs,
            entropy=ours.entropy,
            teacher_entropy=theirs.entropy,
        )
        sums[name] |= overlap_sums(overlap, part)
        sums[name]["agreement"] = torch.where(part, shared, 0.0).double().sum().item()
    return sums


def end_sums(
    student: Sequence[Scored],
    teacher: Sequence[Scored],
    finished: Sequence[bool],
    ends: Sequence[int],
    students_ends: Sequence[int],
    teachers_ends: Sequence[int],
) -> dict[str, float]:
    """Sums over finished responses, at the place of their end token, of these probabilities:

    student_ends: the student's of an end of its own. teacher_at_student_ends: the teacher's of the
    same ids. teacher_ends: the teacher's of its own. teacher_other_ends: of those of its own that
    are no end of the student's. Beside them `finished`, how many there are.

    Args:
        ends: [E], the ids that `Scored.end_logprobs` is of.
    """
    groups = {
        "student_ends": (student, set(students_ends)),
        "teacher_at_student_ends": (teacher, set(students_ends)),
        "teacher_ends": (teacher, set(teachers_ends)),
        "teacher_other_ends": (teacher, set(teachers_ends) - set(students_ends)),
    }
    sums = {"finished": float(sum(finished))}
    for name, (scores, ids) in groups.items():
        chosen = torch.tensor([end in ids for end in ends], dtype=torch.bool)
        sums[name] = sum(
            scored.end_logprobs[chosen].double().exp().sum().item()
            for scored, has_end in zip(scores, finished, strict=True)
            if has_end
        )
    return sums


def _padded(scores: Sequence[Scored]) -> Scored:
    """Responses as one [B,T,...]; padding holds 0, and -1 as ids."""

    def pad(name: str, value: float) -> torch.Tensor:
        rows = [getattr(scored, name) for scored in scores]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

    return Scored(
        logprobs=pad("logprobs", 0.0),
        entropy=pad("entropy", 0.0),
        top_ids=pad("top_ids", -1),
        top_logprobs=pad("top_logprobs", 0.0),
        end_logprobs=torch.stack([scored.end_logprobs for scored in scores]),
    )
