"""A handful of responses sampled and scored with the weights of a run; plain values come out.

On a GPU in a process of its own, so that the one that starts Ray holds no CUDA context:
`python -m opdvr.integration.preflight.rollout_measure JOB RESULT`, two files of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import stdev
from typing import Any

import torch

from opdvr.core import MethodSpec, add_sums, metrics_from_sums
from opdvr.diagnose.forward import Scored, Tokens
from opdvr.diagnose.numbers import end_numbers, token_numbers
from opdvr.diagnose.prompt_measure import ALL, PromptMeasure, end_sums, score_sums
from opdvr.integration.head import ScoringHead
from opdvr.integration.preflight.layouts import (
    largest_difference,
    pack,
    score_alone,
    score_packed,
)
from opdvr.integration.preflight.sides import first_line

# Of the GPU's free memory what a model's float32 weights may take; the rest is for its logits.
GPU_SHARE = 0.5
TOP_K = 16
_SEED = 0
_FIRST_TOKENS = "log_ratio_abs_mean_first"


@dataclass(frozen=True)
class ModelJob:
    """A model to load: its folder, whether its own code may run, bytes of its float32 weights."""

    folder: str
    trust: bool
    size: int
    ends: list[int]


@dataclass(frozen=True)
class Job:
    """What to sample and score; everything is computed in float32.

    Attributes:
        teacher: None where there is none here.
        prompts: token ids.
        top_k, top_p: of the sampling; top_k 0 or below is off.
        seconds: after which sampling stops.
        device: cpu or cuda.
    """

    student: ModelJob
    teacher: ModelJob | None
    prompts: list[list[int]]
    temperature: float
    teacher_temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    seconds: float
    device: str


@dataclass
class Measured:
    """What was found, by role where both models have it.

    Attributes:
        lengths, finished: tokens of each response; whether it has an end token.
        missing: names of weights that the folder lacks. failed: why a model does not load.
        skipped: why a model was not loaded. broken: roles with a log-prob that is no number.
        differences: `Difference` of the two layouts, as a dictionary.
        numbers: of the teacher on the student's responses; see `pair_numbers`.
        seconds: all of it.
    """

    lengths: list[int] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)
    missing: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    differences: dict[str, dict[str, float]] = field(default_factory=dict)
    numbers: dict[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0


@torch.no_grad()
def measure(job: Job) -> Measured:
    """Sample with the student, score with both; one model in memory at a time."""
    started = time.monotonic()
    found = Measured()
    rows: list[Tokens] = []
    ours: list[Scored] | None = None
    with _loaded("student", job.student, job.device, found) as model:
        if model is not None:
            rows, found.finished = sample(model, job)
            found.lengths = [len(response) for _, response in rows]
            ours = _score("student", model, rows, job, found)
        model = None  # else it would live as long as this function
    if ours is not None and job.teacher is not None:
        with _loaded("teacher", job.teacher, job.device, found) as model:
            theirs = None if model is None else _score("teacher", model, rows, job, found)
            model = None
        if theirs is not None:
            found.numbers = pair_numbers(ours, theirs, found.finished, job)
    found.seconds = time.monotonic() - started
    return found


def _load(role: str, job: ModelJob, device: str, found: Measured) -> torch.nn.Module | None:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        if job.size > GPU_SHARE * free:
            found.skipped[role] = (
                f"its weights take {job.size / 2**30:.1f} GiB in float32, more than "
                f"{GPU_SHARE:.0%} of the {free / 2**30:.1f} GiB that the GPU has free"
            )
            return None
    try:
        model, information = AutoModelForCausalLM.from_pretrained(
            job.folder,
            dtype=torch.float32,
            attn_implementation="sdpa",
            trust_remote_code=job.trust,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as reason:
        found.failed[role] = first_line(reason)
        return None
    missing = sorted(information["missing_keys"])
    if missing:
        found.missing[role] = missing
        return None
    return model.to(device).eval()


@contextmanager
def _loaded(
    role: str, job: ModelJob, device: str, found: Measured
) -> Iterator[torch.nn.Module | None]:
    """The model, whose memory is free afterwards if the caller keeps none."""
    model = _load(role, job, device, found)
    yield model
    if model is not None:
        # `ScoringHead` and the layer hold each other; a collection would take 0.3 s on a CPU.
        vars(model.get_output_embeddings()).pop("forward", None)
    del model
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def sample(model: torch.nn.Module, job: Job) -> tuple[list[Tokens], list[bool]]:
    """(prompt, response) of each prompt, the end token included, and whether there is one."""
    from transformers import GenerationConfig

    # What the folder says of sampling is not what the run does.
    model.generation_config = GenerationConfig()
    width = max(map(len, job.prompts))
    ids = torch.zeros(len(job.prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(job.prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    devices = [torch.cuda.current_device()] if job.device == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_SEED)
        generated = model.generate(
            ids.to(job.device),
            attention_mask=mask.to(job.device),
            do_sample=True,
            temperature=job.temperature,
            top_p=job.top_p,
            top_k=max(0, job.top_k),
            max_new_tokens=job.max_new_tokens,
            max_time=job.seconds,
            pad_token_id=0,
            eos_token_id=job.student.ends or None,
            remove_invalid_values=True,  # what is no number shows in the scores
        )
    ends = set(job.student.ends)
    rows, finished = [], []
    for prompt, tokens in zip(job.prompts, generated[:, width:].tolist(), strict=True):
        length = next((i + 1 for i, token in enumerate(tokens) if token in ends), None)
        rows.append((tuple(prompt), tuple(tokens[:length])))
        finished.append(length is not None)
    return rows, finished


def _score(
    role: str, model: torch.nn.Module, rows: Sequence[Tokens], job: Job, found: Measured
) -> list[Scored] | None:
    """In both layouts, which are compared; None where ids or numbers do not allow it."""
    width = model.get_input_embeddings().num_embeddings
    if max(max(*prompt, *response) for prompt, response in rows) >= width:
        found.skipped[role] = f"it has {width} ids, fewer than the student sampled"
        return None
    temperature = job.temperature if role == "student" else job.teacher_temperature
    row = pack(rows).to(job.device)
    ends = [end for end in _all_ends(job) if end < width]
    scores = score_packed(
        model, ScoringHead(model, None), row, temperature, ends, min(TOP_K, width)
    )
    if not all(scored.logprobs.isfinite().all() for scored in scores):
        found.broken.append(role)
        return None
    alone = score_alone(model, rows, temperature, job.device)
    packed = [scored.logprobs for scored in scores]
    found.differences[role] = asdict(largest_difference(packed, alone))
    return scores


def _all_ends(job: Job) -> list[int]:
    theirs = job.teacher.ends if job.teacher else []
    return sorted({*job.student.ends, *theirs})


def pair_numbers(
    student: Sequence[Scored], teacher: Sequence[Scored], finished: Sequence[bool], job: Job
) -> dict[str, float | None]:
    """Means over the student's tokens (`token_numbers`) and ends (`end_numbers`) in one dictionary.

    Beside them log_ratio_abs_mean_first: over the first five tokens of each response, nats; and
    agreement_error: two standard errors of the agreement by the spread of the responses (0 of one).
    No verdict is asked for: the numbers of the gate mean nothing here.
    """
    widths = min(len(scores[0].end_logprobs) for scores in (student, teacher))
    ends = _all_ends(job)[:widths]  # rising, so those beyond a model's ids are the last
    measures = []
    for place, (ours, theirs) in enumerate(zip(student, teacher, strict=True)):
        pair = tuple([s._replace(end_logprobs=s.end_logprobs[:widths])] for s in (ours, theirs))
        done, length = [finished[place]], [len(ours.logprobs)]
        measures.append(
            PromptMeasure(
                key=str(place),
                row=place,
                student_correct=[False],
                teacher_correct=[False],
                student_tokens=length,
                teacher_tokens=length,
                student_finished=done,
                teacher_finished=done,
                sums=score_sums(*pair, [False], MethodSpec()),
                ends=end_sums(*pair, done, ends, job.student.ends, job.teacher.ends),
            )
        )
    sums = add_sums(measure.sums[ALL] for measure in measures)
    first = metrics_from_sums(sums).get(f"opd/{_FIRST_TOKENS}")
    by_response = [token_numbers([measure])["agreement"] for measure in measures]
    count = len(by_response)
    error = 2 * stdev(by_response) / count**0.5 if count > 1 else 0.0
    numbers = token_numbers(measures) | end_numbers(measures)
    return numbers | {_FIRST_TOKENS: first, "agreement_error": error}


def to_job(values: dict[str, Any]) -> Job:
    """The job whose `asdict` this is."""
    models = {
        role: ModelJob(**values[role]) if values[role] else None for role in ("student", "teacher")
    }
    return Job(**{**values, **models})


def main(arguments: Sequence[str]) -> None:
    """Reads the job's file, writes the result's."""
    job, result = map(Path, arguments)
    found = measure(to_job(json.loads(job.read_text())))
    result.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
