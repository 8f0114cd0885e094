"""The study: its arithmetic by hand, its shortcuts against the product, and that it resumes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

from benchmarks import study, study_rollout  # noqa: E402
from benchmarks.study_decode import Decoder  # noqa: E402
from benchmarks.study_models import Models  # noqa: E402
from benchmarks.study_plan import METHODS, SETTINGS, Choice, learning_rates  # noqa: E402
from benchmarks.study_report import accuracy_table, blocks, fill, seeds_table, write_report  # noqa: E402
from benchmarks.study_rollout import Rollout, sample, text_of, verdict  # noqa: E402
from benchmarks.study_statistics import paired_difference, t_interval  # noqa: E402
from benchmarks.study_store import MODEL, RUN, TUNE, RunKey, Store  # noqa: E402
from benchmarks.study_trace import CELLS, trace_point  # noqa: E402
from benchmarks.study_update import (  # noqa: E402
    dense_logprobs,
    learn,
    loss_of,
    new_optimizer,
    teacher_logprobs,
)
from opdvr.core import MethodSpec  # noqa: E402
from opdvr.demo.task import DATA_SOURCE, Problem, problems  # noqa: E402
from opdvr.demo.tokenizer import TOKENS  # noqa: E402
from opdvr.verifier import compute_score  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.set_num_threads(1)
    return Models(tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="module")
def batch(models):
    return sample(models.get("student"), problems("train")[:4], group_size=4, seed=3, step=0)


# Two responses to one prompt, two tokens each, the second response ended after one.
HAND_BATCH = Rollout(
    ids=torch.zeros(2, 2, dtype=torch.long),
    responses=torch.tensor([[0, 1], [1, 0]]),
    mask=torch.tensor([[True, True], [True, False]]),
    scores=torch.tensor([1.0, 0.0]),
    groups=torch.tensor([0, 0]),
    problems=[Problem(347, 8, 9)] * 2,
)
STUDENT_P = torch.tensor([[[0.2, 0.8], [0.5, 0.5]], [[0.4, 0.6], [0.1, 0.9]]])
TEACHER_P = torch.tensor([[[0.5, 0.5], [0.6, 0.4]], [[0.8, 0.2], [0.1, 0.9]]])


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # log-ratios ln(.5/.2) = .9163, ln(.4/.5) = -.2231; ln(.2/.6) = -1.0986; three valid tokens
        ("opd", -(0.9163 - 0.2231 - 1.0986) / 3),
        ("opdvr", -(0.9163 - 1.0986) / 3),
        ("inverse", 0.2231 / 3),
        # |1 - 1/2| = |0 - 1/2| = 1/2
        ("grpd", -(0.9163 - 1.0986) / 6),
        # mean 1/2, std sqrt(1/2) with n-1: +-.7071, two tokens of the one and one of the other
        ("grpo", -(2 * 0.7071 - 0.7071) / 3),
    ],
)
def test_loss_by_hand(method, expected):
    loss, _ = loss_of(METHODS[method].spec, STUDENT_P.log(), TEACHER_P.log(), HAND_BATCH)
    assert loss.item() == pytest.approx(expected, abs=1e-4)


def test_full_reverse_kl_has_the_gradient_of_the_divergence(models, batch):
    teacher = teacher_logprobs(models.get("teacher-faulty"), batch).double()
    logits = torch.randn(teacher.shape, dtype=torch.float64, requires_grad=True)
    loss, _ = loss_of(
        METHODS["full_reverse_kl"].spec, logits.log_softmax(-1), teacher.clone(), batch
    )
    (ours,) = torch.autograd.grad(loss, logits)
    student = logits.log_softmax(-1)
    divergence = (student.exp() * (student - teacher)).sum(-1)
    mean = (divergence * batch.mask).sum() / batch.mask.sum()
    (dense,) = torch.autograd.grad(mean, logits)
    torch.testing.assert_close(ours, dense, atol=1e-9, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method, models, batch):
    student, teacher = models.get("student"), models.get("teacher-faulty")
    before = student.model.embed_tokens.weight.clone()
    update = learn(
        METHODS[method].spec_at(0, 2), student, teacher, new_optimizer(student, 1e-3), batch
    )
    moved = (student.model.embed_tokens.weight - before).abs()
    # Adam's first step moves a weight by no more than the rate, and decay by a hundredth of that.
    assert 5e-4 < moved.max() < 1.2e-3
    point = trace_point(0, batch, update, teacher_logprobs(teacher, batch))
    assert sum(point["mass"]) == pytest.approx(1, abs=0.01)
    assert json.loads(json.dumps(point)) == point  # plain numbers, none of them NaN
    assert all(not math.isnan(value) for value in point["mass"])


def test_a_model_comes_with_its_first_weights_each_time(models):
    with torch.no_grad():
        models.get("student").model.embed_tokens.weight += 1
    again = models.get("student").model.embed_tokens.weight.clone()
    assert torch.equal(again, Models(Path()).get("student").model.embed_tokens.weight)


def test_the_schedule_closes_the_gate():
    floors = [METHODS["schedule"].spec_at(step, 3).gate_floor for step in range(3)]
    assert floors == [1.0, 0.5, 0.0]
    assert METHODS["opdvr"].spec_at(1, 3) is METHODS["opdvr"].spec


@pytest.mark.parametrize("name", ["student", "teacher-faulty"])
def test_decoding_agrees_with_transformers(name, models, batch):
    model = models.get(name)
    prompt = batch.ids.shape[1] - batch.responses.shape[1]
    with torch.inference_mode():
        decoder = Decoder(model, *batch.ids.shape)
        steps = [decoder.logits(batch.ids[:, :prompt])]
        for place in range(prompt, batch.ids.shape[1] - 1):
            steps.append(decoder.logits(batch.ids[:, place : place + 1]))
        ours = torch.stack(steps, 1).log_softmax(-1)
        torch.testing.assert_close(ours, dense_logprobs(model, batch), atol=1e-4, rtol=1e-4)


def test_draws_follow_the_model_and_repeat(models):
    model, chosen = models.get("student"), problems("train")[:1]
    many = sample(model, chosen, 1000, seed=0, step=0)
    expected = dense_logprobs(model, many)[0, 0].exp().detach()
    drawn = torch.bincount(many.responses[:, 0], minlength=len(TOKENS)) / 1000
    # Four standard errors of a share of 1000 draws are below 0.065.
    assert (drawn - expected).abs().max() < 0.065
    few = [
        sample(model, chosen, 8, seed, step).responses for seed, step in ((0, 1), (0, 1), (1, 1))
    ]
    assert torch.equal(few[0], few[1]) and not torch.equal(few[0], few[2])


def test_the_short_verdict_is_the_verifiers(models):
    chosen = problems("train")[:50]
    texts = []
    for name in ("student", "student-other-style", "teacher-faulty"):
        rollout = sample(models.get(name), chosen, 2, seed=1, step=0)
        answers = [problem.answer for problem in rollout.problems]
        texts += list(zip(map(text_of, rollout.responses.tolist()), answers, strict=True))
    boxed = "\\boxed{"
    texts += [
        (text, "12")
        for text in (
            "12", boxed, f"{boxed}12", f"{boxed}}}", f"{boxed}012}}", f"{boxed}12}}{boxed}13}}",
            f"{boxed}13}}{boxed}12}}", f"{boxed}{boxed}12}}}}", f"{boxed}1 2}}", f"{boxed}12.0}}",
            f"{boxed}3*4}}", f"{boxed}12}}{boxed}", f"1*2{boxed}12}}=3", f"{boxed}-12}}",
            f"}}{boxed}12}}",
        )
    ]  # fmt: skip
    verdicts = [verdict(*pair) for pair in texts]
    assert verdicts == [compute_score(DATA_SOURCE, *pair)["score"] for pair in texts]
    assert 50 < sum(verdicts) < 250


def test_nothing_is_used_twice():
    main = study_rollout.training_problems(0, steps=80, prompts=16, tuning=False)
    tuning = study_rollout.training_problems(100, steps=80, prompts=16, tuning=True)
    used = [problem for chosen in main for problem in chosen]
    assert len(set(used)) == len(used) == 1280
    assert not set(used) & {problem for chosen in tuning for problem in chosen}
    final, looked_at = (study_rollout.test_problems(256, tuning=t) for t in (False, True))
    assert len(set(final) | set(looked_at)) == 512
    assert all(problem.held_out for problem in (*final, *looked_at))
    # The prefix of a longer run: methods see the same prompts in the same order.
    assert study_rollout.training_problems(0, 2, 16, tuning=False) == main[:2]


def test_trace_by_hand():
    _, update = loss_of(MethodSpec(), STUDENT_P.log(), TEACHER_P.log(), HAND_BATCH)
    point = trace_point(7, HAND_BATCH, update, TEACHER_P.log())
    # |log-ratio| .9163 + .2231 in the right response, 1.0986 in the wrong one: 2.2380 in all; the
    # gate drops the .2231.
    assert dict(zip(CELLS, point["mass"], strict=True)) == {
        "+r/some": 0.409, "-r/some": 0.1, "+w/some": 0.0, "-w/some": 0.491,
        "+w/none": 0.0, "-w/none": 0.0, "+r/all": 0.0, "-r/all": 0.0,
    }  # fmt: skip
    assert dict(zip(CELLS, point["dropped"], strict=True))["-r/some"] == 0.1
    assert sum(point["dropped"]) == 0.1
    assert (point["step"], point["len"], point["wrong"], point["right"]) == (7, 1.5, 0.0, 0.0)
    assert point["pass"] == 0.667  # two of three
    assert point["ratio"] == -0.135  # (.9163 - .2231 - 1.0986) / 3
    # Entropies -.2 ln .2 - .8 ln .8 = .5004, ln 2 = .6931, -.4 ln .4 - .6 ln .6 = .6730
    assert point["entropy"] == pytest.approx((0.5004 + 0.6931 + 0.6730) / 3, abs=1e-3)


def test_t_interval_by_hand():
    # mean 2, s = 1, t(.975, 2) = 4.3027: 4.3027 / sqrt(3) = 2.4841
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval.mean == 2 and interval.n == 3
    assert interval.half_width == pytest.approx(2.4841, abs=1e-4)
    assert math.isnan(t_interval([0.5]).half_width)
    with pytest.raises(ValueError, match="run the study"):
        t_interval([])


def test_paired_difference_by_hand():
    # Seeds 1 and 2 have both: .3 and .1; mean .2, s = .1414, t(.975, 1) = 12.7062: 1.2706
    difference = paired_difference({0: 0.9, 1: 0.8, 2: 0.4}, {1: 0.5, 2: 0.3, 3: 0.1})
    assert difference.mean == pytest.approx(0.2) and difference.n == 2
    assert difference.half_width == pytest.approx(1.2706, abs=1e-4)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_a_torn_last_line_is_dropped_and_any_other_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"kind":"model","model":"a"}\n{"kind":"mod')
    store = Store(path)
    assert [row["model"] for row in store.rows] == ["a"]
    store.add({"kind": "model", "model": "b"})
    assert [row["model"] for row in Store(path).rows] == ["a", "b"]
    path.write_text('{"kind":"mod\n{"kind":"model","model":"a"}\n')
    with pytest.raises(ValueError, match="results.jsonl line 1 is not JSON"):
        Store(path)


def rows(method, lr, accuracies):
    keys = [RunKey(RUN, "faulty", method, seed, lr, 20) for seed in range(len(accuracies))]
    return [
        key._asdict() | {"sampled": value, "greedy": value, "trace": []}
        for key, value in zip(keys, accuracies, strict=True)
    ]


def test_the_best_rate_is_picked_and_the_smaller_of_equals(tmp_path):
    store = Store(tmp_path / "results.jsonl")
    choice = Choice(settings=("faulty",), methods=("opd", "opdvr", "grpo"))
    tuned = {"opd": (0.5, 0.7, 0.6), "opdvr": (0.5, 0.5, 0.4), "grpo": (0.5, 0.6)}
    for method, accuracies in tuned.items():
        for lr, sampled in zip((1e-4, 3e-4, 1e-3), accuracies, strict=False):
            key = RunKey(TUNE, "faulty", method, 100, lr, 20)
            store.add(key._asdict() | {"sampled": sampled})
    expected = {("faulty", "opd"): 3e-4, ("faulty", "opdvr"): 1e-4}  # grpo is not finished
    assert learning_rates(choice, store) == expected
    alone = replace(choice, learning_rates=(2e-4,))
    assert not alone.tuning() and set(learning_rates(alone, store).values()) == {2e-4}


def test_accuracy_table_by_hand():
    runs = {
        method: {row["seed"]: row for row in rows(method, 3e-4, accuracies)}
        for method, accuracies in {"opd": (0.1, 0.2, 0.3), "opdvr": (0.4, 0.5, 0.6)}.items()
    }
    lines = accuracy_table(runs).splitlines()
    # s = .1, half-width .2484; the differences are .3 each, without spread
    assert lines[2] == "| `opd` | 3e-4 | 3 | 20.0 ± 24.8 | 20.0 ± 24.8 |  | -30.0 ± 0.0 |"
    assert lines[3] == "| `opdvr` | 3e-4 | 3 | 50.0 ± 24.8 | 50.0 ± 24.8 | +30.0 ± 0.0 |  |"
    del runs["opd"][1]
    assert seeds_table(runs).splitlines()[2:] == [
        "| `opd` | 10.0 |  | 30.0 |",
        "| `opdvr` | 40.0 | 50.0 | 60.0 |",
    ]


def test_runs_are_ordered_and_resume(tmp_path):
    results = tmp_path / "results.jsonl"
    command = ["--quick", "--results", str(results), "--work", str(tmp_path)]
    command += ["--output", str(tmp_path / "docs"), "--settings", "style"]
    command += ["--methods", "opdvr,opd", "--seeds", "0,1", "--lrs", "3e-4,1e-3"]
    study.main(["run", *command])
    whole = results.read_text()
    found = [json.loads(line) for line in whole.splitlines()]
    named = [row["model"] for row in found if row["kind"] == MODEL]
    assert sorted(named) == ["student-other-style", "teacher-good"]
    assert sum(row["kind"] == TUNE for row in found) == 4  # two methods, two rates
    main = [(row["seed"], row["method"]) for row in found if row["kind"] == RUN]
    assert main == [(0, "opd"), (0, "opdvr"), (1, "opd"), (1, "opdvr")]
    study.main(["run", *command])
    assert results.read_text() == whole
    # Cut in the middle of the last line, as a kill does: that run alone is made again.
    results.write_text(whole[:-40])
    study.main(["all", *command])
    again = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in found]
    page = (tmp_path / "docs" / "results.md").read_text()
    assert all(f"| `{method}` | " in page for method in ("opd", "opdvr"))
    drawn = {path.name for path in (tmp_path / "docs" / "figures").iterdir()}
    assert {"accuracy.svg", "style.svg"} <= drawn


def test_mistakes_are_named(tmp_path, capsys):
    for option in (["--methods", "opd,nope"], ["--steps", "0"]):
        with pytest.raises(SystemExit):
            study.parse(["run", *option])
    assert "'nope' is none of opd, opdvr" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no main runs"):
        write_report(Choice(), Store(tmp_path / "none.jsonl"), tmp_path)
    with pytest.raises(ValueError, match="no place for models"):
        fill("# Results", "models", "a table")


def test_the_results_page_has_every_table_of_the_committed_results():
    page = (ROOT / "docs" / "results.md").read_text()
    for name, make in blocks(Choice(), Store(study.RESULTS)).items():
        assert fill(page, name, make()) == page, f"{name}: python -m benchmarks.study report"
    assert page.count("<!-- begin ") == 2 + 2 * len(SETTINGS) + 2
