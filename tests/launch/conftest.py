"""Runs the launchers as a user does, on a bare system."""

import subprocess
from pathlib import Path

import pytest
from launching import LAUNCHERS, ROOT, SYSTEM_PATH, Launch


def pytest_generate_tests(metafunc):
    if "launcher" in metafunc.fixturenames:
        metafunc.parametrize("launcher", LAUNCHERS)


@pytest.fixture
def launch(tmp_path):
    """launch(script, *arguments, cwd=, root=, VARIABLE=value...): a dry run on a bare system."""
    home = tmp_path / "home"
    home.mkdir()

    def run(script, *arguments, cwd=ROOT, root=ROOT, **variables):
        environment = {
            "PATH": SYSTEM_PATH,
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "DRY_RUN": "1",
            "OPDVR_DEVICE": "cuda",
            **variables,
        }
        command = ["bash", str(Path(root) / script), *arguments]
        return Launch(subprocess.run(command, cwd=cwd, env=environment, capture_output=True))

    run.home = home
    return run


@pytest.fixture
def executable(tmp_path):
    """executable(path, script): writes a shell script that can be run; path is under tmp_path."""

    def write(path, script):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"#!/usr/bin/env bash\n{script}\n")
        target.chmod(0o755)
        return target

    return write
