"""One update of the student: the core's rewards and advantages in the trainer's loss.

One mini-batch and one epoch a step, so PPO's ratio is exactly 1 and no clip is ever active.
B responses, T response tokens, C candidates, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from transformers import Qwen3ForCausalLM

from benchmarks.study_rollout import Rollout
from opdvr.core import (
    ESTIMATORS,
    STRATEGIES,
    Clip,
    MethodSpec,
    TokenRewards,
    advantages,
    candidate_ids,
    correct_responses,
    group_advantages,
    group_correct_frac,
    grpd_scale,
    needs_outcome,
    token_rewards,
    top_k_loss,
    top_k_rewards,
    valid_with_tail,
    with_tail,
)

_CLIP = Clip(low=0.2, high=0.2, dual=3.0)
_MAX_GRADIENT_NORM = 1.0
# As verl's: algorithm.norm_adv_by_std_in_grpo is on by default.
_OUTCOME_BY_STD = True


class Update(NamedTuple):
    """What a step was made of, for the trace.

    rewards: the method's own, [B,T] or [B,T,C]; None without a teacher. correct: [B] bool.
    correct_frac: [B], of the group. student_all, teacher_all: log-probs over the vocabulary,
    [B,T,V], nats, without gradient; the teacher's None without a teacher.
    """

    rewards: TokenRewards | None
    correct: torch.Tensor
    correct_frac: torch.Tensor
    student_all: torch.Tensor
    teacher_all: torch.Tensor | None


def new_optimizer(student: Qwen3ForCausalLM, lr: float) -> torch.optim.Optimizer:
    """The trainer's AdamW at a constant learning rate."""
    return torch.optim.AdamW(
        student.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.01, fused=True
    )


def dense_logprobs(model: Qwen3ForCausalLM, rollout: Rollout) -> torch.Tensor:
    """Log-probs [B,T,V], nats, at the positions that predict the response tokens.

    Padding stands on the right, where causal attention does not look.
    """
    response_tokens = rollout.responses.shape[1]
    # the last token predicts nothing that is scored
    hidden = model.model(input_ids=rollout.ids[:, :-1], use_cache=False).last_hidden_state
    return model.lm_head(hidden[:, -response_tokens:]).log_softmax(-1)


@torch.inference_mode()
def teacher_logprobs(teacher: Qwen3ForCausalLM, rollout: Rollout) -> torch.Tensor:
    """dense_logprobs without gradient."""
    return dense_logprobs(teacher, rollout)


def learn(
    spec: MethodSpec,
    student: Qwen3ForCausalLM,
    teacher: Qwen3ForCausalLM,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
) -> Update:
    """Change the student by one step and say what the step was made of."""
    student_all = dense_logprobs(student, rollout)
    teacher_all = teacher_logprobs(teacher, rollout).clone() if spec.distill else None
    loss, update = loss_of(spec, student_all, teacher_all, rollout)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), _MAX_GRADIENT_NORM)
    optimizer.step()
    return update


def loss_of(
    spec: MethodSpec,
    student_all: torch.Tensor,
    teacher_all: torch.Tensor | None,
    rollout: Rollout,
) -> tuple[torch.Tensor, Update]:
    """Scalar loss, the mean over valid tokens, and what it was made of.

    Args:
        spec: the method.
        student_all: [B,T,V], nats, with gradient.
        teacher_all: [B,T,V], nats; None without a teacher.
        rollout: the batch.
    """
    correct = correct_responses(rollout.scores, spec.correctness_threshold)
    frac = group_correct_frac(correct, rollout.groups)
    scale = None
    if spec.grpo_scaled:
        relative = group_advantages(rollout.scores, rollout.groups, spec.grpo_norm_by_std)
        scale = grpd_scale(relative, spec.grpo_scale_baseline)
    signal = (correct, scale, frac)
    if spec.log_prob_top_k > 0:
        token_loss, rewards = _candidate_loss(spec, student_all, teacher_all, rollout.mask, signal)
    else:
        token_loss, rewards = _sampled_loss(spec, student_all, teacher_all, rollout, signal)
    loss = torch.where(rollout.mask, token_loss, 0).sum() / rollout.mask.sum()
    return loss, Update(rewards, correct, frac, student_all.detach(), teacher_all)


_Signal = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]


def of_sampled(logprobs: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """[B,T]: from log-probs [B,T,V], those of the response tokens."""
    return logprobs.gather(-1, rollout.responses[..., None]).squeeze(-1)


def _sampled_loss(
    spec: MethodSpec,
    student_all: torch.Tensor,
    teacher_all: torch.Tensor | None,
    rollout: Rollout,
    signal: _Signal,
) -> tuple[torch.Tensor, TokenRewards | None]:
    student = of_sampled(student_all, rollout)
    rewards = outcome = None
    if ESTIMATORS[spec.estimator].needs_teacher:
        teacher = of_sampled(teacher_all, rollout)
        rewards = token_rewards(spec, teacher, student, rollout.mask, *signal)
    if needs_outcome(spec):
        outcome = group_advantages(rollout.scores, rollout.groups, _OUTCOME_BY_STD)
    advantage = advantages(
        spec,
        None if rewards is None else rewards.reward,
        rollout.mask,
        group_ids=rollout.groups,
        outcome=outcome,
    )
    return -advantage * (student - student.detach()).exp(), rewards


def _candidate_loss(
    spec: MethodSpec,
    student_all: torch.Tensor,
    teacher_all: torch.Tensor,
    mask: torch.Tensor,
    signal: _Signal,
) -> tuple[torch.Tensor, TokenRewards]:
    strategy = STRATEGIES[spec.top_k_strategy]
    top = [
        logprobs.detach().topk(spec.log_prob_top_k, dim=-1).indices if needed else None
        for logprobs, needed in (
            (student_all, strategy.needs_student),
            (teacher_all, strategy.needs_teacher),
        )
    ]
    ids = candidate_ids(spec.top_k_strategy, *top)
    valid = (ids >= 0) & mask[..., None]
    student, teacher = (
        logprobs.gather(-1, ids.clamp(min=0)) for logprobs in (student_all, teacher_all)
    )
    if spec.tail_bucket:
        student, teacher = with_tail(student, valid), with_tail(teacher, valid)
        valid = valid_with_tail(valid, student)
    rewards = top_k_rewards(spec, valid, teacher, student, *signal)
    return top_k_loss(student, student.detach(), rewards.reward, valid, _CLIP).loss, rewards
