"""Which model `--model` names: a folder, a checkpoint or run of ours, or a name on the hub."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdvr.integration.checkpoints import COMPLETE, STEP_FOLDER, complete_steps
from opdvr.integration.vocabulary import read_json

WEIGHTS = ("*.safetensors", "*.bin")
MERGED = "merged"
_REPO_ROOT = Path(__file__).parents[2]
# Read at a weight file's start, middle and end for the fingerprint: all of a large one takes long.
_PIECE_BYTES = 1 << 20
_SHOWN_CHARS = 300


@dataclass(frozen=True)
class Model:
    """A model that is ready to load.

    Attributes:
        name: as the user named it, or the checkpoint that was chosen for it.
        folder: with config.json, weights and tokenizer.
    """

    name: str
    folder: Path


def resolve(text: str, output: Path, say: Callable[[str], None], option: str = "--model") -> Model:
    """The model that `text` names; a checkpoint of shards only is merged once by verl's merger.

    Args:
        text: a folder with config.json, ``global_step_N``, a run's folder (its last complete
            checkpoint is taken), or a hub name.
        output: where merged weights go if the checkpoint's folder cannot be written.
        say: says a line about what is chosen or done.
        option: what to call it in messages.

    Raises:
        ValueError: one line: not found, no weights, an incomplete checkpoint, a failed merge.
    """
    path = Path(text).expanduser()
    if not path.exists():
        return _from_hub(text, option)
    if STEP_FOLDER.fullmatch(path.resolve().name):
        return _from_checkpoint(path, output, say, option)
    if (path / "config.json").is_file():
        if not _has_weights(path):
            raise ValueError(f"{option}: {path} has a config.json but no weights (*.safetensors)")
        return Model(text, path.resolve())
    steps = complete_steps(path)
    if steps:
        step = path / f"global_step_{steps[-1]}"
        say(f"{text} is a run: taking its last complete checkpoint, {step.name}")
        return _from_checkpoint(step, output, say, option)
    if any(path.glob("global_step_*")):
        raise ValueError(f"{option}: {text} has no complete checkpoint (none with {COMPLETE})")
    raise ValueError(
        f"{option}: no model in {text}: give a folder with config.json, a global_step_N folder, or "
        "the run folder that holds one"
    )


def _from_checkpoint(path: Path, output: Path, say: Callable[[str], None], option: str) -> Model:
    if not (path / COMPLETE).is_file():
        raise ValueError(f"{option}: {path} is no complete checkpoint (it has no {COMPLETE})")
    actor = path / "actor"
    if not actor.is_dir():  # supervised training has one model only
        actor = path
    for folder in (actor / "huggingface", path / MERGED):
        if (folder / "config.json").is_file() and _has_weights(folder):
            return Model(str(path), folder.resolve())
    if not any(actor.glob("model_world_size_*_rank_*.pt")):
        raise ValueError(f"{option}: {path} holds no weights, neither whole nor in shards")
    merged = path / MERGED
    if not os.access(path, os.W_OK):
        merged = output / MERGED
    say(f"{path} has shards only: merging them with verl's merger into {merged} (bfloat16)")
    merge(actor, merged, option)
    return Model(str(path), merged.resolve())


def _has_weights(folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in WEIGHTS)


def merge(actor: Path, target: Path, option: str) -> None:
    """Merge a checkpoint's shards into a whole model at `target`, which appears all at once.

    Raises:
        ValueError: verl's merger failed; its last words are in the line.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(actor), "--target_dir", str(temporary)]
    path = os.pathsep.join(filter(None, (str(_REPO_ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {
        "PYTHONPATH": path,
        "VERL_USE_EXTERNAL_MODULES": "opdvr.integration.platform",
        "CUDA_VISIBLE_DEVICES": "",  # the shards are put together in main memory
    }
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != 0 or not _has_weights(temporary):
            last = (done.stdout.strip().splitlines() or ["no output"])[-1][:_SHOWN_CHARS]
            raise ValueError(f"{option}: verl's merger failed on {actor}: {last}")
        temporary.chmod(0o755)
        try:
            os.rename(temporary, target)
        except OSError:
            if not target.exists():  # else another process has merged the same meanwhile
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _from_hub(text: str, option: str) -> Model:
    """A hub model's local snapshot, downloaded if need be."""
    parts = text.split("/")
    if text.startswith(("/", ".", "~")) or len(parts) != 2 or not all(parts):
        raise ValueError(
            f"{option}: model folder not found: {text} (a model of the hub is named owner/name)"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model", "*.tiktoken"]
    try:
        folder = snapshot_download(text, allow_patterns=patterns)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:_SHOWN_CHARS]
        raise ValueError(
            f"{option}: model folder not found: {text}; the hub does not give it either: {reason}"
        ) from None
    if not _has_weights(Path(folder)):
        raise ValueError(f"{option}: {text} has no *.safetensors on the hub")
    return Model(text, Path(folder))


def fingerprint(folder: Path) -> str:
    """A digest of a model's configuration, tokenizer and (in samples) weights.

    Of each weight file the size and three pieces of 1 MiB count: training changes every tensor, so
    these differ between two checkpoints.
    """
    digest = hashlib.sha256()
    for name in ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"):
        if (folder / name).is_file():
            digest.update(name.encode() + (folder / name).read_bytes())
    files = sorted({file for pattern in WEIGHTS for file in folder.glob(pattern)})
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with open(file, "rb") as weights:
            for start in (0, size // 2, max(0, size - _PIECE_BYTES)):
                weights.seek(start)
                digest.update(weights.read(_PIECE_BYTES))
    return digest.hexdigest()[:32]


def context_length(folder: Path) -> int | None:
    """Longest prompt plus response that the model was made for, in tokens; None if it is silent."""
    config: dict[str, Any] = read_json(folder / "config.json")
    config = config.get("text_config", config)
    length = config.get("max_position_embeddings")
    return None if length is None else int(length)
