"""Two teacher servers, one killed in the middle of a step and started again, then the other killed.

The same batch of the embedded task is scored undisturbed and disturbed. While both servers are
gone its rest waits for the first one's return. OPDVR's rewards of the two are compared.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import torch

from benchmarks.engine_agreement import STUDENT, TEACHER, sequences_of
from benchmarks.measure import Result, note
from benchmarks.served import ServedTeacher
from benchmarks.task_batch import sample
from opdvr.core import MethodSpec, token_rewards
from opdvr.teacher.engines import Scores, Sequence, TeacherSettings, Wanted
from opdvr.teacher.server import ServerEngine

ROWS, GROUP = 128, 8
# Few at once, so that a step takes long enough to be broken off.
IN_FLIGHT = 2


class _Step:
    """A step's scoring; `at` are actions by the number of responses that are scored then."""

    def __init__(self, urls: str, max_tokens: int):
        self._changed = threading.Condition()
        self.scores: dict[int, Scores] = {}
        self.twice, self.failure = 0, None
        self.actions: dict[int, object] = {}
        settings = TeacherSettings(
            "", "cpu", "float32", max_tokens, urls=urls, max_in_flight=IN_FLIGHT, patience_s=300
        )
        self.engine = ServerEngine(settings, Wanted(), self._done, self._failed)

    def _done(self, key: int, scores: Scores) -> None:
        with self._changed:
            self.twice += key in self.scores
            self.scores[key] = scores
            action = self.actions.pop(len(self.scores), None)
            self._changed.notify_all()
        if action is not None:
            threading.Thread(target=action).start()

    def _failed(self, failure: BaseException) -> None:
        with self._changed:
            self.failure = failure
            self._changed.notify_all()

    def run(self, sequences: list[Sequence], actions: dict[int, object]) -> np.ndarray:
        """Log-probs of all response tokens in order."""
        self.scores, self.actions = {}, dict(actions)
        self.engine.add(sequences)
        with self._changed:
            self._changed.wait_for(lambda: self.failure or len(self.scores) == len(sequences))
        if self.failure is not None:
            raise self.failure
        return np.concatenate([self.scores[sequence.key].log_probs for sequence in sequences])


def run() -> list[Result]:
    """Largest difference of the rewards, scores that came twice, seconds of both."""
    batch = sample(STUDENT, ROWS, GROUP)
    sequences = sequences_of(batch.tensors)
    servers = [ServedTeacher(TEACHER), ServedTeacher(TEACHER)]
    restarted: list[ServedTeacher] = []
    try:
        for server in servers:
            server.wait()
        urls = ",".join(server.url for server in servers)
        step = _Step(urls, batch.tensors["attention_mask"].shape[1])
        step.run(sequences, {})  # warm
        started = time.perf_counter()
        undisturbed = step.run(sequences, {})
        quiet_s = time.perf_counter() - started

        def kill_and_restart() -> None:
            note(f"{len(step.scores)} of {ROWS} scored: SIGKILL to {servers[0].url}, restarted")
            servers[0].kill()
            restarted.append(ServedTeacher(TEACHER, servers[0].port))

        def kill_the_other() -> None:
            note(f"{len(step.scores)} of {ROWS} scored: SIGKILL to {servers[1].url}")
            servers[1].kill()

        started = time.perf_counter()
        actions = {ROWS // 4: kill_and_restart, ROWS // 2: kill_the_other}
        disturbed = step.run(sequences, actions)
        disturbed_s = time.perf_counter() - started
        step.engine.close()
    finally:
        for server in (*servers, *restarted):
            server.stop()
    rewards = [_rewards(batch, values) for values in (undisturbed, disturbed)]
    case = f"failover, {ROWS} responses, two servers"
    difference = float((rewards[0] - rewards[1]).abs().max())
    return [
        Result(case, "largest difference of OPDVR's rewards", difference, "nats"),
        Result(case, "tokens with a reward", float((rewards[1] != 0).sum()), ""),
        Result(case, "scores that came twice", float(step.twice), ""),
        Result(case, "scoring, undisturbed", quiet_s, "s"),
        Result(case, "scoring, one killed and restarted, then the other killed", disturbed_s, "s"),
    ]


def _rewards(batch: object, log_probs: np.ndarray) -> torch.Tensor:
    """OPDVR's token rewards [B,T] of the batch."""
    mask = batch.tensors["response_mask"].bool()
    teacher = torch.zeros(mask.shape)
    teacher[mask] = torch.from_numpy(log_probs)
    student = batch.tensors["rollout_log_probs"]
    return token_rewards(MethodSpec(), teacher, student, mask, batch.scores > 0).reward
