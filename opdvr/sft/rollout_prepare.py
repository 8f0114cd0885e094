"""Everything of a rollout that can fail cheaply, before an engine starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opdvr.eval.models import Model, context_length, fingerprint, resolve
from opdvr.eval.prepare import check_machine, engine_settings, find_device, load_tokenizer
from opdvr.eval.problems import DataFile, Problem, data_fingerprint, prompt_ids
from opdvr.eval.samples import RUN, check_settings, write_run
from opdvr.eval.verdicts import rules_of
from opdvr.inference import EngineSettings, Sampling
from opdvr.report.lock import lock_folder
from opdvr.report.redact import redact_command
from opdvr.sft.exports_llamafactory import choose_template
from opdvr.sft.rollout_attempts import ACCEPTED_FILE, REJECTED_FILE, Written, read_written
from opdvr.sft.rollout_options import RolloutOptions
from opdvr.sft.rollout_progress import Stopwatch
from opdvr.sft.rollout_prompts import load_prompts
from opdvr.sft.rollout_verdicts import Judge
from opdvr.verifier.extract import BOXED

LOCK = "rollout.lock"  # held (flock) by the process that rolls out; the kernel frees it on death


@dataclass(frozen=True)
class Rollout:
    """A rollout that is ready to sample.

    Attributes:
        options: as asked for.
        attempts: at most, a slot.
        folder: where everything is written.
        problems: the prompts in the order of the data; `gold` None where there is none.
        prompts: their token ids.
        rooms: longest response to each, tokens.
        written: what earlier processes made.
        watch: measures the time of sampling.
        judge: decides what is kept.
        model: the teacher.
        template: LlamaFactory's name of the chat template; None leaves it to LlamaFactory.
        settings: the model as the engines load it.
        sampling: of every request.
        engines: how many engines.
        lock: held by this process as long as it is open.
    """

    options: RolloutOptions
    attempts: int
    folder: Path
    problems: list[Problem]
    prompts: list[tuple[int, ...]]
    rooms: list[int]
    written: Written
    watch: Stopwatch
    judge: Judge
    model: Model
    template: str | None
    settings: EngineSettings
    sampling: Sampling
    engines: int
    lock: Any

    @property
    def slots(self) -> int:
        """Responses that are wanted."""
        return len(self.problems) * self.options.n


def prepare(options: RolloutOptions, command: list[str], say: Callable[[str], None]) -> Rollout:
    """Check the options against model, data and machine; lock the folder and read what is there.

    Raises:
        ValueError: a user's mistake, in one line; nothing was started.
    """
    rules = rules_of(options.verifier, options.answer_forms)
    judge = Judge(options.rejection, rules, options.verifier_limit)
    own_verifier = rules.is_own and options.rejection.correct
    problems, files, warnings = load_prompts(
        options, own_verifier, boxes_only=own_verifier and rules.answer_forms == BOXED
    )
    for warning in warnings:
        say(warning)
    model = resolve(options.model, options.output, say)
    attempts = _attempts(options, say)
    settings = _run_settings(options, model, files, asdict(rules), attempts)
    _check_settings(options.output, settings)  # early, before torch and transformers are imported
    device = options.device or find_device()
    engines = check_machine(options, device)
    tokenizer = load_tokenizer(model)
    prompts, rooms = _prompts(options, problems, model, tokenizer, say)
    template = choose_template(options, model.folder, tokenizer, say)
    lock = _hold(options.output)
    settings["dtype"] = options.dtype or ("float32" if device == "cpu" else "bfloat16")
    if not _check_settings(options.output, settings):
        write_run(options.output, settings, _details(model, files, command, asdict(rules)))
    keys = {problem.key for problem in problems}
    return Rollout(
        options=options,
        attempts=attempts,
        folder=options.output,
        problems=problems,
        prompts=prompts,
        rooms=rooms,
        written=read_written(options.output, keys, options.n, attempts),
        watch=Stopwatch(options.output),
        judge=judge,
        model=model,
        template=template,
        settings=engine_settings(
            options,
            model,
            device,
            settings["dtype"],
            max(len(ids) + room for ids, room in zip(prompts, rooms, strict=True)),
        ),
        sampling=Sampling(options.temperature, options.top_p),
        engines=engines,
        lock=lock,
    )


def _attempts(options: RolloutOptions, say: Callable[[str], None]) -> int:
    if options.temperature == 0 and options.attempts > 1:
        say("--temperature 0: another attempt would be a copy, so there is one for each response")
        return 1
    return options.attempts


def _prompts(
    options: RolloutOptions,
    problems: list[Problem],
    model: Model,
    tokenizer: Any,  # noqa: ANN401
    say: Callable[[str], None],
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Token ids of each prompt, and the room for a response to it."""
    context = context_length(model.folder)
    prompts = prompt_ids(problems, tokenizer, options.thinking, context)
    if context is None:
        return prompts, [options.max_tokens] * len(prompts)
    rooms = [min(options.max_tokens, context - len(ids)) for ids in prompts]
    if min(rooms) < options.max_tokens:
        say(
            f"the model's context is {context} tokens and the longest prompt "
            f"{max(map(len, prompts))}: responses are cut there, before --max-tokens "
            f"{options.max_tokens}"
        )
    return prompts, rooms


def _hold(folder: Path) -> Any:  # noqa: ANN401
    return lock_folder(
        folder,
        LOCK,
        f"--output {folder} cannot be written ({{error}}); free space, make it writable, or "
        "choose another --output",
        f"another process is rolling out into {folder}; wait for it, or choose another --output",
    )


def _check_settings(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds this rollout already; see `check_settings`."""
    if not (folder / RUN).exists():
        for name in (ACCEPTED_FILE, REJECTED_FILE):
            if (folder / name).exists():
                raise ValueError(f"{folder} has {name} but no {RUN}; choose another --output")
    return check_settings(folder, settings)


def _run_settings(
    options: RolloutOptions,
    model: Model,
    files: list[DataFile],
    rules: dict[str, str],
    attempts: int,
) -> dict[str, Any]:
    """What a resumed rollout must have the same, by the options' names; all but the dtype."""
    rejection = {
        f"rejection {name.replace('_', '-')}": value
        for name, value in asdict(options.rejection).items()
    }
    return {
        "model": {"name": model.name, "fingerprint": fingerprint(model.folder)},
        "data": {
            "name": " ".join(options.data),
            "fingerprint": data_fingerprint(files),
        },
        "limit": options.limit,
        "prompt-column": options.prompt_column,
        "answer-column": options.answer_column,
        "n": options.n,
        "temperature": options.temperature,
        "top-p": options.top_p,
        "max-tokens": options.max_tokens,
        "thinking": options.thinking,
        "seed": options.seed,
        "attempts": attempts,
        "verifier": rules["verifier"],
        "answer-forms": rules["answer_forms"],
        **rejection,
    }


def _details(
    model: Model, files: list[DataFile], command: list[str], rules: dict[str, str]
) -> dict[str, Any]:
    return {
        "model_folder": str(model.folder),
        "data": [os.path.abspath(file.path) for file in files],
        "files": [{"path": os.path.abspath(f.path), "sha256": f.sha256} for f in files],
        "python": sys.version.split()[0],
        "command": redact_command(["opdvr", "sft", "rollout", *command]),
        **rules,
        "trainer_validation": None,  # which an evaluation's run.json has beside its settings
    }
