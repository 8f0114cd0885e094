"""The model folder that a supervised run ends with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from opdvr.integration.checkpoints import ADAPTER, WHOLE_MODEL, complete_steps
from opdvr.integration.config import SUPERVISED_MODEL

_GENERATION = "generation_config.json"


def export(folder: Path, end_ids: tuple[int, ...], say: Callable[[str], None]) -> Path:
    """The last checkpoint's whole model as `folder`/model (hard links, so it takes no space).

    Sampling has to stop at the token that ended every response in training: where the model's own
    generation_config.json does not name it, as a base model's does not, it is added there.

    Returns:
        The folder; with LoRA it holds merged weights, and `lora_adapter` lies beside it.
    """
    steps = complete_steps(folder)
    assert steps, f"{folder} has no complete checkpoint"
    checkpoint = folder / f"global_step_{steps[-1]}"
    target = folder / SUPERVISED_MODEL
    _link(checkpoint / WHOLE_MODEL, target)
    if (checkpoint / ADAPTER).is_dir():
        _link(checkpoint / ADAPTER, folder / ADAPTER)
    _stop_at(target, end_ids[-1], say)
    return target


def _link(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary, copy_function=_hard_link)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(temporary, target)


def _hard_link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def _stop_at(model: Path, token: int, say: Callable[[str], None]) -> None:
    path = model / _GENERATION
    content = json.loads(path.read_text()) if path.exists() else {}
    if "eos_token_id" not in content:
        content["eos_token_id"] = json.loads((model / "config.json").read_text()).get(
            "eos_token_id"
        )
    stops = content["eos_token_id"]
    stops = [] if stops is None else stops if isinstance(stops, list) else [stops]
    if token in stops:
        return
    content["eos_token_id"] = [*stops, token]
    path.unlink(missing_ok=True)  # it is linked to the checkpoint's
    path.write_text(json.dumps(content, indent=2) + "\n")
    say(
        f"opdvr: token {token} ends a response in training, but {_GENERATION} names {stops}; it is "
        "added there, so that sampling stops"
    )
