"""The embedded task's teacher on the same tokens by every engine, each in a process of its own.

The reference is plain transformers in float32. In bfloat16 an engine differs from it by rounding;
what two engines differ by is the floor below which their log-ratios mean nothing.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import Result, device, note
from benchmarks.served import ServedTeacher
from opdvr.teacher.engines import Sequence

_MODELS = Path(__file__).resolve().parents[1] / "opdvr" / "demo" / "models"
TEACHER, STUDENT = str(_MODELS / "teacher-faulty"), str(_MODELS / "student")
ROWS, GROUP = 64, 4
DTYPES = ("float32", "bfloat16")


def run(quick: bool) -> list[Result]:
    """Largest and mean difference of the sampled tokens' log-probs, nats, by engine and dtype."""
    dtypes = DTYPES[:1] if quick else DTYPES
    engines = [(engine, dtype) for engine in ("fsdp", "vllm") for dtype in dtypes]
    engines += [] if quick else [("server", "float32")]
    reference = _apart("transformers", "float32")
    results = []
    found = {}
    for engine, dtype in engines:
        note(f"agreement: {engine}, {dtype}")
        found[engine, dtype] = _apart(engine, dtype)
        results += _differences(f"{engine}, {dtype}", found[engine, dtype] - reference)
    for dtype in dtypes:
        floor = found["vllm", dtype] - found["fsdp", dtype]
        results += _differences(f"vllm against fsdp, {dtype}", floor)
    return results


def _differences(case: str, difference: np.ndarray) -> list[Result]:
    absolute = np.abs(difference)
    return [
        Result(f"agreement, {case}", "largest difference", float(absolute.max()), "nats"),
        Result(f"agreement, {case}", "mean difference", float(absolute.mean()), "nats"),
    ]


def _apart(engine: str, dtype: str) -> np.ndarray:
    """Log-probs of all response tokens in order, from a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(score, (engine, dtype))


def score(engine: str, dtype: str) -> np.ndarray:
    """In the process of its own: [tokens] float32, nats."""
    from benchmarks.task_batch import sample

    batch = sample(STUDENT, ROWS, GROUP).tensors
    if engine == "transformers":
        return _by_transformers(batch)
    if engine == "fsdp":
        return _by_fsdp(batch, dtype)
    return _by_service(batch, engine, dtype)


def _by_transformers(batch: dict[str, torch.Tensor]) -> np.ndarray:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TEACHER, dtype=torch.float32).eval()
    width = batch["response_mask"].shape[1]
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "position_ids")}
    with torch.no_grad():
        log_p = model(**inputs).logits[:, -width - 1 : -1].float().log_softmax(-1)
    taken = log_p.gather(-1, batch["responses"][..., None]).squeeze(-1)
    return taken[batch["response_mask"].bool()].numpy()


def _by_fsdp(batch: dict[str, torch.Tensor], dtype: str) -> np.ndarray:
    from benchmarks import verl_workers

    verl_workers.start_process(None)
    worker = verl_workers.training_worker(
        TEACHER, verl_workers.MicroBatches(rows=ROWS), forward_only=True, dtype=dtype
    )
    log_probs, _ = verl_workers.score(worker, batch, with_entropy=False)
    return log_probs[batch["response_mask"].bool()].numpy()


def _by_service(batch: dict[str, torch.Tensor], engine: str, dtype: str) -> np.ndarray:
    from opdvr.teacher.engines import TeacherSettings, Wanted
    from opdvr.teacher.service import ScoringService

    width = batch["attention_mask"].shape[1]
    server = None
    if engine == "server":
        server = ServedTeacher(TEACHER)
        server.wait()
    urls = server.url if server else ""
    settings = TeacherSettings(TEACHER, device(), dtype, max_tokens=width, urls=urls)
    service = ScoringService(engine, settings, Wanted())
    sequences = sequences_of(batch)
    service.submit(sequences)
    collected = service.collect([sequence.key for sequence in sequences])
    service.close()
    if server:
        server.stop()
    return collected.scores["log_probs"]


def sequences_of(batch: dict[str, torch.Tensor]) -> list[Sequence]:
    """A padded batch as a teacher engine takes it."""
    mask, width = batch["attention_mask"].bool(), batch["response_mask"].shape[1]
    return [
        Sequence(
            key=row,
            token_ids=batch["input_ids"][row][mask[row]].numpy().astype(np.int32),
            response_start=int(mask[row, :-width].sum()),
            source="opdvr-demo",
            name=f"row {row}",
        )
        for row in range(len(mask))
    ]
