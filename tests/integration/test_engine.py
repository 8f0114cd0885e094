"""The engine against plain transformers, and the single forward against the recompute path."""

import pytest
import torch

pytest.importorskip("verl")

from engine_setup import (  # noqa: E402
    VOCABULARY,
    actor_config,
    free_port,
    full_parameters,
    make_batch,
    reference_scores,
    score,
    set_rank_environment,
    training_worker,
    update,
    write_model,
)

from opdvr.core import MethodSpec, advantages, token_rewards  # noqa: E402
from opdvr.integration.engine import predictor_positions  # noqa: E402
from opdvr.integration.loss import SUMS, ForwardLoss  # noqa: E402

PROCESS_GROUP_PORT = free_port()


@pytest.fixture(autouse=True)
def one_rank():
    set_rank_environment(0, 1, PROCESS_GROUP_PORT)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_equal_transformers(tmp_path, tied, temperature):
    folder = write_model(tmp_path, tied=tied)
    batch = make_batch()
    logprobs, entropy = score(
        training_worker(folder, forward_only=True), batch, temperature=temperature
    )
    expected_logprobs, expected_entropy = reference_scores(folder, batch, temperature)
    assert expected_logprobs.min() < -5  # the model is no uniform one
    torch.testing.assert_close(logprobs, expected_logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-5, rtol=0)
    assert (logprobs[~batch["response_mask"].bool()] == 0).all()


def test_student_as_its_own_teacher_gives_no_signal(tmp_path):
    folder = write_model(tmp_path)
    batch = make_batch()
    teacher, _ = score(training_worker(folder, forward_only=True), batch)
    student, _ = score(training_worker(folder), batch)
    assert (teacher - student).abs().max() < 1e-3
    assert int(batch["response_mask"][1].sum()) == 1  # also on a response of one token


def test_predictor_positions_by_hand():
    # rows packed as [p p r r | p r]; tokens 0..5; the predictors of the responses are 1, 2 and 4
    offsets = torch.tensor([0, 4, 6])
    attention = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]])
    response = torch.tensor([[1, 1], [1, 0]])
    assert predictor_positions(offsets, attention, response).tolist() == [1, 2, 4]


def _signals(batch, seed=3):
    generator = torch.Generator().manual_seed(seed)
    rows, width = batch["responses"].shape
    mask = batch["response_mask"]
    return {
        "teacher_log_probs": -3 * torch.rand(rows, width, generator=generator) * mask,
        "rollout_log_probs": -3 * torch.rand(rows, width, generator=generator) * mask,
        "correct": torch.arange(rows) % 3 == 0,
        "reward_scale": torch.rand(rows, generator=generator),
        "outcome": torch.randn(rows, generator=generator),
        "group_correct_frac": torch.ones(rows),
        "sample_index": torch.arange(rows),
    }


SPECS = {
    "opdvr": MethodSpec(),
    "opd": MethodSpec(gate="none"),
    "grpd": MethodSpec(grpo_scaled=True),
    "plus_grpo": MethodSpec(estimator="token_reward_direct_plus_grpo"),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("micro_batch", [8, 2])
def test_single_forward_is_the_recompute_path(tmp_path, name, micro_batch):
    """Same loss gradient norm and, after the step, the same parameters to the last bit."""
    spec = SPECS[name]
    folder = write_model(tmp_path)
    batch = make_batch()
    signals = _signals(batch)
    mask = batch["response_mask"].bool()

    recompute = training_worker(folder, micro_batch=micro_batch)
    old, _ = score(recompute, batch)
    rewards = token_rewards(
        spec, signals["teacher_log_probs"], old, mask, signals["correct"], signals["reward_scale"]
    )
    made = advantages(spec, rewards.reward, mask, outcome=signals["outcome"])
    from functools import partial

    from verl.workers.utils.losses import ppo_loss

    recompute.set_loss_fn(partial(ppo_loss, config=actor_config()))
    metrics = update(recompute, batch | {"old_log_probs": old, "advantages": made})

    single = training_worker(folder, micro_batch=micro_batch)
    single.set_loss_fn(ForwardLoss(spec, "update", actor_config()))
    placeholders = {"advantages": torch.zeros_like(made)}
    single_metrics = update(
        single, batch | signals | placeholders, log_entropy=True, advantages_given=False
    )
    assert single_metrics["grad_norm"] == metrics["grad_norm"]
    start = full_parameters(training_worker(folder))
    one, two = full_parameters(recompute), full_parameters(single)
    for key in one:
        assert torch.equal(one[key], two[key]), key
    assert any(not torch.equal(one[key], start[key]) for key in one)

    from opdvr.core import add_sums, metrics_from_sums

    reported = metrics_from_sums(add_sums(single_metrics[SUMS]))
    assert reported["critic/advantages/mean"] == pytest.approx(made[mask].mean().item(), abs=1e-6)
    _, entropy = reference_scores(folder, batch)
    assert reported["actor/entropy"] == pytest.approx(entropy[mask].mean().item(), abs=1e-5)
    difference = (old.exp() - signals["rollout_log_probs"].exp()).abs()[mask].mean().item()
    assert reported["training/rollout_probs_diff_mean"] == pytest.approx(difference, abs=1e-6)


def test_a_batch_without_a_valid_token_changes_nothing(tmp_path):
    folder = write_model(tmp_path)
    batch = make_batch()
    worker = training_worker(folder)
    start = full_parameters(worker)
    worker.set_loss_fn(ForwardLoss(MethodSpec(), "update", actor_config()))
    signals = _signals(batch)
    batch["response_mask"] = torch.zeros_like(batch["response_mask"])
    metrics = update(
        worker,
        batch | signals | {"advantages": torch.zeros(batch["responses"].shape)},
        log_entropy=True,
        advantages_given=False,
    )
    assert metrics["grad_norm"] == [0.0] and metrics["loss"] == [0.0]
    after = full_parameters(worker)
    assert all(torch.allclose(after[key], start[key], atol=1e-3) for key in start)


def test_nan_at_a_valid_token_stops_with_the_sample_named(tmp_path):
    folder = write_model(tmp_path)
    batch = make_batch()
    worker = training_worker(folder)
    worker.set_loss_fn(ForwardLoss(MethodSpec(), "update", actor_config()))
    with torch.no_grad():
        for parameter in worker.engine.module.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="student log-prob.*extra_info.index 0|index 0"):
        update(
            worker,
            batch | _signals(batch) | {"advantages": torch.zeros(batch["responses"].shape)},
            log_entropy=True,
            advantages_given=False,
        )


def _rank_main(rank, world_size, port, folder, output):
    set_rank_environment(rank, world_size, port)
    torch.set_num_threads(1)
    batch = make_batch()
    mine = slice(rank * 4, rank * 4 + 4) if world_size == 2 else slice(None)
    part = {key: value[mine] for key, value in batch.items()}
    signals = {key: value[mine] for key, value in _signals(batch).items()}
    worker = training_worker(folder, micro_batch=4)
    logprobs, _ = score(worker, part)
    worker.set_loss_fn(ForwardLoss(MethodSpec(), "update", actor_config()))
    metrics = update(
        worker,
        part | signals | {"advantages": torch.zeros(part["responses"].shape)},
        log_entropy=True,
        advantages_given=False,
    )
    torch.save(
        {"logprobs": logprobs, "grad_norm": metrics["grad_norm"], "after": full_parameters(worker)},
        f"{output}.{rank}",
    )
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("tied", [True, False])
def test_two_ranks_equal_one(tmp_path, tied):
    import torch.multiprocessing as mp

    folder = write_model(tmp_path / "model", tied=tied)
    for world_size in (1, 2):
        mp.spawn(
            _rank_main,
            (world_size, free_port(), folder, str(tmp_path / f"world{world_size}")),
            nprocs=world_size,
        )
    one = torch.load(tmp_path / "world1.0", weights_only=False)
    two = [torch.load(tmp_path / f"world2.{rank}", weights_only=False) for rank in (0, 1)]
    torch.testing.assert_close(
        torch.cat([part["logprobs"] for part in two]), one["logprobs"], atol=1e-6, rtol=0
    )
    assert two[0]["grad_norm"][0] == pytest.approx(one["grad_norm"][0], rel=1e-5)
    for key, value in one["after"].items():
        torch.testing.assert_close(two[0]["after"][key], value, atol=2e-4, rtol=0)


def test_a_teacher_with_a_wider_vocabulary_scores_over_its_own_width(tmp_path):
    folder = write_model(tmp_path, seed=5, vocabulary=VOCABULARY + 8)
    batch = make_batch()  # ids below VOCABULARY only
    logprobs, _ = score(training_worker(folder, forward_only=True), batch)
    expected, _ = reference_scores(folder, batch)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)
