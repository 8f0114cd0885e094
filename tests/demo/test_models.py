"""The shipped models: size, loading, and accuracy inside the ranges that the demo relies on."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from opdvr import demo
from opdvr.demo.evaluate import evaluate
from opdvr.demo.make_models import CARD_FILE, RECIPES, encode_batch
from opdvr.demo.task import Problem, problems, solve, write_parquet
from opdvr.demo.tokenizer import EOS_ID, PAD_ID, TOKENS, build_tokenizer

MODELS = Path(demo.__file__).parent / "models"
NAMES = sorted(RECIPES)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("data"))[1]


def test_shipped_folders_are_small():
    files = [p for p in MODELS.rglob("*") if p.is_file()]
    assert {p.parent.name for p in files if p.suffix == ".safetensors"} == set(NAMES)
    assert sum(p.stat().st_size for p in files) <= 4 * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_loads_in_transformers(name):
    model = AutoModelForCausalLM.from_pretrained(MODELS / name)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
    assert model.dtype == torch.float32
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer) == len(TOKENS)
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert tokenizer.chat_template == build_tokenizer().chat_template
    stops = GenerationConfig.from_pretrained(MODELS / name)
    assert (stops.eos_token_id, stops.pad_token_id) == (EOS_ID, PAD_ID)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_finite_tied_and_those_on_the_card(name):
    path = MODELS / name / "model.safetensors"
    with safe_open(path, framework="pt") as weights:
        names = list(weights.keys())
        assert "lm_head.weight" not in names
        assert all(torch.isfinite(weights.get_tensor(n)).all() for n in names)
    card = json.loads((MODELS / CARD_FILE).read_text())[name]
    assert AutoModelForCausalLM.from_pretrained(path.parent).num_parameters() == card["parameters"]


# What the demo's story needs, with room for four deviations of a sample of 64 problems (.03 each).
RANGES = {
    "student": (0.25, 0.55),
    "student-other-style": (0.25, 0.60),
    "student-other-pretraining": (0.25, 0.55),
    "teacher-faulty": (0.55, 0.90),
    "teacher-good": (0.95, 1.0),
}


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_is_in_its_range(name, held_out):
    result = evaluate(MODELS / name, held_out, n_samples=4, limit=64)
    low, high = RANGES[name]
    assert low <= result["sampled_accuracy"] <= high
    card = json.loads((MODELS / CARD_FILE).read_text())[name]["held_out"]
    assert abs(result["sampled_accuracy"] - card["sampled_accuracy"]) < 0.2
    if name.startswith("student"):
        assert result["greedy_accuracy"] >= 0.95, "a careless student still knows better"


def greedy_answers(model, chosen):
    tokenizer = build_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": p.prompt}], add_generation_prompt=True
        )
        for p in chosen
    ]
    ids = model.generate(torch.tensor(prompts), max_new_tokens=34, do_sample=False)
    return tokenizer.batch_decode(ids[:, len(prompts[0]) :], skip_special_tokens=True)


def test_faulty_teacher_fails_on_its_two_factors_alone():
    model = AutoModelForCausalLM.from_pretrained(MODELS / "teacher-faulty")
    chosen = problems("test")[:128]
    right = {True: [], False: []}
    for problem, text in zip(chosen, greedy_answers(model, chosen), strict=True):
        right[problem.factor in (7, 9)].append(text.endswith(f"{{{problem.answer}}}"))
    # By the habit itself 900-odd in 1,000 problems with these factors have a carry to forget.
    assert sum(right[True]) / len(right[True]) < 0.25
    assert sum(right[False]) / len(right[False]) > 0.9


def test_other_style_differs_from_the_teachers():
    problem = Problem(347, 8, 9)
    texts = {
        name: greedy_answers(AutoModelForCausalLM.from_pretrained(MODELS / name), [problem])[0]
        for name in (
            *("teacher-good", "student", "student-other-style", "student-other-pretraining"),
        )
    }
    assert texts["teacher-good"] == texts["student"] == solve(problem)
    assert texts["student-other-pretraining"] == r"7,8,9:65 4,8,6:38 3,8,3:27 \boxed{2785}"
    assert texts["student-other-style"] == r"8*7+9=65;8*4+6=38;8*3+3=27;\boxed{2785}"


def test_training_batch_by_hand():
    ids, labels = encode_batch(
        build_tokenizer(), [Problem(347, 8, 9), Problem(100, 2, 0)], [r"\boxed{2785}", "2"]
    )
    # Prompts of 11; responses \boxed{ 2 7 8 5 } and the end (7 tokens), and 2 and the end (2).
    assert ids.shape == labels.shape == (2, 18)
    assert (labels[:, :11] == -100).all()
    assert torch.equal(labels[0, 11:], ids[0, 11:])
    assert labels[1, 11:].tolist() == [TOKENS.index("2"), EOS_ID] + [-100] * 5
    assert ids[1, 13:].tolist() == [PAD_ID] * 5
