"""Small scores and measures by hand, and a sampler that needs no engine."""

import math
from pathlib import Path

import torch

from opdvr.diagnose.forward import Scored
from opdvr.diagnose.prompt_measure import PARTS, PromptMeasure
from opdvr.inference import Completion

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "opdvr" / "demo" / "models"
DATA = ROOT / "datasets" / "demo-test.parquet"
EOS = 1


def logs(rows):
    return torch.tensor(rows).log()


def scored(probabilities, tops, entropy=None, ends=()):
    """Scores of a response: its tokens' probabilities and, at each, {id: probability}."""
    return Scored(
        logprobs=logs(probabilities),
        entropy=torch.tensor(entropy or [0.0] * len(probabilities)),
        top_ids=torch.tensor([list(top) for top in tops]),
        top_logprobs=logs([list(top.values()) for top in tops]),
        end_logprobs=logs(list(ends)) if ends else torch.zeros(0),
    )


def measure(row=0, student=(True, False), teacher=(True, True), tokens=10, **others):
    """A prompt's measure with means as asked for: agreement, overlap, log_ratio, log_ratio_abs."""
    means = {"agreement": 0.97, "overlap_ratio": 0.8, "log_ratio": -0.3, "log_ratio_abs": 0.4}
    means |= {name: others.pop(name) for name in means if name in others}
    sums = {name: mean * tokens for name, mean in means.items()}
    sums |= {"valid_tokens": tokens, "overlap_tokens": tokens, "entropy": 1.0}
    sums |= {"teacher_entropy": 2.0, "nonzero_tokens": tokens, "zeroed_tokens": tokens / 2}
    ends = {
        "finished": 2.0,
        "student_ends": 1.9,
        "teacher_at_student_ends": 1.8,
        "teacher_ends": 1.8,
        "teacher_other_ends": 0.0,
    }
    return PromptMeasure(
        key=f"demo:{row}",
        row=row,
        student_correct=list(student),
        teacher_correct=list(teacher),
        student_tokens=[tokens // 2] * len(student),
        teacher_tokens=[tokens // 2] * len(teacher),
        student_finished=[True] * len(student),
        teacher_finished=[True] * len(teacher),
        sums={part: dict(sums) for part in PARTS},
        ends={**ends, **others.pop("ends", {})},
    )


def generate_here(settings, sampling, requests, apart=False):
    """Stands in for vLLM: samples with transformers, in one batch padded on the left."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert apart and sampling.temperature == 1.0 and settings.device == "cpu"
    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    width = max(len(request.token_ids) for request in requests)
    rows = [(0,) * (width - len(r.token_ids)) + r.token_ids for r in requests]
    kept = [[0] * (width - len(r.token_ids)) + [1] * len(r.token_ids) for r in requests]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = model.generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(kept),
            do_sample=True,
            top_k=0,
            max_new_tokens=36,
            pad_token_id=0,
            eos_token_id=EOS,
        )
    # Back to front: the order of completions is nobody's promise.
    for request, row in reversed(list(zip(requests, found[:, width:].tolist(), strict=True))):
        ends = EOS in row
        ids = row[: row.index(EOS) + 1] if ends else row
        text = tokenizer.decode(ids, skip_special_tokens=True)
        finish = "stop" if ends else "length"
        yield Completion(request.prompt, request.sample, tuple(ids), text, finish)


def close(value, expected, tolerance=1e-6):
    return math.isclose(value, expected, abs_tol=tolerance)
