"""How a pair of models is measured: the settings that `diagnose` and `data align` share."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields

from opdvr.verifier.extract import ANSWER_FORMS

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Measuring:
    """How rollouts are made and scored.

    Attributes:
        n: responses of each model to a prompt.
        max_tokens: longest response, in tokens.
        temperature: of the rollouts and of the student's log-probabilities.
        teacher_temperature: of the teacher's log-probabilities (its rollouts are at temperature).
        thinking: the chat template's option.
        seed: every response's seed comes from it.
        top_k: K of the overlap.
        verifier, answer_forms: as in `opdvr eval`; None for the project's own, boxed.
        device, dtype: None for cuda where there is a GPU; bfloat16 there, float32 on the CPU.
        tensor_parallel, max_num_seqs, gpu_memory: of the sampling engine.
    """

    n: int = 4
    max_tokens: int = 1024
    temperature: float = 1.0
    teacher_temperature: float = 1.0
    thinking: bool = False
    seed: int = 0
    top_k: int = 16
    verifier: str | None = None
    answer_forms: str | None = None
    device: str | None = None
    dtype: str | None = None
    tensor_parallel: int = 1
    max_num_seqs: int = 256
    gpu_memory: float = 0.9


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """The options of `Measuring`."""
    default = Measuring()
    how = parser.add_argument_group("rollouts and scores")
    how.add_argument(
        "--n", type=int, default=default.n, help="responses of each model a prompt (%(default)s)"
    )
    how.add_argument(
        "--max-tokens", type=int, default=default.max_tokens, help="longest response (%(default)s)"
    )
    how.add_argument("--temperature", type=float, default=default.temperature, help="(%(default)s)")
    how.add_argument(
        "--teacher-temperature",
        type=float,
        default=default.teacher_temperature,
        help="of the teacher's scores (%(default)s)",
    )
    how.add_argument("--thinking", action="store_true", help="with the chat template's thinking on")
    how.add_argument("--seed", type=int, default=default.seed, help="(%(default)s)")
    how.add_argument(
        "--top-k", type=int, default=default.top_k, help="K of the overlap (%(default)s)"
    )
    how.add_argument("--verifier", help="your own, module:function or file.py:function")
    how.add_argument("--answer-forms", choices=ANSWER_FORMS, help="what our verifier reads (boxed)")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", choices=DEVICES, help="(cuda where there is a GPU)")
    machine.add_argument("--dtype", choices=DTYPES, help="(bfloat16; float32 on CPU)")
    machine.add_argument(
        "--tensor-parallel", type=int, default=default.tensor_parallel, help="GPUs of the sampler"
    )
    machine.add_argument(
        "--max-num-seqs", type=int, default=default.max_num_seqs, help="at once (%(default)s)"
    )
    machine.add_argument(
        "--gpu-memory", type=float, default=default.gpu_memory, help="share to use (%(default)s)"
    )


def read_measuring(given: argparse.Namespace) -> Measuring:
    """The settings, checked.

    Raises:
        ValueError: an impossible value, naming the option.
    """
    measuring = Measuring(**{field.name: getattr(given, field.name) for field in fields(Measuring)})
    for name in ("n", "max_tokens", "top_k", "tensor_parallel", "max_num_seqs"):
        if getattr(measuring, name) < 1:
            raise ValueError(f"{option_of(name)} {getattr(measuring, name)}: give 1 or more")
    for name in ("temperature", "teacher_temperature"):
        value = getattr(measuring, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(
                f"{option_of(name)} {value}: give more than 0; greedy responses say nothing about "
                "the states that training visits"
            )
    if not 0 < measuring.gpu_memory <= 1:
        raise ValueError(f"--gpu-memory {measuring.gpu_memory}: give more than 0, up to 1")
    return measuring


def option_of(name: str) -> str:
    """The option that sets a field."""
    return f"--{name.replace('_', '-')}"
