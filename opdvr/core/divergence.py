"""Divergences over the whole vocabulary of two output layers, with a gate on every id.

N tokens, H hidden size, V vocabulary, n x v a tile; p_S, p_T: softmax of student and teacher. Each
divergence D has a signal A [N,V] with dD/dlogit_j = -p_S(j) (A(j) - sum_v p_S(v) A(v)): A is the
reward of choosing an id, positive where the teacher gives it more. Neither table is ever held.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable

from opdvr.core.output_layer import GivenLogits, OutputLayer, Source, inputs_of
from opdvr.core.running import LOWEST_LOG, RunningSums
from opdvr.core.tiles import TiledGradients, TiledLogits, TileSize, spans, tile_size

# (teacher_log_p [n,v], student_log_p [n,v]) -> (p_S A [n,v], the tile's part of D [n] in nats)
Divergence = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
# (p_S A [n,v], which of the N tokens) -> what passes of it [n,v]
Passes = Callable[[torch.Tensor, slice], torch.Tensor]

DIVERGENCES: dict[str, Divergence] = {}


def register_divergence(name: str) -> Callable[[Divergence], Divergence]:
    """Decorator that makes a divergence available under `name`.

    It takes log-probabilities [n,v] of teacher and student at some of the ids (finite; where an id
    is excluded, so low that exp() is 0) and returns p_S A [n,v] and the sum over these ids of the
    divergence [n], both finite. p_S A and not A, which overflows where p_S underflows.
    """
    assert name not in DIVERGENCES, f"divergence {name} is registered twice"

    def register(divergence: Divergence) -> Divergence:
        DIVERGENCES[name] = divergence
        return divergence

    return register


@register_divergence("reverse_kl")
def _reverse_kl(
    teacher_log_p: torch.Tensor, student_log_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(S||T) = sum p_S (log p_S - log p_T);  A = log p_T - log p_S."""
    signal = (teacher_log_p - student_log_p).mul_(student_log_p.exp())
    return signal, -signal.sum(-1)


@register_divergence("forward_kl")
def _forward_kl(
    teacher_log_p: torch.Tensor, student_log_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(T||S) = sum p_T (log p_T - log p_S);  A = p_T / p_S - 1."""
    teacher_p = teacher_log_p.exp()
    value = ((teacher_log_p - student_log_p).mul_(teacher_p)).sum(-1)
    return teacher_p.sub_(student_log_p.exp()), value


@register_divergence("jensen_shannon")
def _jensen_shannon(
    teacher_log_p: torch.Tensor, student_log_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """JS = (KL(S||m) + KL(T||m)) / 2 with m = (p_S + p_T) / 2;  A = log(m / p_S) / 2."""
    log_mean = torch.logaddexp(teacher_log_p, student_log_p).sub_(math.log(2))
    signal = (log_mean - student_log_p).mul_(student_log_p.exp()).mul_(0.5)
    from_teacher = (teacher_log_p - log_mean).mul_(teacher_log_p.exp()).mul_(0.5)
    return signal, from_teacher.sum(-1) - signal.sum(-1)


class DivergenceScores(NamedTuple):
    """Scores of N tokens; float32 (float64 from a float64 student), nats.

    Attributes:
        loss: [N], -sum_v p_S(v) passed A(v). Differentiable once in the student's hidden states,
            weight and bias; its gradient is that of -sum_v w(v) log p_S(v) with w = p_S times the
            passed A held fixed: without a gate exactly the gradient of the divergence.
        value: [N], the divergence, whatever passes; no gradient. inf where the teacher excludes an
            id that the student does not and the divergence minds; loss and gradient mean nothing
            there.
        signal: [N], sum_v |p_S(v) A(v)|; no gradient.
        passed: [N], the same of what passes; no gradient.
    """

    loss: torch.Tensor
    value: torch.Tensor
    signal: torch.Tensor
    passed: torch.Tensor


# In nats. Logits of 1e8 may differ by more than this; logarithms of nothing are clamped to -1e30.
_LARGEST_DIVERGENCE = 1e20


@dataclass(frozen=True)
class _Job:
    divergence: Divergence
    student: Source
    teacher: Source
    teacher_hidden: torch.Tensor | None
    passes: Passes | None
    temperature: float
    teacher_temperature: float
    vocabulary: int
    size: TileSize


def divergence_loss(
    divergence: str,
    student: OutputLayer | GivenLogits,
    student_hidden: torch.Tensor | None,
    teacher: OutputLayer | GivenLogits,
    teacher_hidden: torch.Tensor | None,
    *,
    passes: Passes | None = None,
    temperature: float = 1.0,
    teacher_temperature: float = 1.0,
    tile_tokens: int | None = None,
    tile_vocabulary: int | None = None,
) -> DivergenceScores:
    """A divergence of student and teacher at every token, over the ids that both have.

    Forward computes every logit twice (partition functions, then values), backward once more but
    for tiles none of whose tokens has a gradient.

    Args:
        divergence: a name in DIVERGENCES.
        student, teacher: output layers (or logits); ids above the smaller `size` are left out of
            both softmaxes.
        student_hidden: [N,H]; teacher_hidden: [N,H_T]; None for logits.
        passes: a gate: gets p_S A [n,v] and which tokens these are (a slice of the N), returns what
            passes. p_S A has the sign of A; multiply each element by a number that depends on
            its sign and token alone, and a gate of A it is. Called without gradient, again in
            backward, so it must answer the same.
        temperature, teacher_temperature: divide the logits of each.
        tile_tokens, tile_vocabulary: as in `score_tokens`.

    Raises:
        ValueError: an unknown divergence, a temperature that is not positive, a tile of nothing.
    """
    if divergence not in DIVERGENCES:
        raise ValueError(
            f"divergence={divergence!r} is unknown: choose one of {', '.join(DIVERGENCES)}"
        )
    _require_positive("TEMPERATURE", temperature)
    _require_positive("TEACHER_TEMPERATURE", teacher_temperature)
    inputs = inputs_of(student, student_hidden)
    n_tokens = inputs[0].shape[0]
    assert inputs_of(teacher, teacher_hidden)[0].shape[0] == n_tokens, "the same N tokens"
    vocabulary = min(student.size, teacher.size)
    size = tile_size(n_tokens, vocabulary, inputs[0].device, tile_tokens, tile_vocabulary)
    models = student, teacher, teacher_hidden
    temperatures = temperature, teacher_temperature
    job = _Job(DIVERGENCES[divergence], *models, passes, *temperatures, vocabulary, size)
    return DivergenceScores(*_DivergenceLoss.apply(*inputs, job))


def _require_positive(name: str, temperature: float) -> None:
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"{name}={temperature} must be positive to score tokens")


class _BothTiles:
    """Log-probabilities of student and teacher, a tile at a time."""

    def __init__(self, job: _Job, main: torch.Tensor, with_slope: bool = False) -> None:
        hidden = main if isinstance(job.student, OutputLayer) else None
        self._job, self._device = job, main.device
        self.student = TiledLogits(
            job.student, hidden, job.temperature, job.size, with_slope=with_slope
        )
        self._teacher = TiledLogits(
            job.teacher, job.teacher_hidden, job.teacher_temperature, job.size
        )

    def sums(self, n_tokens: int) -> list[torch.Tensor]:
        """Highest and log total, each [N], of student and then teacher, by a sweep over all."""
        both = []
        for tiles in (self.student, self._teacher):
            sums = RunningSums(n_tokens, tiles.dtype, self._device)
            for columns in spans(self._job.vocabulary, self._job.size.columns):
                for tokens in spans(n_tokens, self._job.size.tokens):
                    logits = tiles(tokens, columns)
                    sums.add(tokens, logits, logits.amax(-1))
            both += [sums.highest, sums.total.log()]
        return both

    def signal(
        self, tokens: slice, columns: slice, sums: list[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(p_S A, what passes of it, log p_S) [n,v] and the tile's part of D [n]."""
        highest, log_total, teacher_highest, teacher_log_total = (
            part[tokens, None] for part in sums
        )
        student = self.student(tokens, columns).sub_(highest).sub_(log_total)
        teacher = self._teacher(tokens, columns).sub_(teacher_highest).sub_(teacher_log_total)
        student.clamp_(min=LOWEST_LOG)
        teacher = teacher.clamp_(min=LOWEST_LOG).to(student.dtype)
        signal, value = self._job.divergence(teacher, student)
        passes = self._job.passes
        passed = signal if passes is None else passes(signal, tokens)
        assert passed.shape == signal.shape, "a gate returns what passes, [n,v]"
        return signal, passed, student, value


class _DivergenceLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, main, weight, bias, job):  # noqa: ANN001, ANN205
        n_tokens = main.shape[0]
        with torch.autocast(main.device.type, enabled=False):
            tiles = _BothTiles(job, main)
            sums = tiles.sums(n_tokens)
            loss, value, whole, passed_sum = (torch.zeros_like(sums[0]) for _ in range(4))
            for columns in spans(job.vocabulary, job.size.columns):
                for tokens in spans(n_tokens, job.size.tokens):
                    signal, passed, _, part = tiles.signal(tokens, columns, sums)
                    value[tokens] += part
                    loss[tokens] -= passed.sum(-1)
                    whole[tokens] += signal.abs().sum(-1)
                    passed_sum[tokens] += passed.abs().sum(-1)
        # the teacher excludes (-inf) what the student does not: the clamped logarithm shows
        infinite = value > _LARGEST_DIVERGENCE
        value.masked_fill_(infinite, torch.inf)
        ctx.save_for_backward(main, weight, bias, loss, *sums)
        ctx.job = job
        ctx.mark_non_differentiable(value, whole, passed_sum)
        return loss, value, whole, passed_sum

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, *_):  # noqa: ANN001, ANN205
        main, weight, bias, loss, *sums = ctx.saved_tensors
        job = ctx.job
        like = (main, weight, bias)
        wanted = [t if want else None for t, want in zip(like, ctx.needs_input_grad, strict=False)]
        with torch.autocast(main.device.type, enabled=False):
            tiles = _BothTiles(job, main, with_slope=True)
            gradients = TiledGradients(tiles.student, tuple(wanted), job.vocabulary)
            scale = (grad_loss * -tiles.student.factor)[:, None]
            all_tokens = spans(len(main), job.size.tokens)
            training = [tokens for tokens in all_tokens if (grad_loss[tokens] != 0).any()]
            for columns in spans(job.vocabulary, job.size.columns):
                for tokens in training:
                    _, passed, log_p, _ = tiles.signal(tokens, columns, sums)
                    # w_j - p_j sum w, and sum w = -loss
                    gradient = log_p.exp_().mul_(loss[tokens, None]).add_(passed)
                    gradients.add(tokens, columns, gradient.mul_(scale[tokens]))
                gradients.columns_done(columns)
        return *gradients.results(), None
