"""Scoring as responses end, against scoring after the last: two engines, two processes.

Both are random models, the teacher some five times as costly a token. Lengths of responses come
from a log-normal distribution cut at the limit, as reasoning models have them.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.measure import Result, device, note, over_rounds
from benchmarks.random_model import Shape, write_random_model

PROMPT, LIMIT, ROWS = 16, 256, 48
# Of the logarithm of a length in tokens; a tenth of the responses is cut at the limit.
LOG_MEAN, LOG_DEVIATION = float(np.log(90)), 0.8
_STUDENT, _TEACHER = Shape(8_192, 256, 8), Shape(8_192, 512, 12)
_QUICK = Shape(512, 64, 1)


def run(folder: Path, quick: bool, rounds: int | None) -> list[Result]:
    """Seconds of generation and scoring together, and the share of scoring that was hidden."""
    rows, rounds = (8, 2) if quick else (ROWS, rounds or 5)
    student, teacher_shape = (_QUICK, _QUICK) if quick else (_STUDENT, _TEACHER)
    paths = [
        write_random_model(folder, "overlap-student", student),
        write_random_model(folder, "overlap-teacher", teacher_shape),
    ]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    teacher = context.Process(target=_serve, args=(paths[1], device(), there), daemon=True)
    teacher.start()
    rollout = _Rollout(paths[0], student.vocabulary, rows)
    assert here.recv() == "ready"
    seconds: dict[bool, list[float]] = {True: [], False: []}
    shares = []
    for number in range(rounds + 1):
        order = (True, False) if number % 2 else (False, True)
        lengths = _lengths(rows, number)
        for early in order:
            took, hidden = _step(rollout, here, lengths, early)
            if number:
                seconds[early].append(took)
                if early:
                    shares.append(hidden)
        note(f"overlap, round {number + 1} of {rounds + 1}")
    here.send(None)
    teacher.join()
    ratios = [late / early for early, late in zip(seconds[True], seconds[False], strict=True)]
    case = f"overlap, {rows} responses of up to {LIMIT} tokens"
    return [
        over_rounds(
            case, "generation and scoring", "s", seconds[True], "scoring after the last", ratios
        ),
        over_rounds(case, "share of scoring hidden", "", shares),
    ]


def _lengths(rows: int, seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(LOG_MEAN, LOG_DEVIATION, rows)
    return np.clip(drawn, 1, LIMIT).astype(int).tolist()


class _Rollout:
    """A vLLM engine that generates as many tokens as it is told."""

    def __init__(self, model: str, vocabulary: int, rows: int):
        from opdvr.inference.engine import engine_arguments
        from opdvr.inference.environment import set_variables
        from opdvr.inference.requests import EngineSettings

        settings = EngineSettings(model, device(), "float32", PROMPT + LIMIT, max_num_seqs=rows)
        set_variables(settings)
        from vllm import EngineArgs, LLMEngine

        self._llm = LLMEngine.from_engine_args(
            EngineArgs(**engine_arguments(settings), skip_tokenizer_init=True)
        )
        self._prompts = np.random.default_rng(7).integers(2, vocabulary, (rows, PROMPT))

    def generate(self, lengths: list[int]) -> object:
        """Yields (row, prompt and response ids) as each ends."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        for row, length in enumerate(lengths):
            parameters = SamplingParams(
                max_tokens=length,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            prompt = TokensPrompt(prompt_token_ids=self._prompts[row].tolist())
            self._llm.add_request(str(row), prompt, parameters)
        while self._llm.has_unfinished_requests():
            for output in self._llm.step():
                row = int(output.request_id)
                yield row, [*self._prompts[row].tolist(), *output.outputs[0].token_ids]


def _step(
    rollout: _Rollout, teacher: Connection, lengths: list[int], early: bool
) -> tuple[float, float]:
    """(seconds until every score is there, share of the teacher's busy time in generation)."""
    from opdvr.teacher.engines import Sequence

    started = time.perf_counter()
    held = []
    for row, ids in rollout.generate(lengths):
        sequence = Sequence(row, np.array(ids, dtype=np.int32), PROMPT, "random", f"row {row}")
        if early:
            teacher.send([sequence])
        else:
            held.append(sequence)
    if held:
        teacher.send(held)
    teacher.send(list(range(len(lengths))))
    busy_s, hidden_s = teacher.recv()
    return time.perf_counter() - started, hidden_s / busy_s


def _serve(model: str, device: str, pipe: Connection) -> None:
    """The teacher's process: sequences come in, at the end of a step their keys."""
    from opdvr.teacher.engines import TeacherSettings, Wanted
    from opdvr.teacher.service import ScoringService

    settings = TeacherSettings(model, device, "float32", PROMPT + LIMIT)
    service = ScoringService("vllm", settings, Wanted(with_entropy=True))
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        if isinstance(message[0], int):
            collected = service.collect(message)
            pipe.send((collected.busy_s, collected.hidden_s))
        else:
            service.submit(message)
    service.close()
