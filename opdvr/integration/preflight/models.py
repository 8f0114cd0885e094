"""Student and teacher as folders: present, of one vocabulary, with room for the context."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

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


def check_models(config: DictConfig) -> list[str]:
    """Folders, vocabularies and context lengths of the student and, if it is loaded, the teacher.

    Returns:
        Warnings, one line each. Models that are neither a folder nor in the hub's cache are left to
        the run, with a warning.

    Raises:
        ValueError: a folder is missing or holds no model; the vocabularies disagree.
    """
    student = ModelOption(
        "student",
        "ACTOR_MODEL_PATH",
        "actor_rollout_ref.model.path",
        config.actor_rollout_ref.model.path,
    )
    models = [student]
    if loads_weights(config):
        path = config.reward_model.model.path
        models.append(ModelOption("teacher", "REWARD_MODEL_PATH", "reward_model.model.path", path))
    warnings, folders = [], []
    for model in models:
        folder = find_model(model)
        if folder is None:
            warnings.append(
                f"{model}: {model.path} is not in the local hub cache; its vocabulary and context "
                "length were not checked"
            )
        else:
            folders.append((model, folder))
            warnings += check_context(model, folder, config)
    if folders and folders[0][0] is student:
        tokenizer = config.actor_rollout_ref.model.tokenizer_path
        source = Path(tokenizer).expanduser() if tokenizer else folders[0][1]
        warnings += check_vocabularies(folders, source)
    return warnings


def find_model(model: ModelOption) -> Path | None:
    """The model's folder, or None for a hub name that has to be downloaded first.

    Raises:
        ValueError: a path that does not exist or holds no config.json; with HF_HUB_OFFLINE also a
            hub name that is not in the cache.
    """
    path = Path(model.path).expanduser()
    if not path.exists():
        if _looks_local(model.path):
            raise ValueError(f"{model}: {model.role} model folder not found: {model.path}")
        if "://" in model.path:
            return None
        folder = _cached_snapshot(model.path)
        if folder is None and _offline():
            raise ValueError(
                f"{model}: {model.path} is not in the local hub cache, and HF_HUB_OFFLINE is set; "
                "give a folder, or download the model first"
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
        raise ValueError(
            f"{model}: {model.role} model folder has no config.json: {model.path}; {remedy}"
        )
    return path


def check_context(model: ModelOption, folder: Path, config: DictConfig) -> Iterator[str]:
    """Warn where the longest prompt and response exceed what the model was made for."""
    limit = _text_config(folder).get("max_position_embeddings")
    responses = {"MAX_RESP_LENGTH (data.max_response_length)": config.data.max_response_length}
    in_validation = config.opdvr.max_val_response_length
    if in_validation is not None and model.role == "student":  # the teacher sees no validation
        responses["MAX_VAL_RESP_LENGTH (opdvr.max_val_response_length)"] = in_validation
    for option, response in responses.items():
        longest = config.data.max_prompt_length + response
        if limit is not None and limit < longest:
            yield (
                f"{model}: max_position_embeddings is {limit}, but MAX_PROMPT_LENGTH "
                f"(data.max_prompt_length) plus {option} is {longest}"
            )


def check_vocabularies(
    folders: list[tuple[ModelOption, Path]], student_tokenizer: Path
) -> list[str]:
    """Every id that the student may sample must mean the same text to the teacher.

    Args:
        folders: the student's folder first, then the teacher's if there is one.
        student_tokenizer: where the student's tokenizer is.

    Raises:
        ValueError: naming the first id at which the two differ, or a model with fewer logits than
            the student has tokens.
    """
    tokens = read_vocabulary(student_tokenizer)
    if tokens is None:
        return [f"{folders[0][0]}: no tokenizer.json or vocab.json; vocabularies were not compared"]
    length = max(tokens) + 1
    widths = {}
    for model, folder in folders:
        width = _text_config(folder).get("vocab_size")
        if width is not None and width < length:
            raise ValueError(
                f"{model}: the {model.role} has vocab_size={width}, but the student's tokenizer "
                f"has {length} tokens; ids from {width} on have no logit there"
            )
        widths[model.role] = width
    if len(folders) < 2:
        return []
    teacher, teacher_folder = folders[1]
    teacher_tokens = read_vocabulary(teacher_folder)
    if teacher_tokens is None:
        return [f"{teacher}: no tokenizer.json or vocab.json; vocabularies were not compared"]
    for token_id in range(length):
        ours, theirs = tokens.get(token_id), teacher_tokens.get(token_id)
        if ours is not None and ours != theirs:
            raise ValueError(
                f"{teacher}: refused: sampled ids mean other text in the teacher: id {token_id} is "
                f"{ours!r} in the student and {_shown(theirs)} in the teacher; "
                "use a teacher with the student's tokenizer"
            )
    if widths["student"] != widths["teacher"]:
        return [
            f"{teacher}: vocab_size is {widths['teacher']}, the student's {widths['student']}; the "
            f"{length} tokens agree, the rest is padding"
        ]
    return []


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


def _text_config(folder: Path) -> dict:
    """The language model's part of config.json (nested in models that also see or hear)."""
    config = read_json(folder / "config.json")
    return config.get("text_config", config)
