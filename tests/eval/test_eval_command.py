"""`opdvr eval` up to the engine: options, refusals, and scoring of samples that are there."""

import json

import pytest
from evaluating import ROOT, STUDENT, lines_of, row, write_data

from opdvr.eval import command, prepare
from opdvr.eval.options import read_sample_options
from opdvr.eval.samples import SAMPLES


def test_a_whole_evaluation(engine, arguments, tmp_path, capsys):
    assert command.main(arguments) == 0
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} >= {
        *("run.json", "samples.jsonl", "scored.jsonl", "problems.jsonl"),
        *("results.json", "results.md", "accuracy.png", "engine.log"),
    }
    results = json.loads((out / "results.json").read_text())
    # right on the first of two problems; wrong on the one of `other`; the mean over benchmarks
    assert results["benchmarks"]["opdvr-demo"]["avg"] == 0.5
    assert results["benchmarks"]["other"]["avg"] == 0.0
    assert results["mean"]["avg"] == 0.25
    assert results["benchmarks"]["other"]["truncated"] == 1.0
    assert results["benchmarks"]["opdvr-demo"]["pass"] == {"1": 0.5, "2": 0.5}
    table = capsys.readouterr().out
    assert table.strip() in (out / "results.md").read_text()
    assert table.startswith("Scored by opdvr.verifier:compute_score\n\n| benchmark")
    run = json.loads((out / "run.json").read_text())
    assert (run["verifier"], run["answer_forms"]) == ("opdvr.verifier:compute_score", "boxed")
    assert "| opdvr-demo " in table and "mean of benchmarks" in table
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    # what the engine was asked for
    assert engine.sampling.temperature == 0.7 and engine.sampling.top_p == 0.95
    assert engine.settings.dtype == "float32" and not engine.apart
    (requests,) = engine.asked
    assert [(r.prompt, r.sample) for r in requests] == [(p, s) for p in range(3) for s in range(2)]
    assert {r.max_tokens for r in requests} == {9}
    assert [r.seed for r in requests] == [s["seed"] for s in lines_of(out / SAMPLES)]


def test_interrupted_and_gone_on_with(engine, arguments, tmp_path, capsys):
    engine.stop_after = 4
    assert command.main(arguments) == 130
    error = capsys.readouterr().err
    assert "4 of 6 samples" in error and "python -m opdvr eval --model" in error
    first = lines_of(tmp_path / "out" / SAMPLES)
    with open(tmp_path / "out" / SAMPLES, "ab") as file:
        file.write(b'{"key": "opdvr')  # and killed
    engine.stop_after = None
    assert command.main(arguments) == 0
    lines = lines_of(tmp_path / "out" / SAMPLES)
    assert lines[:4] == first and len(lines) == 6
    assert len({(line["key"], line["sample"]) for line in lines}) == 6
    assert len(engine.asked[1]) == 2
    # finished: scores only
    assert command.main(arguments) == 0
    assert len(engine.asked) == 2


def test_scored_again_with_another_verifier(engine, arguments, tmp_path, capsys):
    assert command.main(arguments) == 0
    (tmp_path / "mine.py").write_text("def f(**_row):\n    return 1.0\n")
    out = str(tmp_path / "out")
    assert command.main(["score", out, "--verifier", f"{tmp_path}/mine.py:f"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["mean"]["avg"] == 1.0 and results["verifier"].endswith("mine.py:f")
    assert command.main(["score", out]) == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["mean"]["avg"] == 0.25
    capsys.readouterr()
    assert command.main(["compare", out, out]) == 0
    assert "0 better, 0 worse, 3 the same" in capsys.readouterr().out
    # half of it
    lines = (tmp_path / "out" / SAMPLES).read_text().splitlines(keepends=True)
    (tmp_path / "out" / SAMPLES).write_text("".join(lines[:3]))
    assert command.main(["score", out]) == 2
    assert "3 of 6 samples; first finish it with: python -m opdvr eval" in capsys.readouterr().err


def test_other_data_or_settings_are_refused(engine, arguments, data, tmp_path, capsys, monkeypatch):
    assert command.main(arguments) == 0
    assert command.main([*arguments, "--temperature", "0.5"]) == 2
    assert "begun with temperature 0.7, not 0.5" in capsys.readouterr().err
    # all that differ, before torch is imported to look for a GPU
    monkeypatch.delenv("OPDVR_DEVICE", raising=False)
    monkeypatch.delattr(prepare, "find_device")
    place = arguments.index("--device")
    anywhere = arguments[:place] + arguments[place + 2 :]
    assert command.main([*anywhere, "--temperature", "0.5", "--n", "3"]) == 2
    assert "with n 2, not 3; temperature 0.7, not 0.5; choose" in capsys.readouterr().err
    write_data(data, [row("12*3+4=?", "41")])
    assert command.main(arguments) == 2
    assert "begun with data" in capsys.readouterr().err
    assert command.main(["score", str(tmp_path / "out")]) == 2
    assert "changed since it was sampled" in capsys.readouterr().err
    assert len(engine.asked) == 1


def test_max_tokens_end_with_the_context(engine, arguments, capsys):
    assert command.main([*arguments, "--max-tokens", "5000"]) == 0
    assert capsys.readouterr().err.count("context is 256 tokens") == 1
    assert {len(r.token_ids) + r.max_tokens for r in engine.asked[0]} == {256}
    assert engine.settings.max_model_len == 256


def test_greedy_needs_no_seed(engine, arguments, tmp_path):
    assert command.main([*arguments, "--temperature", "0", "--n", "1"]) == 0
    assert {r.seed for r in engine.asked[0]} == {None}
    assert {line["seed"] for line in lines_of(tmp_path / "out" / SAMPLES)} == {None}


def test_the_trainers_figures_stand_beside_a_checkpoints(engine, arguments, tmp_path, capsys):
    step = tmp_path / "run" / "global_step_2"
    (step / "actor").mkdir(parents=True)
    (step / "actor" / "huggingface").symlink_to(STUDENT)
    (step / "complete.json").write_text("{}")
    metrics = [{"step": 1, "x": 1.0}, {"step": 2, "val-core/opdvr-demo/acc/mean@4": 0.625}]
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)))
    assert command.main([*arguments, "--model", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "the trainer's own validation: opdvr-demo acc/mean@4 0.625" in said.out
    assert "last complete checkpoint, global_step_2" in said.err
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["trainer_validation"] == {"opdvr-demo acc/mean@4": 0.625}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--n", "0"], "--n 0: give 1 or more"),
        (["--temperature", "0"], "would be copies"),
        (["--temperature", "nan"], "--temperature"),
        (["--top-p", "0"], "--top-p"),
        (["--limit", "-1"], "--limit"),
        (["--engines", "0"], "--engines"),
        (["--tensor-parallel", "2"], "needs GPUs"),
        (["--judge-url", "http://x/v1"], "needs --judge-model"),
        (["--verifier", "none.py:f"], "--verifier"),
        (["--judge-model", "nowhere"], "--judge-model: model folder not found: nowhere"),
        (["--verifier", "json:dumps", "--answer-forms", "any"], "--answer-forms"),
        (["--data", "none.parquet"], "not found: none.parquet"),
        (["--data", "AIME99"], "the benchmarks are AIME24, AIME25, AMC23"),
        (["--data", "opdvr"], "--data opdvr is a folder"),
        (["--data", "README.md"], "README.md"),
        (["--model", "nowhere"], "not found: nowhere (a model of the hub is named owner/name)"),
        (["--unknown"], "--unknown"),
    ],
)
def test_mistakes_are_one_line(engine, arguments, extra, message, capsys):
    assert command.main([*arguments, *extra]) == 2
    error = capsys.readouterr().err
    assert message in error.splitlines()[-1] and error.splitlines()[-1].startswith("opdvr eval: ")
    assert "Traceback" not in error and engine.asked == []


def test_a_model_without_a_tokenizer(engine, arguments, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).symlink_to(STUDENT / name)
    assert command.main([*arguments, "--model", str(tmp_path / "model")]) == 2
    assert "no tokenizer (tokenizer.json)" in capsys.readouterr().err


def test_a_folder_in_use_is_refused(engine, arguments, tmp_path, capsys):
    from opdvr.eval.samples import hold

    with hold(tmp_path / "out"):
        assert command.main(arguments) == 2
    assert "another process is evaluating" in capsys.readouterr().err


def test_defaults_are_the_trainers_validation():
    from opdvr.integration.config import compose

    options = read_sample_options(["--model", "m", "--data", "d"])
    config = compose([])
    trainers = config.actor_rollout_ref.rollout.val_kwargs
    assert (options.n, options.temperature, options.top_p) == (
        trainers.n,
        trainers.temperature,
        trainers.top_p,
    )
    assert options.max_tokens == config.data.max_response_length
    assert options.thinking is config.data.apply_chat_template_kwargs.enable_thinking


def test_the_embedded_tasks_file_is_made_where_it_is_missing(monkeypatch, tmp_path):
    from opdvr.eval import problems as pb

    monkeypatch.setattr(pb, "REPO_ROOT", tmp_path)
    (tmp_path / "datasets").mkdir()
    file = tmp_path / "datasets" / "demo-test.parquet"
    found, _, _ = pb.load_problems([str(file)], 5, own_verifier=True)
    assert len(found) == 5 and file.exists()
    assert ROOT != tmp_path
