"""Supervised training through verl's trainer: resumed runs, several ranks, LoRA, the model."""

import json
import os
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from running import ROOT, environment, log_tail, metrics

pytestmark = pytest.mark.slow
pytest.importorskip("verl")
torch = pytest.importorskip("torch")

STEPS = 6  # three epochs of two
STUDENT = ROOT / "opdvr" / "demo" / "models" / "student"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    from opdvr.demo.task import problems, solve

    folder = tmp_path_factory.mktemp("data")
    rows = [
        {
            "messages": [
                {"role": "user", "content": problem.prompt},
                {"role": "assistant", "content": solve(problem)},
            ],
            "enable_thinking": False,
        }
        for problem in problems("train")[:75]
    ]
    for name, part in (("train", rows[:64]), ("val", rows[64:])):
        pq.write_table(pa.Table.from_pylist(part), folder / f"{name}.parquet")
    return folder


def sft(folder, data, *overrides, fails=False):
    command = [
        *(sys.executable, "-m", "opdvr", "sft", "train", "platform=cpu", "task=demo"),
        f"data.train_files={data / 'train.parquet'}",
        f"data.val_files={data / 'val.parquet'}",
        f"model.path={STUDENT}",
        f"trainer.default_local_dir={folder}",
        f"trainer.experiment_name={folder.name}",
        "trainer.total_epochs=3",
        "trainer.save_freq=1",
        "trainer.max_ckpt_to_keep=null",
        *overrides,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment() | {"OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=500,
    )
    assert (done.returncode != 0) == fails, f"{done.stdout[-3000:]}\n{log_tail(folder)}"
    return done.stdout


def weights(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, sft(folder, data)


def test_a_run_ends_with_a_model_that_learnt(whole):
    folder, output = whole
    logged = metrics(folder)
    assert sorted(logged) == list(range(1, STEPS + 1))
    losses = [logged[step]["train/loss"] for step in sorted(logged)]
    assert losses[-1] < losses[0] / 2
    # 32 rows of 11 prompt tokens and 32 to 34 others.
    assert 32 * 40 < logged[1]["train/global_tokens"] < 32 * 46
    # Once an epoch, over all eleven held-out rows although they fill no batch.
    assert [step for step in logged if "val/loss" in logged[step]] == [2, 4, 6]
    assert "validation loss" in output and f"model: {folder / 'model'}" in output
    before, after = weights(STUDENT), weights(folder / "model")
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_the_losses_are_those_of_the_rows(whole, data):
    """The last validation loss against transformers: mean over the tokens of the answers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = whole
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    total, count = 0.0, 0
    for row in pq.read_table(data / "val.parquet").to_pylist():
        question, answer = (message["content"] for message in row["messages"])
        prompt = tokenizer(f"<|user|>{question}<|assistant|>").input_ids
        ids = torch.tensor([prompt + tokenizer(f"{answer}<eos>").input_ids])
        with torch.no_grad():
            logits = model(ids).logits[0].log_softmax(-1)
        places = range(len(prompt), ids.shape[1])
        total -= sum(logits[place - 1, ids[0, place]].item() for place in places)
        count += len(places)
    assert metrics(folder)[STEPS]["val/loss"] == pytest.approx(total / count, rel=1e-4)


@pytest.mark.parametrize("step", [2, 3], ids=["end of an epoch", "middle of an epoch"])
def test_an_interrupted_run_ends_with_the_same_model(whole, data, tmp_path, step):
    """As a kill leaves it after `step`, with a checkpoint that was being written."""
    folder = tmp_path / "resumed"
    shutil.copytree(whole[0], folder)
    shutil.rmtree(folder / "model")
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(folder / f"global_step_{later}")
    (folder / f"global_step_{step + 1}").mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step + 1))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"finished": False}))
    output = sft(folder, data)
    assert f"resuming from step {step}" in output
    assert f"step {step + 1}/{STEPS}" in output and f"step {step}/{STEPS}" not in output
    assert sorted(metrics(folder)) == list(range(1, STEPS + 1))
    expected, found = weights(whole[0] / "model"), weights(folder / "model")
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)


def test_a_run_killed_before_it_wrote_its_model(whole, data, tmp_path):
    folder = tmp_path / "killed"
    shutil.copytree(whole[0], folder)
    shutil.rmtree(folder / "model")
    output = sft(folder, data)
    assert "step 6 of 6 is done already; writing the model" in output
    assert json.loads((folder / "run.json").read_text())["finished"] is True
    expected, found = weights(whole[0] / "model"), weights(folder / "model")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_other_data_and_a_finished_run_are_not_gone_on_with(whole, data, tmp_path):
    folder = tmp_path / "finished"
    shutil.copytree(whole[0], folder)
    assert "already holds step 6 of 6" in sft(folder, data, fails=True)
    output = sft(folder, data, "data.max_length=44", "trainer.total_epochs=9", fails=True)
    assert "cannot resume" in output and "Traceback" not in output
    for other in ("model.lora_rank=4", f"model.path={STUDENT.with_name('student-other-style')}"):
        output = sft(folder, data, other, "trainer.total_epochs=9", fails=True)
        assert f"{other.split('=')[0]} changed" in output and "Traceback" not in output


def test_lora_on_two_ranks(data, tmp_path):
    """Adapter and merged model agree, and only the adapter's rank was added to the weights."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "lora"
    sft(folder, data, "model.lora_rank=4", "trainer.n_gpus_per_node=2", "trainer.total_epochs=2")
    assert metrics(folder)[4]["train/loss"] < metrics(folder)[1]["train/loss"]
    base = AutoModelForCausalLM.from_pretrained(STUDENT, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, folder / "lora_adapter").merge_and_unload()
    found = weights(folder / "model")
    assert found.keys() == before.keys()
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
    change = (
        found["model.layers.0.mlp.up_proj.weight"] - before["model.layers.0.mlp.up_proj.weight"]
    )
    assert 1 <= torch.linalg.matrix_rank(change, atol=1e-5) <= 4
    assert torch.equal(found["model.embed_tokens.weight"], before["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.train_batch_size=65"], "BATCH_SIZE (data.train_batch_size) is 65"),
        (["data.max_token_len_per_gpu=32"], "MAX_TOKEN_LEN_PER_GPU"),
        (["trainer.nnodes=2"], "NNODES"),
        (["trainer.save_freq=0"], "SAVE_FREQ (trainer.save_freq) is 0"),
        (["optim.lr=abc"], "ACTOR_LR (optim.lr) is 'abc'"),
        (["optim.lr=0"], "ACTOR_LR (optim.lr) is 0"),
        (["data.train_files=/none.parquet"], "`bash rollout.sh` makes it"),
        (["model.path=/none"], "student model folder not found"),
        (["data.messages_key=chat"], "no column 'chat'"),
        (["sft.model_dtype=float16"], "MODEL_DTYPE"),
        (["data.no_such=1"], "no_such"),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(data, tmp_path, capsys, overrides, message):
    from opdvr.integration.sft.launch import main

    arguments = ["platform=cpu", "task=demo", f"model.path={STUDENT}"]
    arguments += [f"data.train_files={data / 'train.parquet'}", "data.val_files=null"]
    arguments += [f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.experiment_name=run"]
    before = dict(os.environ)
    assert main([*arguments, *overrides]) == 2
    assert dict(os.environ) == before
    line = capsys.readouterr().err
    assert message in line and "Traceback" not in line
