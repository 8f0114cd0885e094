"""rollout.sh up to the command that it runs."""

import shlex

import evaluating
from rolling import ROOT, TEACHER

from opdvr.sft.rollout_options import read_rollout_options


def dry_run(*arguments, **options):
    return evaluating.dry_run("rollout.sh", *arguments, **options)


def test_arguments_arrive_as_they_are(tmp_path):
    given = ["--model", "a model, $HOME", "--data", "x.parquet", "--output", "o (1)"]
    done = dry_run(*given, cwd=tmp_path, OPDVR_DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    assert words[3:7] == ["-m", "opdvr", "sft", "rollout"] and words[7:] == given


def test_without_arguments_the_embedded_teacher(tmp_path):
    done = dry_run(cwd=tmp_path, OPDVR_DEVICE="cpu")
    assert "embedded teacher" in done.stderr
    options = read_rollout_options(shlex.split(done.stdout)[7:])
    assert options.model == str(TEACHER) and options.limit == 512
    assert options.data == (str(ROOT / "datasets" / "demo-train.parquet"),)
    assert (options.temperature, options.max_tokens) == (1.0, 36)
    assert options.output == ROOT / "rollouts" / "demo"


def test_without_arguments_on_a_gpu_the_options_are_asked_for():
    done = dry_run(OPDVR_DEVICE="cuda")
    assert shlex.split(done.stdout)[3:] == ["-m", "opdvr", "sft", "rollout"]
