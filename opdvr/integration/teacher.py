"""The teacher on engines of its own (opdvr/teacher), in the place of verl's worker group.

The rollout's servers hand each response over as it finishes; the trainer collects. What was not
handed over (another way of generating, a dead engine) is handed over when the trainer asks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import ray
import torch
from omegaconf import DictConfig
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl import DataProto

from opdvr.integration import signal
from opdvr.integration.feed import NOWHERE, TEACHER_KEYS, TEACHER_PLACES
from opdvr.integration.scoring import (
    STUDENT_TOP_IDS,
    TEACHER_AT_STUDENT,
    TEACHER_TOP_IDS,
    TEACHER_TOP_LOG_PROBS,
)
from opdvr.integration.teacher_settings import teacher_settings
from opdvr.integration.terminal import say
from opdvr.report.metrics import TEACHER_BUSY, TEACHER_HIDDEN, TEACHER_WAIT
from opdvr.teacher.engines import Sequence, TeacherError, TeacherUnavailable, Wanted
from opdvr.teacher.service import SERVICE_THREADS, Collected, ScoringService

# While an answer is awaited, so often is asked what there is to say.
_NEWS_S = 2.0
_TENSORS = {
    "log_probs": "teacher_log_probs",
    "entropy": "teacher_entropy",
    "top_ids": TEACHER_TOP_IDS,
    "top_log_probs": TEACHER_TOP_LOG_PROBS,
    "candidate_log_probs": TEACHER_AT_STUDENT,
}


class TeacherPool:
    """`ScoringService` actors behind the method that the `Scorer` calls.

    A place is the index of an actor; dead ones leave theirs empty.
    """

    def __init__(self, config: DictConfig, wanted: Wanted):
        self._engine = config.opdvr.teacher_engine
        self._devices = config.opdvr.teacher_devices
        trainer = config.trainer
        self._student_devices = trainer.n_gpus_per_node * trainer.nnodes
        self._source_key = config.data.reward_fn_key
        # Tensors and columns that `compute_rm_score` reads beside what a worker group reads.
        self.reads = ((TEACHER_KEYS, TEACHER_PLACES), (self._source_key, "extra_info"))
        self._settings, self._wanted = teacher_settings(config), wanted
        self._services: dict[int, Any] = {}
        self._metrics: dict[str, float] = {}

    def start_on_own_devices(self) -> None:
        """Start the engines now, unless they have to wait for the rollout's devices."""
        if not self._settings.shares_devices:
            self._require_devices()
            self._start(())

    def join(self, pools: Iterable[Any], servers: list[Any], student_first: bool) -> None:
        """Wait for the engines; where they can score during generation, tell the rollout.

        Args:
            pools: verl's resource pools, whose devices are shared where there are no own ones.
            servers: the rollout's, which hand finished responses over.
            student_first: the teacher is asked about ids that the student chooses later.

        Raises:
            TeacherError: an engine did not come up.
        """
        if self._settings.shares_devices:
            self._start(pools)
        started = len(self._services)
        self._on_all("ready")
        if len(self._services) < started:
            raise TeacherUnavailable("an engine of the teacher died while it was loading")
        if self._settings.shares_devices:
            self._on_all("sleep")
            say("the teacher scores after generation, on the same devices")
        elif student_first:
            say("the teacher scores after generation, at ids that the student chooses")
        else:
            services = list(self._services.values())
            ray.get([server.hand_responses_to.remote(services) for server in servers])

    def _require_devices(self) -> None:
        """Ray would wait for ever for devices that the cluster does not have."""
        if self._settings.device == "cpu" or not self._devices:
            return
        there = int(ray.cluster_resources().get("GPU", 0))
        if there < self._devices + self._student_devices:
            raise TeacherUnavailable(
                f"TEACHER_DEVICES={self._devices} (opdvr.teacher_devices) beside the student's "
                f"{self._student_devices} (NGPUS_PER_NODE times NNODES) needs "
                f"{self._devices + self._student_devices} GPUs, and Ray sees {there}"
            )

    def _start(self, pools: Iterable[Any]) -> None:
        for place, options in enumerate(self._placements(pools)):
            actor_class = ray.remote(max_concurrency=SERVICE_THREADS, **options)(ScoringService)
            self._services[place] = actor_class.remote(self._engine, self._settings, self._wanted)

    def _placements(self, pools: Iterable[Any]) -> list[dict[str, Any]]:
        """Ray's options of each actor."""
        settings = self._settings
        if settings.shares_devices:
            return [
                {
                    "num_cpus": 0,
                    "num_gpus": 1 / pool.max_colocate_count,
                    "scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle),
                }
                for pool in pools
                for group in pool.get_placement_groups()
                for bundle in range(group.bundle_count)
            ]
        engines = max(1, self._devices // settings.tensor_parallel)
        on_gpus = self._engine == "vllm" and settings.device != "cpu"
        gpus = settings.tensor_parallel if on_gpus else 0
        return [{"num_cpus": 0, "num_gpus": gpus}] * engines

    def compute_rm_score(self, batch: DataProto) -> DataProto:
        """As `TeacherWorker.compute_rm_score` in opdvr/integration/workers.py, hidden states aside.

        Raises:
            TeacherError: as an engine says it; TeacherUnavailable once all of them have died.
        """
        asked = time.perf_counter()
        if self._settings.shares_devices:
            self._on_all("wake")
        sequences = _sequences(batch, self._source_key)
        places = np.full(len(batch), NOWHERE, dtype=np.int64)
        if TEACHER_PLACES in batch.batch.keys() and STUDENT_TOP_IDS not in batch.batch.keys():
            places = batch.batch[TEACHER_PLACES].numpy().copy()
        any_early = (places != NOWHERE).any()
        parts = self._gather(sequences, places)
        if self._settings.shares_devices:
            self._on_all("sleep")
        busy_s = sum(part.busy_s for _, part in parts)
        hidden_s = sum(part.hidden_s for _, part in parts) if any_early else 0.0
        self._metrics = {
            TEACHER_WAIT: time.perf_counter() - asked,
            TEACHER_BUSY: busy_s,
            TEACHER_HIDDEN: hidden_s / busy_s if busy_s else 0.0,
        }
        return _padded(parts, batch.batch["attention_mask"], batch.batch["response_mask"])

    def metrics(self) -> dict[str, float]:
        """Of the last batch: seconds that the step waited for scores; that engines had work; the
        share of the latter before anybody waited.
        """
        return self._metrics

    def _gather(
        self, sequences: list[Sequence], places: np.ndarray
    ) -> list[tuple[np.ndarray, Collected]]:
        """(rows, their scores), from wherever they are or go; every row once."""
        parts, todo = [], np.arange(len(sequences))
        while len(todo):
            self._hand_over(sequences, places, todo)
            calls = []
            for place in np.unique(places[todo]):
                rows = todo[places[todo] == place]
                keys = [sequences[row].key for row in rows]
                calls.append((place, rows, self._services[place].collect.remote(keys)))
            again = []
            for place, rows, call in calls:
                collected = self._answer(place, call)
                if collected is None:
                    again.append(rows)
                else:
                    parts.append((rows, collected))
            todo = np.concatenate(again) if again else np.array([], dtype=np.int64)
        return parts

    def _hand_over(self, sequences: list[Sequence], places: np.ndarray, todo: np.ndarray) -> None:
        """Give every row that is nowhere (or with the dead) to the engine with the least to do."""
        tokens = dict.fromkeys(self._services, 0)
        groups: dict[int, list[Sequence]] = {place: [] for place in tokens}
        for row in todo:
            if places[row] in self._services:
                continue
            if not tokens:
                raise TeacherUnavailable("all engines of the teacher have died; see the run's log")
            place = min(tokens, key=tokens.get)
            places[row] = place
            tokens[place] += len(sequences[row].token_ids)
            groups[place].append(sequences[row])
        for place, group in groups.items():
            if group:
                self._services[place].submit.remote(group)

    def _answer(self, place: int, call: Any) -> Any:  # noqa: ANN401
        """What a call returns, None if the engine has died; it is not asked again.

        Who waits long is told what the engine has to say.
        """
        try:
            waited = False
            while not ray.wait([call], timeout=_NEWS_S)[0]:
                self._say_news(place)
                waited = True
            answer = ray.get(call)
            if waited:  # who was told of a loss is told of its end too
                self._say_news(place)
            return answer
        except ray.exceptions.RayActorError as error:
            del self._services[place]
            others = "its work goes to the others" if self._services else "it was the last one"
            say(f"opdvr: teacher: engine {place} has died, {others}; why is in the run's log")
            print(error)  # Ray's own account
            return None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TeacherError):
                raise error.cause from None  # the remote traceback adds nothing
            raise

    def _say_news(self, place: int) -> None:
        call = self._services[place].news.remote()
        if ray.wait([call], timeout=_NEWS_S)[0]:
            for line in ray.get(call):
                say(f"opdvr: teacher: {line}")

    def _on_all(self, method: str) -> None:
        calls = {place: getattr(s, method).remote() for place, s in self._services.items()}
        for place, call in calls.items():
            self._answer(place, call)

    def start_profile(self) -> None:
        """verl profiles its own workers; these are not."""

    def stop_profile(self) -> None:
        """As start_profile."""


def _sequences(batch: DataProto, source_key: str) -> list[Sequence]:
    """Each row's own ids without padding, under the key it was handed over by."""
    tensors = batch.batch
    width = tensors["response_mask"].shape[1]
    mask = tensors["attention_mask"].bool().numpy()
    ids = tensors["input_ids"].numpy().astype(np.int32)
    lengths = mask[:, -width:].sum(-1)
    keys = range(len(batch))
    if TEACHER_KEYS in tensors.keys():
        keys = tensors[TEACHER_KEYS].tolist()
    candidates = tensors[STUDENT_TOP_IDS].numpy() if STUDENT_TOP_IDS in tensors.keys() else None
    names = signal.sample_names(batch)
    sources = batch.non_tensor_batch[source_key]
    return [
        Sequence(
            key=key,
            token_ids=ids[row][mask[row]],
            response_start=int(mask[row, :-width].sum()),
            source=str(sources[row]),
            name=names[row],
            candidates=None if candidates is None else candidates[row, : lengths[row]],
        )
        for row, key in enumerate(keys)
    ]


def _padded(
    parts: list[tuple[np.ndarray, Collected]], attended: torch.Tensor, response_mask: torch.Tensor
) -> DataProto:
    """[B,T,...] with 0 where the response mask [B,T] is 0.

    attended [B, prompt + T]: what was scored, in the response that is also what a tool answered.
    """
    rows = torch.from_numpy(np.concatenate([rows for rows, _ in parts]))
    assert len(rows.unique()) == len(rows) == len(response_mask), "every row once"
    scored = attended[:, -response_mask.shape[1] :].bool()[rows]
    tensors = {}
    for field, name in _TENSORS.items():
        if field not in parts[0][1].scores:
            continue
        values = torch.from_numpy(np.concatenate([part.scores[field] for _, part in parts]))
        padded = values.new_zeros((*scored.shape, *values.shape[1:]))
        padded[scored] = values
        padded = torch.empty_like(padded).index_copy_(0, rows, padded)
        outside = ~response_mask.bool()
        padded[outside] = 0
        tensors[name] = padded
    return DataProto.from_dict(tensors=tensors)
