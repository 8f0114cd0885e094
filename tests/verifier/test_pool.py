"""Time limits, failures and every calling context, with the real worker process."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from opdvr.verifier import compute_score, configure, counters, pool, score
from opdvr.verifier.pool import get_pool, shut_down

HALF_OF_PI = (r"\frac{\pi}{2}", r"The answer is \boxed{\pi/2}.")
ENDLESS = r"\boxed{\prod_{k=1}^{10^{9}} \sin k}"


@pytest.fixture(autouse=True)
def fresh():
    score._compare.cache_clear()
    configure(timeout_s=5.0, workers=1)
    counters(reset=True)
    yield
    configure(timeout_s=pool.DEFAULT_TIMEOUT_S, workers=1)
    shut_down()


def is_right():
    return compute_score("", HALF_OF_PI[1], HALF_OF_PI[0])["score"] == 1.0


def test_same_verdict_in_thread_and_executor():
    assert is_right()
    score._compare.cache_clear()
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(is_right()))
    thread.start()
    thread.join()
    score._compare.cache_clear()

    async def in_executor():
        return await asyncio.get_running_loop().run_in_executor(None, is_right)

    assert verdicts == [True]
    assert asyncio.run(in_executor()) is True
    assert counters() == {"calls": 3, "timeout": 0, "error": 0}


def test_many_threads_share_the_workers():
    golds = [f"{n}^2" for n in range(11, 35)]
    with ThreadPoolExecutor(8) as threads:
        scores = list(
            threads.map(
                lambda n: compute_score("", rf"\boxed{{{n * n}}}", f"{n}^2")["score"],
                range(11, 35),
            )
        )
    assert scores == [1.0] * len(golds)
    assert len(get_pool().process_ids()) == 1


@pytest.mark.parametrize("answer", [ENDLESS, r"\boxed{\sum_{k=1}^{10^{9}} \frac{1}{k}}"])
def test_endless_answer_is_wrong_in_time_and_counted(answer, caplog):
    assert is_right()
    worker = get_pool().process_ids()
    get_pool().timeout_s = 0.5
    started = time.perf_counter()
    assert compute_score("", answer, "5")["score"] == 0.0
    # 0.5 s limit, 0.5 s grace, and room for a loaded machine.
    assert time.perf_counter() - started < 10.0
    assert counters()["timeout"] == 1
    assert "counted as wrong" in caplog.text and "gold '5'" in caplog.text
    assert get_pool().process_ids() != worker and len(get_pool().process_ids()) == 1
    get_pool().timeout_s = 5.0
    assert compute_score("", r"\boxed{2^5}", "32")["score"] == 1.0


def test_failed_comparison_is_not_remembered():
    assert is_right()
    get_pool().timeout_s = 0.3
    for count in (1, 2):
        assert compute_score("", ENDLESS, "5")["score"] == 0.0
        assert counters()["timeout"] == count


def test_worker_that_died_idle_is_replaced_unseen():
    assert is_right()
    (process_id,) = get_pool().process_ids()
    os.kill(process_id, signal.SIGKILL)
    time.sleep(0.2)
    assert compute_score("", r"\boxed{2^6}", "64")["score"] == 1.0
    assert counters()["error"] == 0


def test_worker_that_dies_at_work_counts_as_error(caplog):
    assert is_right()
    (process_id,) = get_pool().process_ids()
    threading.Timer(0.3, os.kill, (process_id, signal.SIGKILL)).start()
    assert compute_score("", ENDLESS, "5")["score"] == 0.0
    assert counters()["error"] == 1
    assert "ended with code -9" in caplog.text
    assert compute_score("", r"\boxed{2^7}", "128")["score"] == 1.0


def _worker_raising(monkeypatch, exception):
    """A worker whose mathematics raises what math-verify could raise."""
    patched = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
        "from math_verify.errors import TimeoutException\n"
        "from opdvr.verifier import symbolic, worker\n"
        f"def equal(gold, answer): raise {exception}\n"
        "symbolic.equal = equal\n"
        "worker.main(int(sys.argv[2]))\n"
    )
    monkeypatch.setattr(pool, "_BOOTSTRAP", patched)


def test_timeout_exception_of_math_verify_does_not_escape(monkeypatch):
    # It derives from BaseException: in this process no `except Exception` would hold it.
    _worker_raising(monkeypatch, "TimeoutException('slow')")
    assert compute_score("", r"\boxed{2^8}", "256")["score"] == 0.0
    assert counters() == {"calls": 1, "timeout": 0, "error": 1}


def test_error_inside_the_mathematics_is_counted_and_named(monkeypatch, caplog):
    _worker_raising(monkeypatch, "OverflowError('too many digits')")
    assert compute_score("", r"\boxed{2^9}", "512")["score"] == 0.0
    assert counters() == {"calls": 1, "timeout": 0, "error": 1}
    assert "OverflowError: too many digits" in caplog.text


def test_environment_without_math_verify_is_an_error_not_a_verdict(monkeypatch):
    monkeypatch.setattr(pool, "_BOOTSTRAP", "import no_such_package")
    with pytest.raises(RuntimeError, match="is math-verify installed"):
        is_right()


def _score_in_fork(results):
    results.put((is_right(), get_pool().process_ids()))


def test_forked_child_starts_its_own_worker():
    assert is_right()
    parent = get_pool().process_ids()
    score._compare.cache_clear()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_score_in_fork, args=(results,), daemon=True)
    child.start()
    verdict, workers = results.get(timeout=60)
    child.join(timeout=60)
    assert verdict and len(workers) == 1 and workers != parent
    assert get_pool().process_ids() == parent
    assert is_right()


def test_worker_ends_with_its_parent_even_at_work():
    script = (
        "import os, threading, time\n"
        "from opdvr.verifier import compute_score, configure\n"
        "from opdvr.verifier.pool import get_pool\n"
        "configure(timeout_s=2.0)\n"
        r"compute_score('', r'\boxed{2^5}', '32')" + "\n"
        "print(get_pool().process_ids()[0], flush=True)\n"
        rf"threading.Thread(target=compute_score, args=('', r'{ENDLESS}', '5')).start()" + "\n"
        "time.sleep(0.2)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    worker = int(done.stdout)
    # The alarm ends it 2 s after it was asked; nobody is left to reap it but init.
    deadline = time.monotonic() + 15
    while _is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_running(worker)


def _is_running(process_id):
    try:
        with open(f"/proc/{process_id}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_worker_imports_neither_torch_nor_numpy():
    code = (
        "import sys, opdvr.verifier.worker, opdvr.verifier.symbolic; "
        "print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
def test_bad_environment_value_is_refused(monkeypatch, value):
    monkeypatch.setenv(pool.TIMEOUT_VARIABLE, value)
    monkeypatch.setattr(pool, "_pool", None)
    with pytest.raises(ValueError, match=rf"{pool.TIMEOUT_VARIABLE}='{value}'"):
        get_pool()
    monkeypatch.delenv(pool.TIMEOUT_VARIABLE)
    get_pool()


def test_bad_configuration_is_refused():
    with pytest.raises(ValueError, match="timeout_s=0"):
        configure(timeout_s=0)
    with pytest.raises(ValueError, match="workers=0"):
        configure(workers=0)


@pytest.mark.slow
def test_same_verdict_in_a_ray_actor():
    ray = pytest.importorskip("ray")

    # Self-contained: Ray's worker cannot import this file.
    class Scorer:
        def score(self):
            from opdvr.verifier import compute_score

            return compute_score("", r"\boxed{\pi/2}", r"\frac{\pi}{2}")["score"]

        async def score_in_executor(self):
            return await asyncio.get_running_loop().run_in_executor(None, self.score)

    ray.init(address="local", num_cpus=1, include_dashboard=False)
    try:
        actor = ray.remote(num_cpus=1)(Scorer).remote()
        assert ray.get(actor.score_in_executor.remote(), timeout=120) == 1.0
    finally:
        ray.shutdown()
