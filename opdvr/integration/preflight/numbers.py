"""Numbers measured with both models' weights before a run: a few responses, in seconds.

The student samples, both score; what a run computes must come out the same in two layouts, and what
`opdvr diagnose` measures on many prompts is seen here on a few. The weights are loaded one model
at a time: in this process on a CPU, in one of its own on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from opdvr.diagnose.tokenizers import end_ids
from opdvr.eval.models import Model
from opdvr.integration.config import REPO_ROOT
from opdvr.integration.preflight.finding import Finding, note
from opdvr.integration.preflight.numbers_meaning import DIAGNOSE, MAX_NEW_TOKENS, UNLOOKED, judge
from opdvr.integration.preflight.sides import (
    STUDENT,
    TEACHER,
    Side,
    find_sides,
    first_prompts,
    load_tokenizer,
    weight_files,
)
from opdvr.integration.preflight.templates import template_options, tokenised
from opdvr.integration.preflight.weights import read_shape

if TYPE_CHECKING:
    from opdvr.integration.preflight.rollout_measure import Job, Measured

PROMPTS = 4
# Rows looked through for prompts that the run would keep.
_ROWS = 64
# Sampling stops after so many seconds.
SAMPLING_SECONDS = {"cpu": 3.0, "cuda": 20.0}
# A process on the GPU that takes longer than this is given up.
GPU_SECONDS = 180
# On a CPU: weights on the disk, and arithmetic at a rate that one slow core has.
CPU_BYTES = 2 << 30
CPU_SECONDS = 10.0
_CPU_FLOPS = 2e10
_FLOAT32_BYTES = 4
# Forward passes over a sequence: sampling, packed, alone; of the teacher the last two.
_PASSES = {STUDENT: 3, TEACHER: 2}


def check_numbers(config: DictConfig) -> list[Finding]:
    """What a few responses say about this run.

    Findings: numbers in one note; two layouts that disagree, numbers that are none, end tokens that
    training would unlearn (errors); a pair that agrees too little or entirely (warnings). Models
    that are too large are left out, with a note; of those that are not here `check_tokens` has one.
    """
    findings: list[Finding] = []
    sides, _ = find_sides(config, UNLOOKED)  # what is not here `check_tokens` says
    for role, side in list(sides.items()):
        reason = _too_large(config, side)
        if reason:
            findings.append(note(str(side.option), reason, UNLOOKED, DIAGNOSE))
            del sides[role]
    if STUDENT not in sides:
        return findings
    job, problems = make_job(config, sides)
    findings += problems
    if job is None:
        return findings
    measured = run_on_gpu(job) if job.device == "cuda" else run_here(job)
    if isinstance(measured, str):
        findings.append(note(str(sides[STUDENT].option), measured, UNLOOKED, DIAGNOSE))
    else:
        findings += judge(measured, job, sides)
    return findings


def _too_large(config: DictConfig, side: Side) -> str | None:
    """Why a model is not loaded on a CPU; on a GPU the process there looks at its memory."""
    if config.trainer.device != "cpu":
        return None
    size = sum(file.stat().st_size for file in weight_files(side.folder))
    if size > CPU_BYTES:
        return (
            f"the {side.role}'s weights are {size / 2**30:.1f} GiB, above the "
            f"{CPU_BYTES / 2**30:g} GiB that are loaded on a CPU"
        )
    tokens = PROMPTS * (config.data.max_prompt_length + _new_tokens(config))
    seconds = 2 * _parameters(side) * tokens * _PASSES[side.role] / _CPU_FLOPS
    if seconds > CPU_SECONDS:
        return f"the {side.role} would take about {seconds:.0f} s on a CPU core for {tokens} tokens"
    return None


def _parameters(side: Side) -> int:
    try:
        shape = read_shape(side.folder)
    except ValueError:  # damaged: loading it says so
        return 0
    return shape.parameters if shape else 0


def _new_tokens(config: DictConfig) -> int:
    return min(config.data.max_response_length, MAX_NEW_TOKENS)


def make_job(config: DictConfig, sides: dict[str, Side]) -> tuple[Job | None, list[Finding]]:
    """The first prompts that the run would keep, in token ids, and how to sample and score."""
    from opdvr.integration.preflight.rollout_measure import Job, ModelJob

    tokenizers: dict[str, Any] = {}
    for role, side in sides.items():
        tokenizer, problem = load_tokenizer(side)
        if problem is None:
            tokenizers[role] = tokenizer
    tokenizer = tokenizers.get(STUDENT)
    if tokenizer is None or tokenizer.chat_template is None:
        return None, []  # `check_tokens` says so
    rows = tokenised(tokenizer, first_prompts(config, _ROWS), template_options(config))
    prompts = [ids for _, ids in rows if 0 < len(ids) <= config.data.max_prompt_length][:PROMPTS]
    if not prompts:
        where, what = "TRAIN_DATASET (data.train_files)", "no prompt of its first rows can be used"
        return None, [note(where, what, "nothing was measured")]
    models = {
        role: ModelJob(
            str(side.folder),
            side.trust,
            _parameters(side) * _FLOAT32_BYTES,
            end_ids(Model(role, side.folder), tokenizers[role]),
        )
        for role, side in sides.items()
        if role in tokenizers
    }
    rollout, device = config.actor_rollout_ref.rollout, config.trainer.device
    job = Job(
        student=models[STUDENT],
        teacher=models.get(TEACHER),
        prompts=prompts,
        temperature=float(rollout.temperature),
        teacher_temperature=float(config.opdvr.teacher_temperature),
        top_p=float(rollout.top_p),
        top_k=int(rollout.top_k),
        max_new_tokens=_new_tokens(config),
        seconds=SAMPLING_SECONDS[device],
        device=device,
    )
    return job, []


def run_here(job: Job) -> Measured:
    """In this process."""
    from opdvr.integration.preflight.rollout_measure import measure

    return measure(job)


def run_on_gpu(job: Job) -> Measured | str:
    """In a process of its own; in words what stopped it."""
    from opdvr.integration.preflight.rollout_measure import Measured

    with tempfile.TemporaryDirectory(prefix="opdvr-preflight-") as folder:
        files = Path(folder) / "job.json", Path(folder) / "result.json"
        files[0].write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", "opdvr.integration.preflight.rollout_measure"]
        path = os.pathsep.join(filter(None, (str(REPO_ROOT), os.environ.get("PYTHONPATH"))))
        try:
            done = subprocess.run(
                [*command, *map(str, files)],
                env=os.environ | {"PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=GPU_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"measuring on the GPU took more than {GPU_SECONDS} s and was stopped"
        if done.returncode or not files[1].is_file():
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            return f"measuring on the GPU failed: {last}"
        return Measured(**json.loads(files[1].read_text()))
