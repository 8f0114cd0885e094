"""`opdvr teacher serve`: the server that it would become, and its refusals."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from server_setup import Running

from opdvr.teacher import command, serve
from opdvr.teacher.engines import Sequence

ROOT = Path(__file__).parents[2]
MODEL = "opdvr/demo/models/teacher-faulty"


@pytest.fixture
def become(monkeypatch):
    """Runs the command up to its exec; gives back the exit code, options and environment."""

    def run(*arguments):
        became = []

        def execve(program, command_line, environment):
            became.append((serve.ServeOptions.from_json(command_line[-1]), environment))
            assert command_line[1:3] == ["-m", "opdvr.teacher.vllm_process"]
            assert "sk-secret" not in " ".join(command_line)

        monkeypatch.setattr(os, "execve", execve)
        monkeypatch.chdir(ROOT)
        code = command.main(["serve", *arguments])
        return code, *(became[0] if became else (None, None))

    return run


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_it_becomes_a_loopback_server_of_the_model(become):
    _, options, _ = become(MODEL, "--port", str(free_port()))
    assert (options.host, options.model) == ("127.0.0.1", str(ROOT / MODEL))
    assert (options.positions, options.vocabulary) == (256, 29)
    assert options.url == f"http://127.0.0.1:{options.port}"


def test_flags_on_a_gpu(become):
    _, options, _ = become(
        *(MODEL, "--port", str(free_port()), "--device", "cuda", "--tensor-parallel", "2"),
        *("--max-logprobs", "7", "--served-model-name", "teacher", "--", "--seed", "3"),
    )
    flags = " ".join(options.vllm_flags())
    for part in (
        "--max-logprobs 7",
        "--tensor-parallel-size 2",
        "--gpu-memory-utilization 0.85",
        "--no-enable-prefix-caching",
        "--generation-config vllm",
        "--dtype auto",
        "--served-model-name teacher",
    ):
        assert part in flags
    assert flags.endswith("--seed 3")


def test_flags_on_a_cpu_avoid_the_wrong_norm(become):
    pytest.importorskip("transformers")
    _, options, environment = become(MODEL, "--port", str(free_port()), "--device", "cpu")
    flags = options.vllm_flags()
    assert flags[flags.index("--compilation-config") + 1] == '{"custom_ops": ["none"]}'
    assert flags[flags.index("--dtype") + 1] == "float32"
    assert int(flags[flags.index("--num-gpu-blocks-override") + 1]) == 64 * 2 + 1  # 256 / 128
    assert environment["TORCHDYNAMO_DISABLE"] == "1"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


@pytest.mark.parametrize(
    # 4 GiB of logits at 12 bytes: 2,355 tokens of 151,936 ids, in steps of 256.
    ("vocabulary", "tokens"),
    [(151_936, 2304), (29, 8192), (2_000_000, 512), (None, 512)],
)
def test_logits_of_a_batch_are_bounded(become, vocabulary, tokens):
    _, options, _ = become(MODEL, "--port", str(free_port()))
    object.__setattr__(options, "vocabulary", vocabulary)
    assert options.batch_tokens() == tokens


def test_the_key_goes_through_the_environment(become, monkeypatch):
    monkeypatch.setenv("TEACHER_API_KEY", "sk-secret")
    _, _, environment = become(MODEL, "--port", str(free_port()))
    assert environment["VLLM_API_KEY"] == "sk-secret"


def test_one_token_more_than_the_model_has_positions(become):
    port = str(free_port())
    _, _, environment = become(MODEL, "--port", port, "--max-model-len", "257")
    assert environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] == "1"
    _, _, environment = become(MODEL, "--port", port, "--max-model-len", "256")
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in environment


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["nowhere/at/all"], "teacher model folder not found: nowhere/at/all"),
        (["opdvr"], "has no config.json"),
        ([MODEL, "--max-model-len", "258"], "--max-model-len 258: .* give 257 at most"),
        ([MODEL, "--", "--api-key", "x"], "--api-key: every user sees .* TEACHER_API_KEY"),
        ([MODEL, "--", "--api-key=x"], "--api-key: every user sees"),
        ([MODEL, "--", "--api_key", "x"], "--api-key: every user sees"),
        ([MODEL, "--", "--api-k", "x"], "--api-key: every user sees"),
        ([MODEL, "--", "--port", "9"], "--port belongs before the --"),
    ],
)
def test_mistakes_are_one_line(become, capfd, arguments, fault):
    code, options, _ = become(*arguments)
    said = capfd.readouterr().err
    assert code == 2 and options is None
    assert said.count("\n") == 1
    assert re.search(fault, said), said


@pytest.mark.parametrize("wrong", [["--port", "0"], ["--gpu-memory-utilization", "2"], ["--what"]])
def test_values_out_of_range(become, wrong):
    with pytest.raises(SystemExit) as end:
        become(MODEL, *wrong)
    assert end.value.code == 2


def test_a_taken_port_is_said_before_anything_loads(become, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        code, options, _ = become(MODEL, "--port", str(taken.getsockname()[1]))
    assert code == 2 and options is None
    assert "cannot listen there (Address already in use)" in capfd.readouterr().err


class Served:
    """A real server; `with Served(...) as served`."""

    def __init__(self, *arguments, key=""):
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "opdvr", "teacher", "serve", MODEL, "--port", str(self.port),
             *arguments],
            cwd=ROOT,
            env=os.environ | {"TEACHER_API_KEY": key, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def __enter__(self):
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if "ready at" in line:
                return self
        raise AssertionError("".join(lines))

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(20)

    def children(self):
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(child) for child in path.read_text().split()]


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pids, seconds=20):
    until = time.monotonic() + seconds
    while any(map(running, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    return not any(map(running, pids))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_server_scores_as_transformers_does_and_leaves_no_orphan():
    pytest.importorskip("vllm")
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    rng = np.random.default_rng(0)
    # 33 tokens twice, one block and one more than a block of the cache, the model's whole length.
    ids = [rng.integers(2, 29, size=n).astype(np.int32) for n in (33, 128, 129, 256)]
    work = [
        Sequence(i, x, 1 if i == 1 else 7, "any", f"row {i}") for i, x in enumerate([*ids, ids[0]])
    ]
    key = "sk-secret"
    small_batches = ("--", "--max-num-batched-tokens", "100")
    with Served("--max-model-len", "257", *small_batches, key=key) as served:
        url = f"http://127.0.0.1:{served.port}"
        with Running(url, top_k=5, vocabulary=29, key=key, timeout_s=60) as engine:
            found = engine.score(work, 60)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/v1/models")
        children = served.children()
        assert children
        served.process.send_signal(signal.SIGKILL)
        assert gone(children)
    model = AutoModelForCausalLM.from_pretrained(ROOT / MODEL, dtype=torch.float32)
    for sequence, scores in zip(work, found, strict=True):
        with torch.no_grad():
            logits = model(torch.from_numpy(sequence.token_ids.astype(np.int64))[None]).logits[0]
        rows = logits.log_softmax(-1).numpy()[sequence.response_start - 1 : -1]
        own = np.take_along_axis(rows, sequence.token_ids[sequence.response_start :, None], 1)
        np.testing.assert_allclose(scores.log_probs, own[:, 0], atol=1e-4)
        top = np.take_along_axis(rows, scores.top_ids, 1)
        np.testing.assert_allclose(scores.top_log_probs, top, atol=1e-4)
        np.testing.assert_allclose(top, -np.sort(-rows, 1)[:, :5], atol=1e-4)
    np.testing.assert_array_equal(found[0].log_probs, found[4].log_probs)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", [signal.SIGINT])  # SIGTERM: benchmarks.run engine
def test_a_signal_ends_a_real_server_and_its_children(end):
    pytest.importorskip("vllm")
    with Served() as served:
        children = served.children()
        served.process.send_signal(end)
        served.process.stdout.read()
        assert served.process.wait(30) in (0, 130)
        assert gone(children)
