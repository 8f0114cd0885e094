"""What the sides of the `peers` benchmark train on: the embedded task, and bigger models."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import opdvr.demo
from benchmarks.peers_sides import ROOT
from benchmarks.random_model import Shape, write_random_model
from opdvr.demo.task import TRAIN_FILE, problems, solve, write_parquet
from opdvr.demo.tokenizer import build_tokenizer

_MODELS = Path(opdvr.demo.__file__).parent / "models"
_PROBLEMS = 4096
# Of the launcher beyond its defaults: nothing but training, for as long as the benchmark asks.
_ENDLESS = (
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=False",
    "trainer.total_training_steps=1000000",
    "trainer.total_epochs=1000000",
    "trainer.logger=[console]",
)


@dataclass(frozen=True)
class Case:
    """One comparison.

    prompts: of a step, each with group_size responses of at most response_tokens. micro_batch: rows
    in one pass of the peer. variables: the launcher's (scripts/knobs.sh). overrides: Hydra's.
    """

    name: str
    student: str
    teacher: str
    prompts: int
    group_size: int
    response_tokens: int
    micro_batch: int
    learning_rate: float
    variables: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Responses a step."""
        return self.prompts * self.group_size


def embedded(prompts: int = 16, group_size: int = 8) -> Case:
    """`bash opdvr.sh` as it runs on a machine without a GPU: small shipped models."""
    return Case(
        "embedded task",
        str(_MODELS / "student"),
        str(_MODELS / "teacher-faulty"),
        prompts,
        group_size,
        response_tokens=36,
        micro_batch=min(32, prompts * group_size),  # 1,500 tokens; ours packs 1,024
        learning_rate=5e-4,
        variables={"OPDVR_TASK": "demo"},
    )


def bigger(folder: Path, shape: Shape, prompts: int, group_size: int, tokens: int) -> Case:
    """Random models of `shape`; with so many ids a response ends early by chance alone."""
    names = ("student", "teacher")
    student, teacher = (write_random_model(folder, name, shape) for name in names)
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(len(tokenizer), shape.vocabulary)])
    tokenizer.model_max_length = 4096
    for model in (student, teacher):
        tokenizer.save_pretrained(model)
    return Case(
        f"{shape.layers} layers, {tokens} tokens",
        student,
        teacher,
        prompts,
        group_size,
        tokens,
        micro_batch=max(1, 2048 // tokens),
        learning_rate=1e-6,
        variables={
            "OPDVR_TASK": "none",
            "MODEL_DTYPE": "float32",
            "MAX_PROMPT_LENGTH": "12",
            # two rows: without flash-attention all tokens of a packed row attend to each other
            "PPO_MAX_TOKEN_LEN_PER_GPU": str(2 * (tokens + 12)),
            "LOG_PROB_MAX_TOKEN_LEN_PER_GPU": str(2 * (tokens + 12)),
        },
        # of the published 1,024, where the benchmark never has more at once
        overrides=(f"actor_rollout_ref.rollout.max_num_seqs={prompts * group_size}",),
    )


def write_problems(folder: Path) -> tuple[Path, Path]:
    """The first training problems twice: for the peer as JSON lines, for us as parquet."""
    parquet, _ = write_parquet(folder)
    assert parquet.name == TRAIN_FILE
    lines = (
        json.dumps([problem.prompt, solve(problem)]) for problem in problems("train")[:_PROBLEMS]
    )
    path = folder / "problems.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return parquet, path


def launcher_arguments(case: Case, parquet: Path, run: Path, knobs: Mapping[str, str]) -> list[str]:
    """What `bash opdvr.sh` would give to `opdvr train`: its own dry run says it.

    Raises:
        RuntimeError: the launcher refused; its message.
    """
    variables = {
        "DRY_RUN": "1",
        "OPDVR_DEVICE": "cpu",
        "TRAIN_DATASET": str(parquet),
        "TEST_DATASET": str(parquet),
        "ACTOR_MODEL_PATH": case.student,
        "REWARD_MODEL_PATH": case.teacher,
        "N_RESPONSES": str(case.group_size),
        "MINI_BATCH_SIZE": str(case.prompts),
        "MAX_RESP_LENGTH": str(case.response_tokens),
        "ACTOR_LR": str(case.learning_rate),
        "FINAL_CKPT_DIR": str(run),
    }
    child = subprocess.run(
        ["bash", "opdvr.sh", *_ENDLESS, *case.overrides],
        cwd=ROOT,
        env=os.environ | variables | case.variables | dict(knobs),
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        raise RuntimeError(f"opdvr.sh: {child.stderr.strip()}")
    words = shlex.split(child.stdout.splitlines()[-1])
    return words[words.index("train") + 1 :]
