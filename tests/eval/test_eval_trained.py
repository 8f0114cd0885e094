"""A checkpoint's own run: what its validation did otherwise is said."""

import json

import pytest
import yaml
from evaluating import STUDENT, settings

from opdvr.eval import command
from opdvr.eval import trained as tr
from opdvr.eval.verdicts import Rules
from opdvr.integration.config import compose
from opdvr.report.redact import plain_config


@pytest.fixture
def run(tmp_path):
    """run(*overrides): the checkpoint of a run with that configuration."""

    def build(*overrides):
        from omegaconf import OmegaConf

        config = compose(["platform=cpu", "task=demo", *overrides])
        step = tmp_path / "run" / "global_step_2"
        (step / "actor").mkdir(parents=True)
        (step / "actor" / "huggingface").symlink_to(STUDENT)
        (step / "complete.json").write_text("{}")
        (tmp_path / "run" / "metrics.jsonl").write_text(
            json.dumps({"step": 2, "val-core/opdvr-demo/acc/mean@4": 0.625})
        )
        plain = plain_config(OmegaConf.to_container(config, resolve=True))
        (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(plain))
        return step

    return build


def validation(step, rules=None, **others):
    """The line under the table, of an evaluation with the trainer's sampling but for `others`."""
    said = []
    content = {
        "settings": settings(**{"max-tokens": 36} | others),
        "trainer_validation": tr.trainer_validation(str(step)),
        "trainer_settings": tr.trainer_settings(str(step), said.append),
    }
    assert said == []
    return tr.validation_line(content, rules or Rules())


def test_what_is_done_alike_needs_no_words(run):
    assert validation(run()) == "opdvr-demo acc/mean@4 0.625"


def test_what_is_sampled_otherwise_is_named_with_the_trainers_values(run):
    others = {"n": 16, "top-p": 0.95, "temperature": 0.7}
    line = "opdvr-demo acc/mean@4 0.625 (sampled otherwise: n 4, temperature 1, top-p 1)"
    step = run()
    assert validation(step, **others) == line
    line = "opdvr-demo acc/mean@4 0.625 (sampled otherwise: max-tokens 36, thinking off)"
    assert validation(step, **{"max-tokens": 8192, "thinking": True}) == line


def test_the_limit_of_validation_goes_before_that_of_training(run):
    step = run("opdvr.max_val_response_length=20")
    assert validation(step, **{"max-tokens": 20}).endswith("0.625")
    assert "max-tokens 20" in validation(step)


def test_another_verifier_is_named(run, tmp_path, monkeypatch):
    mine = tmp_path / "mine.py"
    step = run(f"opdvr.verifier={mine}:f")
    assert validation(step).endswith(f"0.625 (scored by {mine}:f)")
    # the same file by another path is the same verifier
    monkeypatch.chdir(tmp_path)
    assert validation(step, Rules("mine.py:f")).endswith("0.625")
    trainers = tr.trainer_settings(str(step), print)
    assert tr.verifier_line(trainers, Rules("mine.py:f")) is None
    line = tr.verifier_line(trainers, Rules())
    assert line == (
        f"the run was scored by {mine}:f; here opdvr.verifier:compute_score scores (as there: "
        f"--verifier {mine}:f)"
    )


def test_other_answer_forms_are_named(run):
    trainers = tr.trainer_settings(str(run("opdvr.answer_forms=any")), print)
    assert "(as there: --answer-forms any)" in tr.verifier_line(trainers, Rules())
    assert tr.verifier_line(trainers, Rules(answer_forms="any")) is None


def test_a_verifier_of_ones_own_after_ours_is_meant(run):
    trainers = tr.trainer_settings(str(run()), print)
    assert tr.verifier_line(trainers, Rules("mine.py:f")) is None
    assert tr.other_verifier(trainers, Rules("mine.py:f")) == Rules()


@pytest.mark.parametrize("content", ["a: [", "a: 1\n", "[]", "trainer:\n", "custom: null\n"])
def test_a_config_that_says_nothing_stops_nothing(run, content):
    step = run()
    (step.parent / "config.yaml").write_text(content)
    said = []
    assert tr.trainer_settings(str(step), said.append) is None
    (line,) = said
    assert "config.yaml does not say how its run validated" in line and "\n" not in line
    (step.parent / "config.yaml").unlink()
    assert tr.trainer_settings(str(step), said.append) is None and len(said) == 1
    assert tr.trainer_settings("owner/name", said.append) is None and len(said) == 1


def test_the_command_says_both(run, engine, arguments, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def f(**_row):\n    return 1.0\n")
    step = run(f"opdvr.verifier={tmp_path}/mine.py:f")
    assert command.main([*arguments, "--model", str(step)]) == 0
    said = capsys.readouterr()
    assert said.err.count("the run was scored by") == 1
    assert (
        "mean@4 0.625 (sampled otherwise: n 4, temperature 1, top-p 1, max-tokens 36;" in said.out
    )
    assert said.out.splitlines()[-1].endswith("mine.py:f)")
    assert "sampled otherwise" in (tmp_path / "out" / "results.md").read_text()
    assert command.main(["score", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.count("the run was scored by") == 1
    # an evaluation begun before this was written down
    path = tmp_path / "out" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "trainer_settings": None}))
    assert command.main(["score", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith("opdvr-demo acc/mean@4 0.625\n")
