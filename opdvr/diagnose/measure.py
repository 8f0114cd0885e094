"""Rollouts of a student and a teacher, and both models' scores of the student's."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opdvr.core import MethodSpec, NonFiniteError
from opdvr.diagnose.forward import Scored, Scoring, score_responses
from opdvr.diagnose.options import Measuring
from opdvr.diagnose.prompt_measure import PromptMeasure, end_sums, score_sums
from opdvr.diagnose.rollouts import Rollout, Sampler, roll_out, sample_with_vllm
from opdvr.diagnose.tokenizers import end_ids
from opdvr.eval.models import Model, resolve
from opdvr.eval.prepare import find_device, load_tokenizer
from opdvr.eval.problems import Problem, load_problems
from opdvr.eval.verdicts import Verifier, load_verifier, rules_of
from opdvr.inference.quiet import output_in

Say = Callable[[str], None]


@dataclass(frozen=True)
class Pair:
    """A student and a teacher with one id-to-token map, up to `vocabulary`."""

    student: Model
    teacher: Model
    student_tokenizer: Any
    teacher_tokenizer: Any
    vocabulary: int

    @property
    def end_ids(self) -> tuple[list[int], list[int]]:
        """The ids that end a response of the student's, and of the teacher's."""
        return (
            end_ids(self.student, self.student_tokenizer),
            end_ids(self.teacher, self.teacher_tokenizer),
        )


def find_models(student: str, teacher: str, say: Say) -> tuple[Model, Model]:
    """Both models' folders.

    Raises:
        ValueError: not found, or no weights.
    """
    # Merged weights of a checkpoint that cannot be written to go to the current folder.
    found = [
        resolve(text, Path(), say, role)
        for role, text in (("STUDENT", student), ("TEACHER", teacher))
    ]
    return found[0], found[1]


def load_pair(student: Model, teacher: Model, vocabulary: int) -> Pair:
    """Both tokenizers.

    Raises:
        ValueError: one does not load.
    """
    tokenizers = []
    for role, model in (("STUDENT", student), ("TEACHER", teacher)):
        with _named("--model", role):
            tokenizers.append(load_tokenizer(model))
    return Pair(student, teacher, *tokenizers, vocabulary)


def choose_problems(data: str, prompts: int | None, measuring: Measuring) -> list[Problem]:
    """So many problems of a file (None: all), drawn with the seed, in the file's order.

    Raises:
        ValueError: the file cannot be read, or rows cannot be used.
    """
    rules = rules_of(measuring.verifier, measuring.answer_forms)
    with _named("--data", "DATA"):
        problems, _, _ = load_problems([data], None, rules.is_own, boxes_only=False)
    if prompts is None or prompts >= len(problems):
        return problems
    chosen = random.Random(measuring.seed).sample(range(len(problems)), prompts)
    return [problems[place] for place in sorted(chosen)]


@contextmanager
def _named(option: str, role: str) -> Iterator[None]:
    """What is an option elsewhere has a place here: messages name that."""
    try:
        yield
    except ValueError as mistake:
        raise ValueError(str(mistake).replace(option, role)) from None


def on_this_machine(measuring: Measuring) -> Measuring:
    """The same with its device and dtype found out.

    Raises:
        ValueError: OPDVR_DEVICE is no device; cuda without a GPU.
    """
    device = measuring.device or find_device()
    if device not in ("cpu", "cuda"):
        raise ValueError(f"OPDVR_DEVICE={device!r} is not a device: use cpu or cuda")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: torch sees no GPU; use --device cpu")
    dtype = measuring.dtype or ("float32" if device == "cpu" else "bfloat16")
    return replace(measuring, device=device, dtype=dtype)


def measure(
    pair: Pair,
    problems: Sequence[Problem],
    measuring: Measuring,
    say: Say,
    sampler: Sampler = sample_with_vllm,
) -> list[PromptMeasure]:
    """Both models' rollouts, judged, and the scores of the student's; one measure a problem.

    Models are in memory one at a time. What engines and libraries print goes to a log, whose path
    is said where they fail.

    Raises:
        ValueError: a prompt is longer than a model's context, a model does not load, or gives what
            is no number.
        VerifierFailure: a verifier of the user's own failed.
    """
    measuring = on_this_machine(measuring)
    verifier = load_verifier(rules_of(measuring.verifier, measuring.answer_forms))
    with _engine_log(say) as log:
        students, teachers = (
            _roll_out(role, pair, problems, measuring, verifier, sampler, say, log)
            for role in ("student", "teacher")
        )
        own, others = pair.end_ids
        ends = tuple(end for end in sorted({*own, *others}) if end < pair.vocabulary)
        scores = []
        for role, model, temperature in (
            ("student", pair.student, measuring.temperature),
            ("teacher", pair.teacher, measuring.teacher_temperature),
        ):
            say(f"scoring the student's {len(students)} responses with the {role}")
            scoring = Scoring(
                vocabulary=pair.vocabulary,
                end_ids=ends,
                top_k=min(measuring.top_k, pair.vocabulary),
                temperature=temperature,
                device=measuring.device,
                dtype=measuring.dtype,
            )
            sequences = [(rollout.prompt_ids, rollout.token_ids) for rollout in students]
            with output_in(log):
                scores.append(score_responses(model.folder, sequences, scoring))
    by_prompt = _Collected(students, teachers, scores[0], scores[1], ends, (own, others))
    try:
        return [by_prompt.measure(place, problem) for place, problem in enumerate(problems)]
    except NonFiniteError as error:
        text = f"{pair.student.name} or {pair.teacher.name}: {error}"
        raise ValueError(f"{text}; or try --dtype float32") from None


@contextmanager
def _engine_log(say: Say) -> Iterator[Path]:
    """A file for what libraries print; it stays where something fails."""
    folder = Path(tempfile.mkdtemp(prefix="opdvr-diagnose-"))
    log = folder / "engine.log"
    try:
        yield log
    except BaseException:
        if log.exists():
            say(f"stopped; what the engines said is in {log}")
        raise
    log.unlink(missing_ok=True)
    folder.rmdir()


def _roll_out(
    role: str,
    pair: Pair,
    problems: Sequence[Problem],
    measuring: Measuring,
    verifier: Verifier,
    sampler: Sampler,
    say: Say,
    log: Path,
) -> list[Rollout]:
    model = getattr(pair, role)
    tokenizer = getattr(pair, f"{role}_tokenizer")
    say(f"sampling {len(problems) * measuring.n} responses of the {role} ({measuring.device})")
    with _named("--model", role.upper()), _named("--data", "DATA"), output_in(log):
        return roll_out(model, tokenizer, problems, measuring, verifier, sampler)


@dataclass(frozen=True)
class _Collected:
    """Everything measured, by response."""

    students: list[Rollout]
    teachers: list[Rollout]
    student_scores: list[Scored]
    teacher_scores: list[Scored]
    ends: tuple[int, ...]
    own_ends: tuple[list[int], list[int]]

    def measure(self, place: int, problem: Problem) -> PromptMeasure:
        """One prompt's part."""
        at = [i for i, rollout in enumerate(self.students) if rollout.prompt == place]
        ours = [self.students[i] for i in at]
        theirs = [rollout for rollout in self.teachers if rollout.prompt == place]
        scores = [self.student_scores[i] for i in at], [self.teacher_scores[i] for i in at]
        finished = [rollout.finished for rollout in ours]
        return PromptMeasure(
            key=problem.key,
            row=problem.row,
            student_correct=[rollout.correct for rollout in ours],
            teacher_correct=[rollout.correct for rollout in theirs],
            student_tokens=[len(rollout.token_ids) for rollout in ours],
            teacher_tokens=[len(rollout.token_ids) for rollout in theirs],
            student_finished=finished,
            teacher_finished=[rollout.finished for rollout in theirs],
            sums=score_sums(*scores, [rollout.correct for rollout in ours], MethodSpec()),
            ends=end_sums(*scores, finished, self.ends, *self.own_ends),
        )
