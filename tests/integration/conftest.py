"""A machine that a test makes up: its environment, and an nvidia-smi that lists its GPUs."""

import os
from unittest import mock

import pytest

_READ = (
    "RAY_ADDRESS",
    "VLLM_PORT",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "VLLM_CPU_KVCACHE_SPACE",
    "WANDB_API_KEY",
    "WANDB_MODE",
)


@pytest.fixture
def bare_environment():
    """None of the variables that the checks read; what a test sets is undone."""
    with mock.patch.dict(os.environ):
        for name in _READ:
            os.environ.pop(name, None)
        yield


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """nvidia_smi(free, ...): GPUs of 80 GiB with that many GiB free; without any it is missing."""

    def fake(*free, code=0):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv("PATH", str(folder))
        if not free and not code:
            return
        lines = [f"{i}, GPU-{i}abc, {80 * 1024}, {gib * 1024}" for i, gib in enumerate(free)]
        script = folder / "nvidia-smi"
        # The shell's own echo: PATH holds nothing else.
        script.write_text("\n".join(["#!/bin/sh", *(f"echo '{x}'" for x in lines), f"exit {code}"]))
        script.chmod(0o755)

    return fake
