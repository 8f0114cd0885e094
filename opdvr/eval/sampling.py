"""Makes the samples that are missing, and appends each to samples.jsonl as it finishes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

from opdvr.eval.jsonl import LineWriter
from opdvr.eval.prepare import Evaluation
from opdvr.eval.progress import Progress
from opdvr.eval.samples import SAMPLES, sample_of
from opdvr.inference import generate
from opdvr.inference.quiet import output_in

ENGINE_LOG = "engine.log"


def sample(evaluation: Evaluation, say: Callable[[str], None], apart: bool = False) -> None:
    """Sample what is missing; `apart` frees the model's memory at the end (see `generate`).

    Everything that vLLM and Ray print goes to engine.log.
    """
    total = len(evaluation.problems) * evaluation.n
    missing = len(evaluation.requests)
    if missing < total:
        say(f"{total - missing:,} of {total:,} samples are there already")
    if not missing:
        return
    engines = "1 engine" if evaluation.engines == 1 else f"{evaluation.engines} engines"
    say(f"sampling {missing:,} completions: starting {engines} on {evaluation.settings.device}")
    started = time.monotonic()
    seeds = {(r.prompt, r.sample): r.seed for r in evaluation.requests}
    with (
        output_in(evaluation.folder / ENGINE_LOG) as terminal,
        LineWriter(evaluation.folder / SAMPLES) as file,
    ):
        progress = Progress(terminal, total, total - missing)

        def ready() -> None:
            print(f"opdvr eval: ready after {time.monotonic() - started:.0f} s", file=terminal)
            progress.start()

        completions = generate(
            evaluation.settings,
            evaluation.sampling,
            evaluation.requests,
            evaluation.engines,
            apart,
            ready,
        )
        for completion in completions:
            problem = evaluation.problems[completion.prompt]
            seed = seeds[completion.prompt, completion.sample]
            file.append(asdict(sample_of(problem, completion, seed)))
            progress.add(len(completion.token_ids))
        progress.finish()
