"""How far the student's and the teacher's top K agree (Rethinking OPD, arXiv 2604.13016).

B responses, T response tokens, K of the top-k.
"""

from typing import NamedTuple

import torch

from opdvr.core.topk import is_among


class Overlap(NamedTuple):
    """Of every position [B,T], over the tokens in both top K.

    ratio: their number over that of the student's (K, or fewer where there are fewer ids).
    student_mass, teacher_mass: their probability. advantage: mean of
    logp_teacher - logp_student over them, nats, weighted by the student's probability; 0 where they
    are none.
    """

    ratio: torch.Tensor
    student_mass: torch.Tensor
    teacher_mass: torch.Tensor
    advantage: torch.Tensor


def top_k_overlap(
    student_ids: torch.Tensor,
    student_logprobs: torch.Tensor,
    teacher_ids: torch.Tensor,
    teacher_logprobs: torch.Tensor,
) -> Overlap:
    """Overlap of two top K.

    Student (7: 0.5, 3: 0.25), teacher (3: 0.5, 5: 0.3): ratio 1/2, masses 0.25 and 0.5, advantage
    ln 2.

    Args:
        student_ids, teacher_ids: [B,T,K] int64, distinct at a position, -1 where there are fewer.
        student_logprobs, teacher_logprobs: [B,T,K] of these ids, nats.
    """
    shared = is_among(student_ids, teacher_ids)
    order = teacher_ids.argsort(-1)
    place = torch.searchsorted(teacher_ids.gather(-1, order), student_ids.contiguous())
    place = place.clamp(max=teacher_ids.shape[-1] - 1)
    teacher_at_student = teacher_logprobs.gather(-1, order).gather(-1, place)

    def mass(logprobs: torch.Tensor) -> torch.Tensor:
        return torch.where(shared, logprobs, -torch.inf).exp()

    student = mass(student_logprobs)
    difference = torch.where(shared, teacher_at_student - student_logprobs, 0)
    total = student.sum(-1)
    weighted = (student * difference).sum(-1)
    return Overlap(
        ratio=shared.sum(-1) / (student_ids >= 0).sum(-1).clamp(min=1),
        student_mass=total,
        teacher_mass=mass(teacher_at_student).sum(-1),
        advantage=torch.where(total > 0, weighted / total, 0),
    )
