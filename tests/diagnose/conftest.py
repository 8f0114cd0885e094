"""The command line in this process, with a sampler that needs no engine."""

from types import SimpleNamespace

import pytest
from diagnosing import DATA, MODELS, generate_here

from opdvr.demo.task import write_parquet
from opdvr.diagnose import rollouts
from opdvr.diagnose.command import main


@pytest.fixture
def data():
    if not DATA.exists():
        write_parquet(DATA.parent)
    return DATA


@pytest.fixture
def diagnose(capsys, monkeypatch, data, tmp_path):
    """diagnose(student, teacher, ...): exit code, stdout and stderr."""
    monkeypatch.setattr(rollouts, "generate", generate_here)

    def run(student, teacher, *options, file=data):
        capsys.readouterr()
        folders = [
            str(MODELS / name) if (MODELS / name).exists() else str(name)
            for name in (student, teacher)
        ]
        arguments = [*folders, str(file), "--device", "cpu", *map(str, options)]
        code = main(arguments)
        said = capsys.readouterr()
        return SimpleNamespace(code=code, out=said.out, err=said.err)

    return run
