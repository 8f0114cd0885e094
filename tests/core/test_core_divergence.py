"""Full-vocabulary divergences against dense float64 autograd, with and without a gate."""

import math

import pytest
import torch
from head_setup import N, V, assert_gradients, problem

from opdvr.core.divergence import DIVERGENCES, divergence_loss, register_divergence
from opdvr.core.output_layer import GivenLogits, OutputLayer

TILES = [(1, 1), (3, 4), (7, 31), (1000, 5), (None, None)]
NAMES = ["reverse_kl", "forward_kl", "jensen_shannon"]
WEIGHTS = torch.randn(N, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def dense_value(name, student_logits, teacher_logits):
    """The divergence [N] by its definition, in probabilities."""
    log_s, log_t = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
    s, t = log_s.exp(), log_t.exp()
    if name == "reverse_kl":
        return (s * (log_s - log_t)).sum(-1)
    if name == "forward_kl":
        return (t * (log_t - log_s)).sum(-1)
    mean = (s + t) / 2
    return ((s * (log_s - mean.log())).sum(-1) + (t * (log_t - mean.log())).sum(-1)) / 2


def dense_signal(name, student_logits, teacher_logits):
    """A [N,V]."""
    log_s, log_t = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
    if name == "reverse_kl":
        return log_t - log_s
    if name == "forward_kl":
        return log_t.exp() / log_s.exp() - 1
    return ((log_s.exp() + log_t.exp()) / 2 / log_s.exp()).log() / 2


def layers(dtype=torch.float64):
    """(student, its layer, teacher, its layer): 29 ids in common, each with a shape of its own."""
    student, teacher = problem(True, dtype, 0), problem(False, dtype, 1)
    return (
        student,
        {"logit_scale": 0.7, "soft_cap": 2.5},
        teacher,
        {"vocabulary": 29, "logit_scale": 1.3},
    )


def loss_of(name, tiles=(None, None), passes=None, dtype=torch.float64):
    student, student_shape, teacher, teacher_shape = layers(dtype)
    scores = divergence_loss(
        name,
        student.layer(**student_shape),
        student.hidden,
        teacher.layer(**teacher_shape),
        teacher.hidden,
        passes=passes,
        temperature=0.8,
        teacher_temperature=1.4,
        tile_tokens=tiles[0],
        tile_vocabulary=tiles[1],
    )
    return student, teacher, scores


def dense_logits():
    student, student_shape, teacher, teacher_shape = layers()
    student_logits = student.dense(29, temperature=0.8, **student_shape)
    teacher_logits = teacher.dense(temperature=1.4, **teacher_shape).detach()
    return student, student_logits, teacher_logits


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("name", NAMES)
def test_without_a_gate_it_is_the_divergence(name, tiles):
    ours, teacher, scores = loss_of(name, tiles)
    dense, student_logits, teacher_logits = dense_logits()
    expected = dense_value(name, student_logits, teacher_logits)
    torch.testing.assert_close(scores.value, expected.detach())
    torch.testing.assert_close(scores.passed, scores.signal)
    if name == "reverse_kl":
        torch.testing.assert_close(scores.loss, scores.value)
    if name == "forward_kl":  # -sum (p_T - p_S)
        torch.testing.assert_close(scores.loss, torch.zeros_like(scores.loss))
    (scores.loss * WEIGHTS).sum().backward()
    (expected * WEIGHTS).sum().backward()
    assert_gradients(ours.leaves(), dense.leaves(), rtol=1e-8, atol=1e-10)
    assert all(t.grad is None for t in teacher.leaves())


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("name", NAMES)
def test_a_gate_acts_on_every_id(name, tiles):
    correct = torch.arange(N) % 3 > 0
    strength = torch.linspace(0, 2, N, dtype=torch.float64)

    def gate(signal, rows):
        passed = torch.where(correct[rows, None], signal.clamp(min=0), signal.clamp(max=0))
        return passed * strength[rows, None]

    ours, _, scores = loss_of(name, tiles, gate)
    dense, student_logits, teacher_logits = dense_logits()
    signal = dense_signal(name, student_logits, teacher_logits).detach()
    log_p = student_logits.log_softmax(-1)
    weight = log_p.exp().detach() * gate(signal, slice(0, N))
    torch.testing.assert_close(scores.loss, -weight.sum(-1))
    torch.testing.assert_close(scores.passed, weight.abs().sum(-1))
    torch.testing.assert_close(scores.signal, (log_p.exp() * signal).abs().sum(-1).detach())
    expected = dense_value(name, student_logits, teacher_logits)
    torch.testing.assert_close(scores.value, expected.detach())
    (scores.loss * WEIGHTS).sum().backward()
    (-(weight * log_p).sum(-1) * WEIGHTS).sum().backward()
    assert_gradients(ours.leaves(), dense.leaves(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_float32_and_bfloat16(name):
    _, student_logits, teacher_logits = dense_logits()
    expected = dense_value(name, student_logits, teacher_logits)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        ours, _, scores = loss_of(name, (5, 7), dtype=dtype)
        assert scores.loss.dtype == scores.value.dtype == torch.float32
        error = (scores.value - expected).norm() / expected.norm()
        assert error < tolerance
        scores.loss.sum().backward()
        assert all(t.grad.dtype == dtype and t.grad.isfinite().all() for t in ours.leaves())


def test_two_ids_by_hand():
    # p_S = (1/2, 1/2), p_T = (1/4, 3/4); nats
    student = torch.zeros(1, 2, requires_grad=True)
    teacher = torch.tensor([[1.0, 3.0]]).log()
    expected = {
        # (ln 2 + ln(2/3)) / 2; A = ln(1/2), ln(3/2); gradient -p (A - mean A) = +-(ln 3) / 4
        "reverse_kl": (0.143841, 0.274653),
        # ln(1/2) / 4 + 3 ln(3/2) / 4; A = -1/2, 1/2; gradient +-1/4
        "forward_kl": (0.130812, 0.25),
        # m = (3/8, 5/8); [ln(4/3) / 2 + ln(4/5) / 2 + ln(2/3) / 4 + 3 ln(6/5) / 4] / 2;
        # A = ln(3/4) / 2, ln(5/4) / 2; gradient +-(ln(5/3) / 2) / 4
        "jensen_shannon": (0.033822, 0.063853),
    }
    for name, (value, gradient) in expected.items():
        student.grad = None
        scores = divergence_loss(name, GivenLogits(student), None, GivenLogits(teacher), None)
        assert scores.value.item() == pytest.approx(value, abs=1e-6), name
        scores.loss.sum().backward()
        assert student.grad.tolist() == [pytest.approx([gradient, -gradient], abs=1e-6)], name


@pytest.mark.parametrize("name", NAMES)
def test_an_equal_teacher_gives_nothing(name):
    student = problem(dtype=torch.float64)
    teacher = student.copy()
    scores = divergence_loss(
        name, student.layer(), student.hidden, teacher.layer(), teacher.hidden, tile_vocabulary=7
    )
    scores.loss.sum().backward()
    for tensor in (*scores, *(t.grad for t in student.leaves())):
        torch.testing.assert_close(tensor.detach(), torch.zeros_like(tensor), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [200.0, 1e8])
def test_probabilities_that_underflow(name, size):
    # Student and teacher are each sure of another id; a third has no probability in either.
    student = torch.tensor([[size, 0.0, -size]], requires_grad=True)
    teacher = torch.tensor([[0.0, size, -size]])
    scores = divergence_loss(
        name, GivenLogits(student), None, GivenLogits(teacher), None, tile_vocabulary=2
    )
    # one nat a unit of the logits' difference; Jensen-Shannon is at most ln 2
    expected = math.log(2) if name == "jensen_shannon" else size
    assert scores.value.item() == pytest.approx(expected, rel=1e-5)
    scores.loss.sum().backward()
    # reverse KL and Jensen-Shannon are flat here; forward KL pulls with p_S - p_T
    expected = [1.0, -1.0, 0.0] if name == "forward_kl" else [0.0, 0.0, 0.0]
    assert student.grad.tolist() == [pytest.approx(expected, abs=1e-6)]


@pytest.mark.parametrize("name", NAMES)
def test_ids_that_both_exclude_are_as_if_absent(name):
    logits = problem().dense().detach(), 2 * problem(seed=1).dense().detach()
    padded = [torch.cat((table, torch.full((N, 2), -torch.inf)), 1) for table in logits]
    student, padded_student = logits[0].requires_grad_(), padded[0].requires_grad_()
    short = divergence_loss(name, GivenLogits(student), None, GivenLogits(logits[1]), None)
    long = divergence_loss(name, GivenLogits(padded_student), None, GivenLogits(padded[1]), None)
    for one, other in zip(short, long, strict=True):
        torch.testing.assert_close(one, other)
    (short.loss.sum() + long.loss.sum()).backward()
    torch.testing.assert_close(padded_student.grad[:, :V], student.grad)
    assert not padded_student.grad[:, V:].any()


def test_tiles_without_gradient_are_left_out():
    student, teacher = problem(), problem(seed=1)
    with torch.no_grad():
        student.hidden[:8] = torch.nan  # two tiles of four; the third is half masked
    scores = divergence_loss(
        "reverse_kl",
        student.layer(),
        student.hidden,
        teacher.layer(),
        teacher.hidden,
        tile_tokens=4,
    )
    torch.where(torch.arange(N) < 10, 0.0, scores.loss).sum().backward()
    assert all(t.grad.isfinite().all() for t in student.leaves())
    assert not student.hidden.grad[:10].any() and student.hidden.grad[10:].any(-1).all()


def test_no_tokens():
    student, teacher = problem(), problem()
    scores = divergence_loss(
        "forward_kl", student.layer(), student.hidden[:0], teacher.layer(), teacher.hidden[:0]
    )
    assert all(part.shape == (0,) for part in scores)
    scores.loss.sum().backward()
    assert not student.weight.grad.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"divergence": "kl"}, "divergence='kl' is unknown: choose one of reverse_kl"),
        ({"temperature": 0.0}, "TEMPERATURE=0.0"),
        ({"teacher_temperature": -1.0}, "TEACHER_TEMPERATURE=-1.0"),
        ({"tile_tokens": 0}, "tile_tokens=0"),
    ],
)
def test_bad_options_are_named(options, message):
    layer, hidden = OutputLayer(torch.zeros(5, 2)), torch.zeros(3, 2)
    with pytest.raises(ValueError, match=message):
        divergence_loss(
            options.pop("divergence", "reverse_kl"), layer, hidden, layer, hidden, **options
        )


def test_a_new_divergence_is_one_function():
    @register_divergence("half_reverse")
    def half(teacher_log_p, student_log_p):
        signal = student_log_p.exp() * (teacher_log_p - student_log_p) / 2
        return signal, -signal.sum(-1)

    try:
        mine, _, scores = loss_of("half_reverse", (3, 4))
        whole, _, expected = loss_of("reverse_kl", (3, 4))
        (2 * scores.loss).sum().backward()
        expected.loss.sum().backward()
        assert_gradients(mine.leaves(), whole.leaves(), rtol=1e-12, atol=1e-14)
        with pytest.raises(AssertionError, match="twice"):
            register_divergence("reverse_kl")
    finally:
        del DIVERGENCES["half_reverse"]


def test_a_reverse_kl_to_a_teacher_that_excludes_an_id_is_infinite():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(3, 4, generator=generator), torch.randn(6, 4, generator=generator)
    bias = torch.zeros(6)
    bias[2] = -torch.inf
    student, teacher = OutputLayer(weight), OutputLayer(weight, bias)
    assert divergence_loss("reverse_kl", student, hidden, teacher, hidden).value.isinf().all()
    # the teacher gives nothing to what it excludes, so forward KL does not mind
    assert divergence_loss("forward_kl", student, hidden, teacher, hidden).value.isfinite().all()
    assert divergence_loss("reverse_kl", teacher, hidden, teacher, hidden).value.isfinite().all()
