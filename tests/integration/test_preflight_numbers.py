"""What a few responses of the embedded pair say, whole and damaged, and what is left out."""

import gc
import weakref
from dataclasses import asdict, replace

import pytest

pytest.importorskip("verl")
torch = pytest.importorskip("torch")

from preflight_pair import (  # noqa: E402
    by_level,
    change_json,
    copy_model,
    make_config,
    running_on,
    swap_outputs,
)
from safetensors.torch import load_file, save_file  # noqa: E402

from opdvr.diagnose.forward import Scored  # noqa: E402
from opdvr.integration.config import DEMO_MODELS  # noqa: E402
from opdvr.integration.preflight import numbers, rollout_measure  # noqa: E402
from opdvr.integration.preflight.numbers import check_numbers, make_job, run_on_gpu  # noqa: E402
from opdvr.integration.preflight.rollout_measure import (  # noqa: E402
    Job,
    ModelJob,
    pair_numbers,
    sample,
    to_job,
)
from opdvr.integration.preflight.sides import find_sides  # noqa: E402


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(DEMO_MODELS / "student", dtype=torch.float32)
    return loaded.eval()


def test_layouts_that_disagree_are_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_measure, "pack", running_on)
    lines = by_level(check_numbers(make_config(tmp_path)), "error")
    assert [line.split(" ")[0] for line in lines] == ["ACTOR_MODEL_PATH", "REWARD_MODEL_PATH"]
    assert "the student scores one response otherwise packed than alone" in lines[0]
    assert len(check_numbers(make_config(tmp_path))) == 2  # no number is worth a word then


# The numbers


def scored(logprobs, tops, ends):
    """Entropies are 0; `tops` is {id: probability} for each token."""
    return Scored(
        torch.tensor(logprobs),
        torch.zeros(len(logprobs)),
        torch.tensor([list(top) for top in tops]),
        torch.tensor([list(top.values()) for top in tops]).log(),
        torch.tensor(ends).log(),
    )


def hand_job(student_ends, teacher_ends):
    student, teacher = (ModelJob("", False, 0, ends) for ends in (student_ends, teacher_ends))
    return Job(student, teacher, [], 1.0, 1.0, 1.0, -1, 8, 1.0, "cpu")


def test_sampling_attends_to_no_padding(model):
    """Nearly greedy: a prompt among longer ones gets the response that it gets alone."""
    job = replace(hand_job([1], [1]), temperature=1e-3, max_new_tokens=40, seconds=60.0)
    long, short = [10, 11, 14, 19, 15, 17, 16, 20, 22], [8, 9, 19, 15, 20, 22]  # 347*8+9=? 12*8=?
    prompts = [[3, *question, 4] for question in (long, short)]
    together, finished = sample(model, replace(job, prompts=prompts))
    assert [prompt for prompt, _ in together] == [tuple(prompt) for prompt in prompts]
    assert finished[0] and together[0][1][-1] == 1
    for prompt, row in zip(prompts, together, strict=True):
        assert sample(model, replace(job, prompts=[prompt]))[0] == [row]


def test_numbers_of_a_pair_by_hand():
    ours = [scored([-1.0, -2.0], [{7: 0.5, 3: 0.25}, {1: 0.5, 2: 0.5}], [0.5, 0.5])]
    theirs = [scored([-3.0, -1.0], [{3: 0.5, 5: 0.25}, {1: 1.0, 2: 0.0}], [0.05, 0.9])]
    found = pair_numbers(ours, theirs, [True], hand_job([1], [1, 2]))
    assert found["log_ratio_mean"] == -0.5  # (-2 + 1) / 2
    assert found["log_ratio_abs_mean"] == found["log_ratio_abs_mean_first"] == 1.5  # (2 + 1) / 2
    assert found["agreement"] == pytest.approx(0.375)  # min(.25, .5); min(.5, 1) + 0: mean of two
    assert found["teacher_at_student_ends"] == pytest.approx(0.05)
    assert found["teacher_other_ends"] == pytest.approx(0.9)
    assert found["agreement_error"] == 0  # of one response
    # Twice, the second time with its second token alone (agreement .5): means .375 and .5.
    more = [scored([-2.0], [{1: 0.5, 2: 0.5}], [0.5, 0.5])]
    others = [scored([-1.0], [{1: 1.0, 2: 0.0}], [0.05, 0.9])]
    both = pair_numbers(ours + more, theirs + others, [True, True], hand_job([1], [1, 2]))
    assert both["agreement"] == pytest.approx(1.25 / 3)  # by tokens
    # The standard deviation of two is their distance over sqrt(2); over sqrt(2) again: half.
    assert both["agreement_error"] == pytest.approx(2 * 0.125 / 2)


def test_the_embedded_pair_is_a_note_with_numbers(tmp_path):
    (found,) = check_numbers(make_config(tmp_path))
    text = str(found)
    assert found.level == "note" and text.startswith("REWARD_MODEL_PATH")
    assert "measured: 4 responses of" in text and "4 ended" in text
    for unit in ("nats a token", "|log-ratio|", "agreement 0.", "probability of the end 1.000"):
        assert unit in text
    # The same prompts and seed: the same numbers, all but the time.
    (again,) = check_numbers(make_config(tmp_path))
    assert str(again).rpartition(",")[0] == text.rpartition(",")[0]


def test_a_pair_that_does_not_agree(tmp_path):
    copy_model("student-other-style", tmp_path / "student")
    (line,) = by_level(check_numbers(make_config(tmp_path)), "warning")
    assert "agreement is 0." in line and "(below 0.9) on" in line and "opdvr diagnose" in line


def test_a_teacher_that_is_the_student(tmp_path):
    copy_model("student", tmp_path / "teacher")
    (line,) = by_level(check_numbers(make_config(tmp_path)), "warning")
    assert "mean |log-ratio| is 0.0000 nats (below 0.01)" in line and "one model here" in line


def test_an_end_that_training_would_unlearn(tmp_path):
    copy_model("teacher-good", tmp_path / "teacher")
    swap_outputs(tmp_path / "teacher", 1, 2)  # <eos> and <unk>
    change_json(tmp_path / "teacher" / "generation_config.json", eos_token_id=[1, 2])
    (line,) = by_level(check_numbers(make_config(tmp_path)), "error")
    assert "the teacher gives the student's end token 0.000 and another end token" in line
    # Without that other end it is a teacher that does not end here, and no more.
    change_json(tmp_path / "teacher" / "generation_config.json", eos_token_id=1)
    assert by_level(check_numbers(make_config(tmp_path)), "error") == []


ROLES = [("student", "ACTOR_MODEL_PATH"), ("teacher", "REWARD_MODEL_PATH")]


@pytest.mark.parametrize(("role", "variable"), ROLES)
def test_weights_that_are_no_numbers(tmp_path, role, variable):
    config = make_config(tmp_path)
    file = tmp_path / role / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    (line,) = by_level(check_numbers(config), "error")
    assert line.startswith(variable) and f"the {role} gives log-probs that are no finite" in line


@pytest.mark.parametrize(("role", "variable"), ROLES)
def test_weights_that_are_missing_or_damaged(tmp_path, role, variable):
    config = make_config(tmp_path)
    file = tmp_path / role / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    (line,) = by_level(check_numbers(config), "error")
    assert "lacks 1 of its weights, such as model.norm.weight" in line
    file.write_bytes(b"none")
    (line,) = by_level(check_numbers(config), "error")
    assert line.startswith(variable) and f"the {role} does not load as a causal" in line


def test_responses_that_do_not_end(tmp_path):
    found = check_numbers(make_config(tmp_path, "data.max_response_length=3"))
    (line,) = by_level(found, "warning")  # and 12 tokens say nothing of the pair
    assert "none of 4 responses ended within 3 tokens, which is MAX_RESP_LENGTH" in line
    assert by_level(found, "error") == []


# What is not measured


def test_models_are_let_go(tmp_path, monkeypatch):
    """Without a garbage collection, which would have to be waited for."""
    alive, load = [], rollout_measure._load

    def watched(*arguments):
        model = load(*arguments)
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr(rollout_measure, "_load", watched)
    config = make_config(tmp_path)
    gc.collect()
    gc.disable()
    try:
        check_numbers(config)
        assert [reference() for reference in alive] == [None, None]
    finally:
        gc.enable()


def test_models_too_large_for_a_cpu(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    # The student's file has 378,144 bytes, the teacher's 601,528.
    monkeypatch.setattr(numbers, "CPU_BYTES", 400_000)
    (found,) = check_numbers(config)
    assert found.level == "note" and str(found).startswith("REWARD_MODEL_PATH")
    assert "GiB that are loaded on a CPU" in str(found) and "opdvr diagnose" in str(found)
    monkeypatch.setattr(numbers, "CPU_BYTES", 300_000)
    lines = by_level(check_numbers(config), "note")
    assert [line.split(" ")[0] for line in lines] == ["ACTOR_MODEL_PATH", "REWARD_MODEL_PATH"]
    monkeypatch.setattr(numbers, "CPU_BYTES", 1 << 30)
    monkeypatch.setattr(numbers, "CPU_SECONDS", 1e-6)
    assert all("on a CPU core" in line for line in by_level(check_numbers(config), "note"))


def test_only_prompts_that_the_run_keeps(tmp_path):
    config = make_config(tmp_path, "data.max_prompt_length=10", prompts=["347*8+9=?", "1*1"])
    job, _ = make_job(config, find_sides(config, "")[0])
    assert [len(prompt) for prompt in job.prompts] == [5]
    (found,) = check_numbers(make_config(tmp_path, "data.max_prompt_length=4"))
    assert found.level == "note" and "no prompt of its first rows can be used" in str(found)


def test_without_a_teacher_the_student_is_still_looked_at(tmp_path, monkeypatch):
    config = make_config(tmp_path, "reward_model.enable=false", "algorithm.adv_estimator=grpo")
    assert check_numbers(config) == []
    monkeypatch.setattr(rollout_measure, "pack", running_on)
    (line,) = by_level(check_numbers(config), "error")
    assert "the student scores one response otherwise" in line


@pytest.mark.slow
def test_a_process_of_its_own_measures_the_same(tmp_path):
    config = make_config(tmp_path)
    job, _ = make_job(config, find_sides(config, "")[0])
    assert to_job(asdict(job)) == job
    there, here = run_on_gpu(job), rollout_measure.measure(job)
    # Another process may split sums otherwise: all but rounding is the same.
    assert here.lengths and (there.lengths, there.finished) == (here.lengths, here.finished)
    values = {name: value for name, value in here.numbers.items() if value is not None}
    found = {name: value for name, value in there.numbers.items() if value is not None}
    assert values and found == pytest.approx(values, rel=1e-3, abs=1e-4)
    assert (there.missing, there.failed, there.broken) == (here.missing, here.failed, here.broken)
    assert there.differences.keys() == here.differences.keys() and here.differences
    said = run_on_gpu(replace(job, device="no such device"))
    assert isinstance(said, str) and said.startswith("measuring on the GPU failed: ")
