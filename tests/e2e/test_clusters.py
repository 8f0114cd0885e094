"""Other ways to start: on a Ray that is already there, over two ranks, under a deep TMPDIR."""

import os
import subprocess
import sys

import pytest
from fake_server import FakeServer
from running import ROOT, command, environment, metrics, train

pytestmark = pytest.mark.slow
pytest.importorskip("verl")

# Ray gives a cluster a token, which whoever joins must have; here that is beside the point.
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}

KEY = "not-to-be-seen"

# A cluster of the test's own, in a process of its own: nobody else's Ray is touched.
HOST = """
import sys, ray
context = ray.init(address="local", num_cpus=8, include_dashboard=False)
print("ADDRESS", context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


def test_joins_the_ray_at_ray_address_and_leaves_it_running(tmp_path):
    """And a teacher's key gets to where the trainer is: an actor of the cluster."""
    folder = tmp_path / "joined"
    teacher = FakeServer(model="teacher-faulty", key=KEY)
    host = subprocess.Popen(
        [sys.executable, "-c", HOST],
        env=environment() | NO_TOKEN,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        for line in host.stdout:
            if line.startswith("ADDRESS"):
                break
        address = line.split()[1]
        done = subprocess.run(
            command(
                folder,
                "trainer.total_training_steps=1",
                "trainer.test_freq=-1",
                "opdvr.teacher_engine=server",
                f"opdvr.teacher_urls='{teacher.url}'",
            ),
            cwd=ROOT,
            env=environment() | NO_TOKEN | {"RAY_ADDRESS": address, "TEACHER_API_KEY": KEY},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        assert sorted(metrics(folder)) == [1]
        assert KEY not in done.stdout
        assert host.poll() is None  # the cluster lives on
    finally:
        teacher.stop()
        host.stdin.close()
        host.wait(timeout=60)


def test_two_ranks_two_replicas(tmp_path, monkeypatch):
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    assert len(str(deep)) > 107  # no Unix socket fits below this
    monkeypatch.setitem(os.environ, "TMPDIR", str(deep))
    folder = tmp_path / "two"
    steps = train(
        folder,
        "trainer.n_gpus_per_node=2",
        "trainer.balance_batch=true",
        "trainer.total_training_steps=1",
        "trainer.test_freq=-1",
        "trainer.save_freq=1",
    )
    assert steps[1]["training/rollout_probs_diff_max"] < 1e-4
    shards = {path.name for path in (folder / "global_step_1" / "actor").glob("model_world*")}
    assert shards == {f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)}
