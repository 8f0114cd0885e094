"""Student and teacher as folders: present, of one vocabulary, with room for the context."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from opdvr.integration.preflight.configuration import teacher_is_unnamed
from opdvr.integration.preflight.finding import Finding, Refusal, error, note, warning
from opdvr.integration.teacher_settings import loads_weights
from opdvr.integration.vocabulary import read_json, read_vocabulary

_TRUE = {"1", "true", "yes", "on"}


@dataclass(frozen=True)
class ModelOption:
    """A model of the run, and how messages name it."""

    role: str
    variable: str
    option: str
    path: str

    def __str__(self) -> str:
        return f"{self.variable} ({self.option})"


def student_option(config: DictConfig) -> ModelOption:
    """The student."""
    option = "actor_rollout_ref.model.path"
    return ModelOption(
        "student", "ACTOR_MODEL_PATH", option, str(config.actor_rollout_ref.model.path)
    )


def teacher_option(config: DictConfig) -> ModelOption | None:
    """The teacher whose weights this run loads; None where it loads none, or none was named."""
    if not loads_weights(config) or teacher_is_unnamed(config):
        return None
    path = str(config.reward_model.model.path)
    return ModelOption("teacher", "REWARD_MODEL_PATH", "reward_model.model.path", path)


def check_models(config: DictConfig, with_lengths: bool = True) -> Iterator[Finding]:
    """Folders, vocabularies and context lengths of the student and, if it is loaded, the teacher.

    A model that is neither a folder nor in the hub's cache is left to the run, with a warning.

    Args:
        config: the composed configuration.
        with_lengths: whether the limits of prompts and responses can be computed with.
    """
    student = student_option(config)
    folders = []
    for model in filter(None, (student, teacher_option(config))):
        try:
            folder = find_model(model)
        except Refusal as refusal:
            yield from refusal.findings
            continue
        if folder is None:
            yield warning(
                str(model),
                f"{model.path} is not in the local hub cache",
                "its vocabulary and context length were not checked",
                "download the model first, or give a folder",
            )
            continue
        try:
            yield from check_context(model, folder, config) if with_lengths else ()
        except ValueError as damaged:
            yield error(str(model), str(damaged), remedy="get or save the model anew")
            continue
        folders.append((model, folder))
    if folders and folders[0][0] == student:
        tokenizer = config.actor_rollout_ref.model.tokenizer_path
        source = Path(tokenizer).expanduser() if tokenizer else folders[0][1]
        try:
            yield from check_vocabularies(folders, source)
        except ValueError as damaged:
            yield error("the tokenizers", str(damaged), remedy="get or save the model anew")


def find_model(model: ModelOption) -> Path | None:
    """The model's folder, or None for a hub name that has to be downloaded first.

    Raises:
        Refusal: a path that does not exist or holds no config.json; with HF_HUB_OFFLINE also a
            hub name that is not in the cache.
    """
    path = Path(model.path).expanduser()
    if not path.exists():
        if _looks_local(model.path):
            raise Refusal([error(str(model), f"{model.role} model folder not found: {model.path}")])
        if "://" in model.path:
            return None
        folder = _cached_snapshot(model.path)
        if folder is None and _offline():
            raise Refusal(
                [
                    error(
                        str(model),
                        f"{model.path} is not in the local hub cache, and HF_HUB_OFFLINE is set",
                        remedy="give a folder, or download the model first",
                    )
                ]
            )
        return folder
    if not (path / "config.json").is_file():
        inside = sorted(found.parent for found in path.glob("model/config.json"))
        inside += sorted(found.parent for found in path.glob("global_step_*/**/config.json"))
        remedy = (
            f"did you mean {inside[0]}?"
            if inside
            else ("give the folder that holds config.json and the weights")
        )
        what = f"{model.role} model folder has no config.json: {model.path}"
        raise Refusal([error(str(model), what, remedy=remedy)])
    return path


def check_context(model: ModelOption, folder: Path, config: DictConfig) -> Iterator[Finding]:
    """Warn where the longest prompt and response exceed what the model was made for."""
    limit = text_config(folder).get("max_position_embeddings")
    responses = {"MAX_RESP_LENGTH (data.max_response_length)": config.data.max_response_length}
    in_validation = config.opdvr.max_val_response_length
    if in_validation is not None and model.role == "student":  # the teacher sees no validation
        responses["MAX_VAL_RESP_LENGTH (opdvr.max_val_response_length)"] = in_validation
    for option, response in responses.items():
        longest = config.data.max_prompt_length + response
        if limit is not None and limit < longest:
            yield warning(
                str(model),
                f"max_position_embeddings is {limit}, but MAX_PROMPT_LENGTH "
                f"(data.max_prompt_length) plus {option} is {longest}",
                "beyond it the model was not trained, and vLLM may refuse to start",
                f"lower them to {limit} together",
            )


def check_vocabularies(
    folders: list[tuple[ModelOption, Path]], student_tokenizer: Path
) -> Iterator[Finding]:
    """Every id that the student may sample must mean the same text to the teacher.

    The first id at which the two differ is an error, and so is a model with fewer logits than the
    student has tokens.

    Args:
        folders: the student's folder first, then the teacher's if there is one.
        student_tokenizer: where the student's tokenizer is.

    Raises:
        ValueError: a file is damaged.
    """
    tokens = read_vocabulary(student_tokenizer)
    if tokens is None:
        yield _not_compared(folders[0][0])
        return
    length = max(tokens) + 1
    widths = {model.role: text_config(folder).get("vocab_size") for model, folder in folders}
    for model, _ in folders:
        width = widths[model.role]
        if width is not None and width < length:
            yield error(
                str(model),
                f"the {model.role} has vocab_size={width}, but the student's tokenizer has "
                f"{length} tokens",
                f"ids from {width} on have no logit there",
                "use a model and a tokenizer that belong together",
            )
    if len(folders) < 2:
        return
    teacher, teacher_folder = folders[1]
    teacher_tokens = read_vocabulary(teacher_folder)
    if teacher_tokens is None:
        yield _not_compared(teacher)
        return
    for token_id in range(length):
        ours, theirs = tokens.get(token_id), teacher_tokens.get(token_id)
        if ours is not None and ours != theirs:
            yield error(
                str(teacher),
                "refused: sampled ids mean other text in the teacher: id "
                f"{token_id} is {ours!r} in the student and {_shown(theirs)} in the teacher",
                remedy="use a teacher with the student's tokenizer",
            )
            return
    if widths["student"] != widths["teacher"]:
        yield note(
            str(teacher),
            f"vocab_size is {widths['teacher']}, the student's {widths['student']}",
            f"the {length} tokens agree, the rest is padding",
        )


def _not_compared(model: ModelOption) -> Finding:
    return warning(
        str(model),
        "no tokenizer.json or vocab.json",
        "vocabularies were not compared",
        "save the tokenizer with transformers' save_pretrained, which writes tokenizer.json",
    )


def _shown(token: str | None) -> str:
    return "missing" if token is None else repr(token)


def _looks_local(path: str) -> bool:
    """Nothing on the hub is called like this: its names are ``name`` or ``owner/name``."""
    return path.startswith(("/", "./", "../", "~")) or ("://" not in path and path.count("/") > 1)


def _offline() -> bool:
    variables = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").lower() in _TRUE for name in variables)


def _cached_snapshot(name: str) -> Path | None:
    """The cached folder of a hub model's main revision (huggingface_hub takes 1.5 s to import)."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    repository = cache / f"models--{name.replace('/', '--')}"
    reference = repository / "refs" / "main"
    if not reference.is_file():
        return None
    folder = repository / "snapshots" / reference.read_text().strip()
    return folder if (folder / "config.json").is_file() else None


_WHOLE_NUMBERS = (
    "vocab_size",
    "max_position_embeddings",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "head_dim",
)


def text_config(folder: Path) -> dict:
    """The language model's part of config.json (nested in models that also see or hear).

    Raises:
        ValueError: it is damaged, or a size in it is no whole number.
    """
    path = folder / "config.json"
    config = read_json(path)
    config = config.get("text_config", config)
    for name in _WHOLE_NUMBERS:
        value = config.get(name)
        if value is not None and not isinstance(value, int):
            raise ValueError(f"{path}: {name} is {value!r}, no whole number; mend it")
    return config
