"""A server engine with what it reported, for tests."""

import threading

import numpy as np
from fake_server import VOCABULARY, expected

from opdvr.teacher.engines import Secret, Sequence, TeacherSettings, Wanted
from opdvr.teacher.server import ServerEngine


def settings(urls, **options):
    defaults = {"timeout_s": 5.0, "patience_s": 5.0, "max_in_flight": 4, "model": ""}
    options = defaults | options
    key = Secret(options.pop("key", ""))
    return TeacherSettings(
        device="cpu", dtype="float32", max_tokens=64, urls=urls, api_key=key, **options
    )


def sequences(count, source="any", length=12, first=0):
    rng = np.random.default_rng(first + 7)
    return [
        Sequence(
            key=first + i,
            token_ids=rng.integers(VOCABULARY, size=length + i % 5).astype(np.int32),
            response_start=3 + i % 2,
            source=source,
            name=f"row {first + i}",
        )
        for i in range(count)
    ]


class Running:
    """An engine with all that it said; `with Running(...) as engine`."""

    def __init__(self, urls, top_k=0, vocabulary=VOCABULARY, **options):
        self.scores, self.twice, self.failures = {}, [], []
        self._changed = threading.Condition()
        wanted = Wanted(top_k=top_k, vocabulary=vocabulary)
        self.engine = ServerEngine(settings(urls, **options), wanted, self._done, self._failed)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.close()

    def _done(self, key, scores):
        with self._changed:
            if key in self.scores:
                self.twice.append(key)
            self.scores[key] = scores
            self._changed.notify_all()

    def _failed(self, error):
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def score(self, work, seconds=15):
        """Scores in the order of `work`; raises what the engine gave up with."""
        self.engine.add(work)
        return self.wait(work, seconds)

    def wait(self, work, seconds=15):
        with self._changed:
            there = self._changed.wait_for(
                lambda: self.failures or all(s.key in self.scores for s in work), seconds
            )
        assert there, "neither scores nor a failure"
        if self.failures:
            raise self.failures[0]
        return [self.scores[s.key] for s in work]


def require_right(work, scores, k=0, seed=0):
    for sequence, found in zip(work, scores, strict=True):
        own, ids, values = expected(sequence.token_ids, sequence.response_start, k, seed)
        np.testing.assert_allclose(found.log_probs, own, atol=1e-6)
        assert (found.log_probs != 0).all()
        if k:
            np.testing.assert_array_equal(found.top_ids, ids)
            np.testing.assert_allclose(found.top_log_probs, values, atol=1e-6)
        else:
            assert found.top_ids is None
