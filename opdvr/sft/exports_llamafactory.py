"""The same rows for LlamaFactory: data, dataset_info.json and a YAML for full fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opdvr.eval.jsonl import write_lines, write_whole, writing
from opdvr.integration.vocabulary import read_json
from opdvr.sft.exports import Row, remove
from opdvr.sft.rollout_options import RolloutOptions

FOLDER = "llamafactory"
YAML = "sft.yaml"
TRAIN_NAME, VAL_NAME = "opdvr_sft", "opdvr_sft_val"
TRAIN_FILE, VAL_FILE = "sft.jsonl", "sft-val.jsonl"
NO_TEMPLATE = "none"
# LlamaFactory's names by what a model says of itself: its model_type, and what only this family's
# chat template has in it. Models that are not here get the template LlamaFactory derives.
_TEMPLATES = (
    ("deepseekr1", ("qwen2", "llama"), "<｜Assistant｜>"),
    ("qwen", ("qwen2", "qwen2_moe"), "<|im_start|>"),
    ("qwen3", ("qwen3", "qwen3_moe"), "<|im_start|>"),
    ("llama3", ("llama",), "<|start_header_id|>"),
    ("gemma2", ("gemma2",), "<start_of_turn>"),
    ("gemma3", ("gemma3", "gemma3_text"), "<start_of_turn>"),
    ("phi4", ("phi3",), "<|im_sep|>"),
)
# Tokens that its template may have beyond ours: an empty block of thought, a line's end.
_TEMPLATE_TOKENS = 16
_FIXED = """\
stage: sft
do_train: true
finetuning_type: full
bf16: true
gradient_checkpointing: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 16
learning_rate: 1.0e-5
lr_scheduler_type: cosine
warmup_ratio: 0.1
num_train_epochs: 3.0
seed: 42
logging_steps: 1
save_strategy: epoch
save_only_model: true
plot_loss: true
report_to: none
"""
_EVALUATION = """\
eval_strategy: epoch
per_device_eval_batch_size: 1
"""


def choose_template(
    options: RolloutOptions,
    model: Path,
    tokenizer: Any,  # noqa: ANN401
    say: Callable[[str], None],
) -> str | None:
    """LlamaFactory's name of the model's chat template, or None: LlamaFactory derives one.

    A model that matches no entry of the table is said.
    """
    if options.llamafactory_template is not None:
        named = options.llamafactory_template
        return None if named == NO_TEMPLATE else named
    kind = str(read_json(model / "config.json").get("model_type"))
    for name, kinds, marker in _TEMPLATES:
        if kind in kinds and marker in str(tokenizer.chat_template):
            return _with_thought(tokenizer) if name == "qwen3" else name
    say(
        f"llamafactory/{YAML} names no template: this teacher's chat template (model_type {kind}) "
        f"is not that of {', '.join(entry[0] for entry in _TEMPLATES)}, so LlamaFactory derives "
        "one from the tokenizer; --llamafactory-template names another"
    )
    return None


def _with_thought(tokenizer: Any) -> str:  # noqa: ANN401
    """Of Qwen3's two: whether the template knows blocks of thought."""
    template = str(tokenizer.chat_template)
    thinks = "enable_thinking" in template or "<think>" in template
    return "qwen3" if thinks else "qwen3_nothink"


def write_llamafactory(
    folder: Path,
    train: Sequence[Row],
    val: Sequence[Row],
    options: RolloutOptions,
    template: str | None,
    prompt_lengths: dict[str, int],
    say: Callable[[str], None],
) -> None:
    """Write llamafactory/: what `llamafactory-cli train sft.yaml` needs, run in that folder.

    Args:
        folder: the rollout's.
        train: rows to train on.
        val: rows to evaluate on; may be none.
        options: of the rollout.
        template: LlamaFactory's name; None leaves it out.
        prompt_lengths: tokens of each prompt, by its key.
        say: says a line.

    Raises:
        Unwritable: a file cannot be written.
    """
    target = folder / FOLDER
    with writing(target):
        target.mkdir(exist_ok=True)
    information = {}
    for name, file, rows in ((TRAIN_NAME, TRAIN_FILE, train), (VAL_NAME, VAL_FILE, val)):
        fitting = [row for row in rows if _alternates(row.messages)]
        if len(fitting) < len(rows):
            say(
                f"llamafactory/{file} lacks {len(rows) - len(fitting):,} rows whose messages do "
                "not alternate between user and assistant, which LlamaFactory leaves out"
            )
        if not fitting:
            remove(target / file)
            continue
        write_lines(target / file, [{"messages": row.messages} for row in fitting])
        information[name] = _information(file)
    write_whole(target / "dataset_info.json", json.dumps(information, indent=2) + "\n")
    longest = max(prompt_lengths[row.problem.key] + row.attempt.tokens for row in (*train, *val))
    thinking = options.thinking or any("</think>" in row.attempt.text for row in train)
    text = _yaml(options, template, longest + _TEMPLATE_TOKENS, thinking, VAL_NAME in information)
    write_whole(target / YAML, text)


def _alternates(messages: Sequence[dict[str, str]]) -> bool:
    turns = [message["role"] for message in messages]
    turns = turns[1:] if turns[0] == "system" else turns
    return turns == ["user", "assistant"] * (len(turns) // 2)


def _information(file: str) -> dict[str, Any]:
    return {
        "file_name": file,
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }


def _absolute(model: str) -> str:
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def _yaml(
    options: RolloutOptions, template: str | None, cutoff: int, thinking: bool, has_val: bool
) -> str:
    # It is read from inside its own folder.
    student = _absolute(options.student or options.model)
    lines = [
        f"# Full fine-tuning on the rollouts of {json.dumps(_absolute(options.model))}; here:",
        f"#   llamafactory-cli train {YAML}",
        "# In all 16 sequences a GPU and step: divide gradient_accumulation_steps by the GPUs.",
    ]
    if options.student is None:
        lines.append("# The teacher stands in for the student: name yours.")
    # JSON's strings are YAML's too, whatever is in them.
    lines.append(f"model_name_or_path: {json.dumps(student, ensure_ascii=False)}")
    lines.append("dataset_dir: .")
    lines.append(f"dataset: {TRAIN_NAME}")
    if has_val:
        lines.append(f"eval_dataset: {VAL_NAME}")
    if template is not None:
        lines.append(f"template: {json.dumps(template)}")
    lines.append(f"enable_thinking: {str(thinking).lower()}")
    lines.append(f"cutoff_len: {cutoff}")
    lines.append("output_dir: output")
    return "\n".join(lines) + "\n" + _FIXED + (_EVALUATION if has_val else "")
