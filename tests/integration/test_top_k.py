"""Top-k distillation through verl's workers: against a dense model, one path against the other."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl")

from engine_setup import (  # noqa: E402
    VOCABULARY,
    actor_config,
    free_port,
    full_parameters,
    make_batch,
    set_rank_environment,
    training_worker,
    update,
    write_model,
)
from transformers import AutoModelForCausalLM  # noqa: E402
from verl import DataProto  # noqa: E402

from opdvr.core import MethodSpec, add_sums, metrics_from_sums  # noqa: E402
from opdvr.integration import scoring  # noqa: E402
from opdvr.integration.loss import SUMS, ForwardLoss  # noqa: E402
from opdvr.integration.workers import StudentWorker, TeacherWorker  # noqa: E402

PROCESS_GROUP_PORT = free_port()
K = 4
TOKENS = VOCABULARY - 9  # the embedding's last nine rows are padding
STRATEGIES = ["only_stu", "only_tch", "intersection", "union", "union-intersection"]


@pytest.fixture(autouse=True)
def one_rank():
    set_rank_environment(0, 1, PROCESS_GROUP_PORT)


def _batch():
    return make_batch(vocabulary=TOKENS)


def _signals(batch, scaled=True):
    rows = len(batch["responses"])
    generator = torch.Generator().manual_seed(3)
    zeros = torch.zeros(batch["responses"].shape)
    return {
        "rollout_log_probs": zeros - 1,
        "old_log_probs": zeros - 1,
        "advantages": zeros,
        "correct": torch.arange(rows) % 3 == 0,
        "reward_scale": torch.rand(rows, generator=generator) if scaled else torch.ones(rows),
        "outcome": torch.zeros(rows),
        "group_correct_frac": torch.ones(rows),
        "sample_index": torch.arange(rows),
    }


def _scorer(spec, mode, student, teacher):
    """The trainer's scorer over workers of this process."""
    student_group = SimpleNamespace(
        score_candidates=lambda data: StudentWorker.score_candidates(
            SimpleNamespace(actor=student), data
        )
    )
    stand_in = SimpleNamespace(
        infer_batch=teacher.infer_batch, _with_entropy=True, _temperature=1.0
    )
    teacher_group = SimpleNamespace(
        compute_rm_score=lambda data: TeacherWorker.compute_rm_score(stand_in, data)
    )
    plan = scoring.plan(spec, mode, overlap=True)
    return scoring.Scorer(plan, student_group, teacher_group, TOKENS, 1.0)


def _step(spec, mode, folders, micro_batch=8):
    """One step; (worker after it, its metrics, the scorer, what the update was given)."""
    student = training_worker(folders[0], micro_batch=micro_batch)
    teacher = training_worker(folders[1], forward_only=True, micro_batch=micro_batch)
    batch = _batch()
    data = DataProto.from_dict(tensors={key: value.clone() for key, value in batch.items()})
    scorer = _scorer(spec, mode, student, teacher)
    data = data.union(scorer.compute_rm_score(data))
    scored = {key: data.batch[key] for key in data.batch.keys() if key not in batch}
    signals = _signals(batch, spec.grpo_scaled)
    if scorer.old is not None:
        signals["old_log_probs"] = scorer.old.batch["old_log_probs"]
    elif mode == "recompute":
        raise AssertionError("recompute without a pass of the student")
    student.set_loss_fn(ForwardLoss(spec, mode, actor_config()))
    extra = {} if scoring.STUDENT_TOP_IDS in scored else {"top_k": K}
    metrics = update(
        student,
        batch | signals | scored,
        log_entropy=True,
        advantages_given=False,
        strategy=spec.top_k_strategy,
        vocabulary=TOKENS,
        **extra,
    )
    return student, metrics, scorer, scored


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    # a teacher near its student, so that the two top K overlap, with a wider embedding
    student = write_model(folder / "student", seed=0)
    teacher = AutoModelForCausalLM.from_pretrained(student)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(0.15 * parameter.std() * torch.randn_like(parameter))
    teacher.resize_token_embeddings(VOCABULARY + 3)
    teacher.save_pretrained(folder / "teacher")
    return student, str(folder / "teacher")


def _dense(folder, batch):
    """log-probs [B,T,TOKENS] of a model over the tokenizer's ids, and the model."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "position_ids")}
    width = batch["responses"].shape[1]
    logits = model(**inputs, use_cache=False).logits[:, -width - 1 : -1, :TOKENS]
    return logits.log_softmax(-1), model


def _sets(strategy, student, teacher):
    """[B,T,V] bool: which ids are candidates, from dense tables and without the code under test."""
    own = torch.zeros_like(student, dtype=torch.bool)
    others = own.clone()
    own.scatter_(-1, student.topk(K).indices, True)
    others.scatter_(-1, teacher.topk(K).indices, True)
    return {
        "only_stu": own,
        "only_tch": others,
        "intersection": own & others,
        "union": own | others,
        "union-intersection": own ^ others,
    }[strategy]


def _dense_loss(spec, student, teacher, batch, signals):
    """The stated surrogate at ratio 1, token mean."""
    chosen = _sets(spec.top_k_strategy, student.detach(), teacher)
    p = student.detach().exp() * chosen
    weights = p if spec.top_k_strategy == "union-intersection" else p / p.sum(-1, True)
    weights = torch.where(chosen, weights, 0)
    reward = (teacher - student.detach()) * weights
    correct = signals["correct"][:, None, None]
    reward = torch.where(correct, reward.clamp(min=0), reward.clamp(max=0))
    if spec.grpo_scaled:
        reward = reward * signals["reward_scale"][:, None, None]
    token_loss = -(reward * student).sum(-1)
    mask = batch["response_mask"].bool()
    return torch.where(mask, token_loss, 0).sum() / mask.sum()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_update_follows_the_dense_surrogate(folders, strategy):
    spec = MethodSpec(log_prob_top_k=K, top_k_strategy=strategy, grpo_scaled=True)
    _, metrics, scorer, _ = _step(spec, "update", folders, micro_batch=2)
    batch = _batch()
    student, model = _dense(folders[0], batch)
    teacher = _dense(folders[1], batch)[0].detach()
    _dense_loss(spec, student, teacher, batch, _signals(batch)).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert norm > 1e-3
    assert metrics["grad_norm"][0] == pytest.approx(norm.item(), rel=2e-4)

    mask = batch["response_mask"].bool()
    reported = metrics_from_sums(add_sums(metrics[SUMS]))
    shared = _sets("intersection", student.detach(), teacher)
    expected = (shared.sum(-1) / K)[mask].mean().item()
    assert 0.1 < expected < 0.95
    assert reported["val-topk/overlap_ratio"] == pytest.approx(expected, abs=1e-6)
    mass = (student.exp() * shared).sum(-1)[mask].mean().item()
    assert reported["val-topk/overlap_student_mass"] == pytest.approx(mass, abs=1e-5)
    mass = (teacher.exp() * shared).sum(-1)[mask].mean().item()
    assert reported["val-topk/overlap_teacher_mass"] == pytest.approx(mass, abs=1e-5)
    assert scorer.passes == {"student": int(strategy != "only_tch"), "teacher": 1}


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_recompute_gives_the_same_step(folders, strategy, tail):
    spec = MethodSpec(log_prob_top_k=K, top_k_strategy=strategy, tail_bucket=tail)
    single, single_metrics, _, _ = _step(spec, "update", folders)
    recompute, metrics, scorer, scored = _step(spec, "recompute", folders)
    assert scorer.passes["student"] == (2 if "union" in strategy else 1)
    assert scoring.STUDENT_CANDIDATES in scored
    assert metrics["grad_norm"][0] == pytest.approx(single_metrics["grad_norm"][0], rel=1e-5)
    one, two = full_parameters(single), full_parameters(recompute)
    for key in one:
        torch.testing.assert_close(one[key], two[key], atol=1e-4, rtol=0)
    sums = (metrics_from_sums(add_sums(m[SUMS])) for m in (single_metrics, metrics))
    first, second = sums
    assert first == pytest.approx(second, abs=1e-4)


def test_padding_of_the_vocabulary_is_never_a_candidate(folders):
    spec = MethodSpec(log_prob_top_k=VOCABULARY, top_k_strategy="union")
    _, _, _, scored = _step(spec, "update", folders)
    mask = _batch()["response_mask"].bool()
    for key in (scoring.STUDENT_TOP_IDS, scoring.TEACHER_TOP_IDS):
        ids = scored[key][mask]
        assert ids.max() == TOKENS - 1  # every token, as K is larger than their number
        assert (ids[:, TOKENS:] == -1).all()


def test_with_all_tokens_as_candidates_top_k_is_reverse_kl(folders):
    """K = V, no gate, student_p: the gradient of KL(student || teacher)."""
    spec = MethodSpec(log_prob_top_k=TOKENS, gate="none")
    _, metrics, _, _ = _step(spec, "update", folders)
    batch = _batch()
    student, model = _dense(folders[0], batch)
    teacher = _dense(folders[1], batch)[0].detach()
    mask = batch["response_mask"].bool()
    divergence = (student.exp() * (student - teacher)).sum(-1)
    (torch.where(mask, divergence, 0).sum() / mask.sum()).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert metrics["grad_norm"][0] == pytest.approx(norm.item(), rel=2e-4)


@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "jensen_shannon"])
def test_a_whole_vocabulary_follows_the_dense_divergence(folders, divergence):
    from opdvr.integration.engine import FullVocabulary

    spec = MethodSpec(full_vocabulary=divergence, gate="none")
    student = training_worker(folders[0], micro_batch=2)
    teacher = training_worker(folders[1], forward_only=True)
    batch = _batch()
    data = DataProto.from_dict(tensors={key: value.clone() for key, value in batch.items()})
    scored = _scorer(spec, "update", student, teacher).compute_rm_score(data).batch
    layer = replace(teacher.engine.whole_output_layer(), vocabulary=TOKENS)
    student.engine.full_vocabulary = FullVocabulary(spec, layer, 1.0)
    student.set_loss_fn(ForwardLoss(spec, "update", actor_config()))
    metrics = update(
        student,
        batch | _signals(batch, scaled=False) | {key: scored[key] for key in scored.keys()},
        log_entropy=True,
        advantages_given=False,
        vocabulary=TOKENS,
    )
    table, model = _dense(folders[0], batch)
    other = _dense(folders[1], batch)[0].detach()
    middle = torch.logaddexp(table, other) - torch.tensor(2.0).log()
    value = {
        "reverse_kl": (table.exp() * (table - other)).sum(-1),
        "forward_kl": (other.exp() * (other - table)).sum(-1),
        "jensen_shannon": (table.exp() * (table - middle) + other.exp() * (other - middle)).sum(-1)
        / 2,
    }[divergence]
    mask = batch["response_mask"].bool()
    mean = torch.where(mask, value, 0).sum() / mask.sum()
    mean.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert metrics["grad_norm"][0] == pytest.approx(norm.item(), rel=2e-4)
    reported = metrics_from_sums(add_sums(metrics[SUMS]))
    assert reported["opd/divergence"] == pytest.approx(mean.item(), rel=1e-4)
    assert reported["opd/divergence_passed_frac"] == pytest.approx(1, abs=1e-6)
