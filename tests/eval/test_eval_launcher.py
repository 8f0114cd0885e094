"""eval.sh up to the command that it runs."""

import shlex

import evaluating
import pytest
from evaluating import ROOT

from opdvr.eval.options import read_sample_options


def dry_run(*arguments, **options):
    return evaluating.dry_run("eval.sh", *arguments, **options)


def test_arguments_arrive_as_they_are(tmp_path):
    given = ["--model", "a model, $HOME", "--data", "x.parquet", "--output", "o (1)"]
    done = dry_run(*given, cwd=tmp_path, OPDVR_DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    assert words[:2] == ["env", f"PYTHONPATH={ROOT}"]
    assert words[3:6] == ["-m", "opdvr", "eval"] and words[6:] == given


def test_without_arguments_the_embedded_student(tmp_path):
    from opdvr.integration.config import compose

    done = dry_run(cwd=tmp_path, OPDVR_DEVICE="cpu")
    assert "embedded student" in done.stderr
    options = read_sample_options(shlex.split(done.stdout)[6:])
    assert options.model == str(ROOT / "opdvr" / "demo" / "models" / "student")
    assert options.data == (str(ROOT / "datasets" / "demo-test.parquet"),)
    # as the embedded task's own validation
    config = compose(["platform=cpu", "task=demo"])
    trainers = config.actor_rollout_ref.rollout.val_kwargs
    assert (options.n, options.temperature, options.top_p, options.max_tokens) == (
        trainers.n,
        trainers.temperature,
        trainers.top_p,
        config.data.max_response_length,
    )


def test_without_arguments_on_a_gpu_the_options_are_asked_for():
    done = dry_run(OPDVR_DEVICE="cuda")
    assert shlex.split(done.stdout)[3:] == ["-m", "opdvr", "eval"]


@pytest.mark.parametrize("variables", [{"OPDVR_DEVICE": "tpu"}, {"DRY_RUN": "perhaps"}])
def test_mistakes_are_one_line(variables):
    done = dry_run("--model", "m", **{"OPDVR_DEVICE": "cpu", **variables})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("opdvr: ")


def test_it_runs_from_any_folder(tmp_path):
    (tmp_path / "with space").mkdir()
    done = dry_run("--help", cwd=tmp_path / "with space", OPDVR_DEVICE="cpu")
    assert shlex.split(done.stdout)[-2:] == ["eval", "--help"]
