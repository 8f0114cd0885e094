"""Engines outside verl's workers: who scores what, what a dead engine costs, padded results."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import torch
from omegaconf import OmegaConf
from verl import DataProto

import opdvr.integration.teacher as teacher_module
from opdvr.integration.feed import NOWHERE, TEACHER_KEYS, TEACHER_PLACES, TeacherFeed
from opdvr.integration.scoring import STUDENT_TOP_IDS
from opdvr.integration.teacher import TeacherPool
from opdvr.teacher.engines import Scores, TeacherUnavailable, Wanted, WrongAnswer
from opdvr.teacher.service import Collected, pack

K = 2


def score(sequence):
    """A value that says which token of which sequence it is: -(token id) - position / 100."""
    places = np.arange(sequence.response_start, len(sequence.token_ids))
    values = -(sequence.token_ids[places] + places / 100).astype(np.float32)
    at = None if sequence.candidates is None else -sequence.candidates.astype(np.float32)
    top = np.stack((values, values - 1), 1)
    ids = np.stack((places, places + 1), 1).astype(np.int32)
    return Scores(values, values / 2, ids, top, at)


class Service:
    """A ScoringService as Ray shows it, in this process; `fault` is what its next answer is."""

    def __init__(self, fault=None):
        self.held, self.fault, self.calls = {}, fault, []
        for name in ("submit", "collect", "ready", "sleep", "wake"):
            setattr(self, name, SimpleNamespace(remote=self._method(name)))

    def _method(self, name):
        def remote(*arguments):
            self.calls.append(name)
            if self.fault is not None and name in ("collect", "submit"):
                return self.fault
            return getattr(self, f"_{name}", lambda *_: None)(*arguments)

        return remote

    def _submit(self, sequences):
        self.held |= {sequence.key: sequence for sequence in sequences}

    def _collect(self, keys):
        return Collected(pack([score(self.held.pop(key)) for key in keys]), 2.0, 1.0)


def dead():
    return ray.exceptions.RayActorError()


@pytest.fixture
def make_pool(monkeypatch):
    def get(answer):
        for one in answer if isinstance(answer, list) else [answer]:
            if isinstance(one, BaseException):
                raise one
        return answer

    monkeypatch.setattr(teacher_module.ray, "get", get)
    monkeypatch.setattr(teacher_module.ray, "wait", lambda calls, timeout: (calls, []))

    def make(*services):
        config = OmegaConf.create(
            {
                "trainer": {"device": "cpu", "n_gpus_per_node": 1, "nnodes": 1},
                "opdvr": {
                    "teacher_engine": "vllm",
                    "teacher_devices": len(services),
                    "teacher_parallel_size": 1,
                    "teacher_urls": "",
                    "teacher_timeout": 1,
                    "teacher_patience": 1,
                    "teacher_max_in_flight": 1,
                    "model_dtype": "float32",
                },
                "data": {
                    "max_prompt_length": 3,
                    "max_response_length": 4,
                    "reward_fn_key": "data_source",
                },
                "reward_model": {
                    "enable": True,
                    "model": {"path": "teacher", "trust_remote_code": False},
                },
                "actor_rollout_ref": {"rollout": {"gpu_memory_utilization": 0.5}},
            }
        )
        pool = TeacherPool(config, Wanted(top_k=K, with_entropy=True))
        pool._services = dict(enumerate(services))
        return pool

    return make


def make_batch(early=None, candidates=False):
    """Three rows, prompts left-padded to 3, responses right-padded to 4; row 2 has a gap."""
    ids = torch.tensor(
        [[0, 7, 8, 11, 12, 0, 0], [5, 6, 7, 21, 22, 23, 24], [0, 0, 9, 31, 32, 33, 0]]
    )
    attention = (ids > 0).long()
    mask = attention[:, 3:].clone()
    mask[2, 1] = 0  # what a tool answered: scored, but no response
    tensors = {"input_ids": ids, "attention_mask": attention, "response_mask": mask}
    if early is not None:
        tensors[TEACHER_KEYS] = torch.tensor([100, 101, 102])
        tensors[TEACHER_PLACES] = torch.tensor(early)
    if candidates:
        tensors[STUDENT_TOP_IDS] = torch.arange(24).reshape(3, 4, 2).int()
    extra = np.array([{"index": 40 + row} for row in range(3)], dtype=object)
    rows = {"data_source": np.array(["s"] * 3, dtype=object), "extra_info": extra}
    return DataProto.from_dict(tensors=tensors, non_tensors=rows)


# -(id) - position / 100, positions counted without the prompt's padding
EXPECTED = [[-11.02, -12.03, 0, 0], [-21.03, -22.04, -23.05, -24.06], [-31.01, 0, -33.03, 0]]


def check(found):
    expected = torch.tensor(EXPECTED)
    torch.testing.assert_close(found.batch["teacher_log_probs"], expected)
    torch.testing.assert_close(found.batch["teacher_entropy"], expected / 2)
    top = found.batch["teacher_top_log_probs"]
    torch.testing.assert_close(top[..., 0], expected)
    assert top.shape == (3, 4, K) and found.batch["teacher_top_ids"].dtype == torch.int32
    outside = torch.tensor(EXPECTED) == 0
    assert (top[outside] == 0).all() and (found.batch["teacher_top_ids"][outside] == 0).all()


def hand_over(service, rows):
    """What the rollout's server did with these rows."""
    batch = make_batch(early=[0, 0, 0])
    sequences = teacher_module._sequences(batch, "data_source")
    service._submit([sequences[row] for row in rows])


def test_what_no_engine_has_is_shared_out_and_comes_back_padded(make_pool):
    services = Service(), Service()
    pool = make_pool(*services)
    check(pool.compute_rm_score(make_batch()))
    assert all("submit" in service.calls for service in services)
    metrics = pool.metrics()
    assert metrics["opd/teacher_busy_seconds"] == 4.0
    assert metrics["opd/teacher_hidden_frac"] == 0  # nothing was handed over earlier


def test_what_was_handed_over_during_generation_is_collected_where_it_went(make_pool):
    services = Service(), Service()
    hand_over(services[0], [1])
    hand_over(services[1], [0, 2])
    pool = make_pool(*services)
    check(pool.compute_rm_score(make_batch(early=[1, 0, 1])))
    assert pool.metrics()["opd/teacher_hidden_frac"] == 0.5
    assert not any("submit" in service.calls for service in services)


def test_the_students_ids_are_only_known_afterwards(make_pool):
    """Then early scores, without candidates, are of no use."""
    service = Service()
    batch = make_batch(early=[0, 0, 0], candidates=True)
    found = make_pool(service).compute_rm_score(batch)
    check(found)
    at = found.batch["teacher_at_student_log_probs"]
    mask = batch.batch["response_mask"].bool()
    expected = -torch.arange(24.0).reshape(3, 4, 2) * mask.unsqueeze(-1)
    torch.testing.assert_close(at, expected)
    assert service.calls == ["submit", "collect"]


@pytest.mark.parametrize("early", [None, [0, 1, 1], [NOWHERE, 1, 0]])
def test_a_dead_engines_rows_go_to_the_others(make_pool, early):
    services = Service(fault=dead()), Service()
    if early:
        hand_over(services[1], [row for row in range(3) if early[row] == 1])
    pool = make_pool(*services)
    check(pool.compute_rm_score(make_batch(early)))
    assert list(pool._services) == [1]
    check(pool.compute_rm_score(make_batch(early=[NOWHERE] * 3)))  # and on without it


def test_no_engine_left_is_said_not_filled_in(make_pool):
    pool = make_pool(Service(fault=dead()), Service(fault=dead()))
    with pytest.raises(TeacherUnavailable, match="all engines of the teacher have died"):
        pool.compute_rm_score(make_batch())


def test_what_an_engine_says_arrives_without_its_process(make_pool):
    cause = WrongAnswer("server http://x: row 7: expected 3 log-probs, found 2")
    fault = ray.exceptions.RayTaskError("collect", "a long remote traceback", cause)
    pool = make_pool(Service(fault=fault.as_instanceof_cause()))
    with pytest.raises(WrongAnswer) as raised:
        pool.compute_rm_score(make_batch())
    assert str(raised.value) == str(cause)


def test_sequences_carry_the_data_files_numbers_and_no_padding():
    first, second, third = teacher_module._sequences(make_batch(early=[0, 0, 0]), "data_source")
    assert (first.key, first.name, first.source) == (100, "extra_info.index 40", "s")
    assert first.token_ids.tolist() == [7, 8, 11, 12] and first.response_start == 2
    assert second.response_start == 3 and third.response_length == 3


class Answer:
    """Of a remote call, to be awaited; an exception is raised."""

    def __init__(self, error=None):
        self._error = error

    def __await__(self):
        if self._error:
            raise self._error
        return iter(())


def feed_with(*errors):
    """A feed over one service for each error (None: it is well), and what each was given."""
    given = [[] for _ in errors]

    def submit(place):
        def remote(sequences):
            given[place] += sequences
            return Answer(errors[place])

        return SimpleNamespace(submit=SimpleNamespace(remote=remote))

    return TeacherFeed([submit(place) for place in range(len(errors))]), given


def test_responses_that_end_together_travel_together_to_the_idlest_engine():
    async def run():
        feed, given = feed_with(None, None)
        keys = [feed.add([1, 2], [3] * 10, "s", "first"), feed.add([1], [4], "s", "second")]
        await asyncio.sleep(0.05)
        keys.append(feed.add([1, 2], [5], "t", "third"))
        return keys, (await feed.places(keys)).tolist(), given

    keys, places, given = asyncio.run(run())
    assert len(set(keys)) == 3
    assert places[0] == places[1] != places[2]  # the first two filled one engine
    assert [s.name for s in given[places[0]]] == ["first", "second"]
    (third,) = given[places[2]]
    assert third.token_ids.tolist() == [1, 2, 5] and third.response_start == 2
    assert third.source == "t"


def test_what_went_to_a_dead_or_failed_engine_is_nowhere():
    async def run(error):
        feed, _ = feed_with(error)
        keys = [feed.add([1], [2], "s", "row")]
        return (await feed.places(keys)).tolist()

    failed = ray.exceptions.RayTaskError("submit", "", WrongAnswer("x")).as_instanceof_cause()
    assert asyncio.run(run(dead())) == asyncio.run(run(failed)) == [NOWHERE]
    with pytest.raises(KeyError):  # a mistake of ours is not the engine's death
        asyncio.run(run(KeyError("bug")))
