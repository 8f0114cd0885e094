"""TRL's side of the `peers` benchmark: one of its trainers, step by step. Runs where TRL is.

Its argument is a JSON object with the fields of `Settings`. What happens inside a step is TRL's;
around it stand a callback that waits, and a clock around the model's `generate`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DistillationConfig, DistillationTrainer
from trl.experimental.iw_opd import IWOPDConfig, IWOPDTrainer
from trl.trainer.utils import RepeatSampler

from benchmarks.peers_gate import Gate, Stopped, digest
from datasets import Dataset


@dataclass(frozen=True)
class Settings:
    """What both sides have to agree on.

    problems: a file of JSON lines, each [question, worked solution]. rows: responses a step.
    group_size: responses to a prompt. micro_batch: rows in one forward and backward pass.
    """

    trainer: str
    student: str
    teacher: str
    problems: str
    output: str
    rows: int
    group_size: int
    micro_batch: int
    response_tokens: int
    learning_rate: float


class InOrder(IWOPDTrainer):
    """With the prompts in the order of the file: its own sampler shuffles them."""

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        return RepeatSampler(
            data_source=dataset or self.train_dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size,
            repeat_count=1,
            shuffle=False,
        )


class Watch:
    """What the model generated since the last report, and how long that took."""

    def __init__(self, model: torch.nn.Module, end_token: int):
        self._generate, self._end_token = model.generate, end_token
        model.generate = self
        self.report: dict = {}

    def __call__(self, *args: object, input_ids: torch.Tensor, **kwargs: object) -> object:
        start = time.perf_counter()
        output = self._generate(*args, input_ids=input_ids, **kwargs)
        seconds = time.perf_counter() - start
        sequences = getattr(output, "sequences", output)
        responses = sequences[:, input_ids.shape[1] :]
        ended = (responses == self._end_token).int().cumsum(1)
        tokens = ((ended - (responses == self._end_token).int()) == 0).sum().item()
        mask = kwargs["attention_mask"].bool()
        prompts = [row[kept].tolist() for row, kept in zip(input_ids, mask, strict=True)]
        self.report = {
            "tokens": tokens,
            "rows": len(responses),
            "phases": {"generation": seconds},
            "prompts": digest(prompts),
        }
        return output


class WaitForEveryStep(TrainerCallback):
    """The gate stands where a step begins: data is at hand, nothing is generated."""

    def __init__(self, gate: Gate, watch: Watch):
        self._gate, self._watch = gate, watch

    def on_step_begin(self, *_args: object, **_kwargs: object) -> None:
        """Report the step before, its logging included, and wait."""
        self._gate.wait(self._watch.report)


def common_options(settings: Settings) -> dict:
    """Of `TrainingArguments`: verl's optimizer settings, float32, and nothing but training."""
    return dict(
        output_dir=settings.output,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.rows // settings.micro_batch,
        max_completion_length=settings.response_tokens,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        max_grad_norm=1.0,
        max_steps=1_000_000,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=1.0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
        report_to="none",
    )


def distillation(settings: Settings, problems: list, **parts: object) -> DistillationTrainer:
    """Reverse KL over the whole vocabulary. It makes one response a prompt, so prompts repeat."""
    repeated = [_user(question) for question, _ in problems for _ in range(settings.group_size)]
    return DistillationTrainer(
        args=DistillationConfig(shuffle_dataset=False, **common_options(settings)),
        train_dataset=Dataset.from_dict({"prompt": repeated}),
        **parts,
    )


def iw_opd(settings: Settings, problems: list, **parts: object) -> IWOPDTrainer:
    """The log-ratio at the sampled token, weighted by what came before it in the response.

    Its loss is divided by the tokens of the data's own solutions, though none of them is trained
    on. Without any it would be divided by zero.
    """
    messages = [
        [*_user(question), {"role": "assistant", "content": solution}]
        for question, solution in problems
    ]
    options = common_options(settings) | {
        "num_generations": settings.group_size,
        "generation_batch_size": settings.rows // settings.group_size,
        "max_length": settings.response_tokens + 64,
    }
    return InOrder(
        args=IWOPDConfig(**options),
        train_dataset=Dataset.from_dict({"messages": messages}),
        **parts,
    )


def _user(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


TRAINERS: dict[str, Callable] = {"DistillationTrainer": distillation, "IWOPDTrainer": iw_opd}


def main(settings: Settings) -> None:
    """Train until told to stop."""
    gate = Gate()
    tokenizer = AutoTokenizer.from_pretrained(settings.student, padding_side="left")
    student, teacher = (
        AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        for folder in (settings.student, settings.teacher)
    )
    watch = Watch(student, tokenizer.eos_token_id)
    lines = Path(settings.problems).read_text(encoding="utf-8").splitlines()
    trainer = TRAINERS[settings.trainer](
        settings,
        [json.loads(line) for line in lines],
        model=student,
        teacher_model=teacher,
        processing_class=tokenizer,
        callbacks=[WaitForEveryStep(gate, watch)],
    )
    try:
        trainer.train()
    except Stopped:
        pass


if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])))
