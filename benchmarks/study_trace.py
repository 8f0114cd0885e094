"""What a step did, in a few numbers, to find out why a run went where it went.

B responses, T response tokens, C candidates.
"""

from __future__ import annotations

import torch

from benchmarks.study_rollout import Rollout, prompt_ids
from benchmarks.study_update import Update, of_sampled
from opdvr.core import TokenRewards, log_ratio

# Where |log-ratio| lies: the teacher finds the token likelier (+) or less likely (-) than the
# student does, in a right (r) or wrong (w) response, of a group that is all wrong (none), mixed
# (some) or all right (all).
CELLS = ("+w/none", "-w/none", "+r/some", "-r/some", "+w/some", "-w/some", "+r/all", "-r/all")
_UNITS, _FACTOR = 3, 5  # columns of the prompt's tokens: marker, three digits, *, factor
_LEFT, _RIGHT = 0, 2  # columns of the response's: the two sides of the first step's product


def trace_point(
    step: int, rollout: Rollout, update: Update, teacher_all: torch.Tensor
) -> dict[str, object]:
    """Plain numbers of one step, taken before its update.

    step: from 0. len: mean response length, tokens. entropy: the student's, nats. wrong, right:
    shares of groups that are all wrong and all right. styles: shares of responses that begin digit
    first and factor first, of those where the two differ. ratio: mean log-ratio of the sampled
    tokens, nats. pass: share of the method's non-zero rewards that its gate did not set to 0. mass:
    share of the sum of |log-ratio| (weighted, for candidates) in each of CELLS. dropped: the size
    of what the gate changed in each, as a share of the same sum; only where it changed something.
    All gates but `soft`, which also adds, change by taking away.

    Args:
        step: the number.
        rollout, update: the batch and what the update was made of.
        teacher_all: [B,T,V], nats.
    """
    mask = rollout.mask
    student = of_sampled(update.student_all, rollout)
    ratio = log_ratio(of_sampled(teacher_all, rollout), student, mask)
    rewards = update.rewards or TokenRewards(ratio, ratio, ratio)
    entropy = -(update.student_all.exp() * update.student_all).sum(-1)
    is_first = torch.cat((torch.ones(1, dtype=torch.bool), rollout.groups.diff() != 0))
    group_frac = update.correct_frac[is_first]
    nonzero = rewards.log_ratio != 0
    point = {
        "step": step,
        "len": _rounded(mask.sum(1).float().mean()),
        "entropy": _rounded(entropy[mask].mean()),
        "wrong": _rounded((group_frac == 0).float().mean()),
        "right": _rounded((group_frac == 1).float().mean()),
        "styles": _styles(rollout),
        "ratio": _rounded(ratio[mask].mean()),
        "pass": _rounded((rewards.gated[nonzero] != 0).float().mean()),
        "mass": _shares(rewards.log_ratio, rewards.log_ratio, update),
    }
    if (rewards.gated != rewards.log_ratio).any():
        point["dropped"] = _shares(rewards.log_ratio - rewards.gated, rewards.log_ratio, update)
    return point


def _shares(part: torch.Tensor, whole: torch.Tensor, update: Update) -> list[float]:
    """|part| by CELLS over the sum of |whole|, signs and cells by whole."""
    total = whole.abs().sum().clamp(min=1e-12)
    per_response = {
        sign: torch.where(kept, part.abs(), 0).flatten(1).sum(1) / total
        for sign, kept in (("+", whole > 0), ("-", whole < 0))
    }
    frac = update.correct_frac
    kind = {"none": frac == 0, "some": (frac > 0) & (frac < 1), "all": frac == 1}
    verdict = {"r": update.correct, "w": ~update.correct}
    return [
        _rounded(per_response[cell[0]][kind[cell[3:]] & verdict[cell[1]]].sum()) for cell in CELLS
    ]


def _styles(rollout: Rollout) -> list[float]:
    if rollout.responses.shape[1] <= _RIGHT:
        return [0.0, 0.0]
    prompts = prompt_ids(rollout.problems)
    digit, factor = prompts[:, _UNITS], prompts[:, _FACTOR]
    left, right = rollout.responses[:, _LEFT], rollout.responses[:, _RIGHT]
    differs = digit != factor
    found = ((left == digit) & (right == factor), (left == factor) & (right == digit))
    return [_rounded(style[differs].float().mean()) for style in found]


def _rounded(value: torch.Tensor) -> float:
    return round(value.item(), 3)
