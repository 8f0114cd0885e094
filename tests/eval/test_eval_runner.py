"""How requests are handed to engines: none lost, none twice, no engine idle while others wait."""

import os
import subprocess
import sys

import pytest

from opdvr.inference import EngineSettings, Request, environment
from opdvr.inference.runner import _drive


class Pool:
    """Engines that finish `speeds[name]` of their requests a report, in turn."""

    def __init__(self, speeds):
        self.names = list(range(len(speeds)))
        self.speeds = speeds
        self.held = {name: [] for name in self.names}
        self.under_way = []
        self.most_held = 0

    def start(self, name, requests):
        assert name not in self.under_way
        self.held[name] += requests
        self.most_held = max(self.most_held, len(self.held[name]))
        self.under_way.append(name)

    def wait(self):
        name = self.under_way.pop(0)
        count = self.speeds[name]
        done, self.held[name] = self.held[name][:count], self.held[name][count:]
        return name, done


def requests(count):
    return [Request(i, 0, (1,), 4) for i in range(count)]


@pytest.mark.parametrize("speeds", [[3], [1, 1], [5, 1, 2], [100, 100]])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 50])
def test_every_request_is_finished_once(speeds, count):
    pool = Pool(speeds)
    finished = list(_drive(pool, iter(requests(count)), capacity=4))
    assert sorted(r.prompt for r in finished) == list(range(count))
    assert pool.most_held <= 4


def test_few_requests_are_dealt_to_all_engines():
    pool = Pool([1, 1])
    list(_drive(pool, iter(requests(6)), capacity=100))
    assert pool.most_held == 3


def test_requests_are_read_as_they_are_needed():
    taken = []

    def lazily():
        for request in requests(100):
            taken.append(request.prompt)
            yield request

    completions = _drive(Pool([2]), lazily(), capacity=4)
    next(completions)
    assert len(taken) <= 4 + 2


def test_the_callers_environment_wins(monkeypatch):
    settings = EngineSettings("m", "cpu", "float32", 64, cpu_cache_gib=3)
    monkeypatch.setattr(environment, "usable_cores", lambda: 8)
    found = environment.variables(settings, engines=3)
    assert (found["OMP_NUM_THREADS"], found["VLLM_CPU_KVCACHE_SPACE"]) == ("2", "3")
    assert "CUDA_VISIBLE_DEVICES" not in environment.variables(
        EngineSettings("m", "cuda", "bfloat16", 64)
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    for name in found:
        if name != "OMP_NUM_THREADS":
            monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv(name, found[name])  # restored after the test
    environment.set_variables(settings)
    assert os.environ["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize("module", ["opdvr.inference", "opdvr.eval.command"])
def test_imports_are_light(module):
    code = (
        f"import sys, {module}; "
        "heavy = {'torch', 'vllm', 'ray', 'transformers', 'verl'} & set(sys.modules); "
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_padding_is_never_sampled():
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    from opdvr.inference.vocabulary import TOKENS_KEY, WithinTokenizer

    class Config:
        additional_config = {TOKENS_KEY: 3}

    processor = WithinTokenizer(Config, "cpu", False)
    logits = processor.apply(torch.tensor([[0.0, 1.0, 2.0, 9.0, 9.0]]))
    assert logits[0, :3].tolist() == [0.0, 1.0, 2.0]
    assert torch.isneginf(logits[0, 3:]).all()
    assert processor.is_argmax_invariant() is False


@pytest.mark.parametrize(
    ("cache_gib", "blocks"),
    [
        # 8 sequences of ceil(300 / 128) = 3 blocks, and one
        (1, 25),
        # 25 * 128 tokens * 2 * 2 layers * 1 head * 64 * 4 bytes = 3.3 MB do not fit into 0
        (0, None),
    ],
)
def test_cache_blocks_on_the_cpu(cache_gib, blocks):
    from opdvr.inference.engine import _cpu_blocks

    class Config:
        num_hidden_layers, num_key_value_heads, num_attention_heads, head_dim = 2, 1, 2, 64

    settings = EngineSettings("m", "cpu", "float32", 300, max_num_seqs=8, cpu_cache_gib=cache_gib)
    assert _cpu_blocks(settings, Config) == blocks


def test_engine_output_goes_to_the_log_and_ours_to_the_terminal(tmp_path):
    code = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from opdvr.inference.quiet import output_in\n"
        "print('before')\n"
        "try:\n"
        "    with output_in(Path(sys.argv[1])) as terminal:\n"
        "        print('python'); os.write(2, b'c code\\n'); subprocess.run(['echo', 'child'])\n"
        "        print('progress', file=terminal)\n"
        "        raise KeyError\n"
        "except KeyError:\n"
        "    print('after')\n"
    )
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "before\nafter\n"
    assert done.stderr == "progress\n"
    assert sorted(log.read_text().splitlines()) == ["c code", "child", "python"]


def test_a_full_disk_of_the_log_leaves_the_terminal_as_it_was():
    code = (
        "from pathlib import Path\n"
        "from opdvr.inference.quiet import output_in\n"
        "try:\n"
        "    with output_in(Path('/dev/full')):\n"
        "        print('engine')\n"
        "        raise KeyError\n"
        "except KeyError:\n"
        "    print('after')\n"
    )
    buffered = {name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=buffered
    )
    assert (done.stdout, done.stderr, done.returncode) == ("after\n", "", 0)
