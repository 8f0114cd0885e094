"""Checkpoints one can trust: complete or not resumed from, the right data next, the last N kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from pathlib import Path

from omegaconf import DictConfig, open_dict

COMPLETE = "complete.json"  # written last, atomically: without it a checkpoint is half-written
STEP_FOLDER = re.compile(r"global_step_(\d+)")
# In a checkpoint: the whole model, by verl's name, and with LoRA the adapter beside it.
WHOLE_MODEL, ADAPTER = "huggingface", "lora_adapter"
TRACKER = "latest_checkpointed_iteration.txt"  # verl's name; its model merger and scripts read it


def complete_steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints in a run's folder, ascending."""
    return sorted(step for step, path in _steps(folder) if (path / COMPLETE).exists())


def half_written(folder: Path) -> list[Path]:
    """Checkpoint folders that were never finished."""
    return sorted(path for _, path in _steps(folder) if not (path / COMPLETE).exists())


def _steps(folder: Path) -> list[tuple[int, Path]]:
    """verl's checkpoint folders; copies such as global_step_3_backup are none."""
    matches = ((STEP_FOLDER.fullmatch(path.name), path) for path in folder.glob("global_step_*"))
    return [(int(match[1]), path) for match, path in matches if match]


def data_fingerprint(config: DictConfig) -> dict[str, object]:
    """What must not change between a run and its continuation for the data order to hold."""
    files = config.data.train_files
    files = [files] if isinstance(files, str) else list(files)
    return {
        "train_files": [_digest(str(file)) for file in files],
        "train_batch_size": int(config.data.train_batch_size),
        "shuffle": bool(config.data.shuffle),
        "seed": config.data.seed,
        "train_max_samples": config.data.train_max_samples,
        "max_prompt_length": int(config.data.max_prompt_length),
        "filter_overlong_prompts": bool(config.data.filter_overlong_prompts),
    }


def _digest(file: str) -> str:
    """sha256 of a local file; of a remote one its address stands in."""
    return file if "://" in file else hashlib.sha256(Path(file).read_bytes()).hexdigest()


def begin(folder: Path, step: int) -> None:
    """Before global_step_<step> is written, also over an older one: from now on half-written."""
    (folder / f"global_step_{step}" / COMPLETE).unlink(missing_ok=True)


def set_aside_after(folder: Path, step: int) -> None:
    """Move checkpoints of later steps, which a run that goes back to `step` will write anew."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for later, path in _steps(folder):
        if later > step:
            aside = folder / "set_aside" / f"{path.name}.{stamp}"
            aside.parent.mkdir(exist_ok=True)
            path.rename(aside)
            print(f"opdvr: {path.name} is later than step {step}: moved to {aside}")


def mark_complete(folder: Path, step: int, data: dict[str, object]) -> None:
    """Declare global_step_<step> complete and make it the latest; `data` is its fingerprint."""
    content = {"step": step, "data": data}
    write_atomically(folder / f"global_step_{step}" / COMPLETE, json.dumps(content, indent=2))
    write_atomically(folder / TRACKER, str(step))


def state_dtype(model: Path, dtype: str) -> None:
    """verl writes bfloat16 into a saved model's config.json whatever the run computed in."""
    path = model / "config.json"
    if path.exists():
        content = json.loads(path.read_text()) | {"dtype": dtype}
        write_atomically(path, json.dumps(content, indent=2) + "\n")


def remove_old(folder: Path, keep: int | None) -> None:
    """Keep the last `keep` complete checkpoints (None, 0, negative: all), once the new is done."""
    if keep is None or keep <= 0:
        return
    for step in complete_steps(folder)[:-keep]:
        old = folder / f"global_step_{step}"
        (old / COMPLETE).unlink()  # first, so that a kill half way leaves no complete-looking rest
        shutil.rmtree(old)


def choose_resume(folder: Path, config: DictConfig, data: dict[str, object]) -> Path | None:
    """The checkpoint to go on from, or None; sets verl's resume options accordingly.

    `data` is the fingerprint of the configured data, as in `mark_complete`.

    Raises:
        ValueError: the named checkpoint is half-written, or the data changed since it was written.
    """
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        set_aside_after(folder, 0)
        return None
    if trainer.resume_mode == "resume_path":
        chosen = Path(trainer.resume_from_path)
        if not (chosen / COMPLETE).exists():
            raise ValueError(
                f"trainer.resume_from_path: {chosen} is not a complete checkpoint (no {COMPLETE})"
            )
    else:
        for path in half_written(folder):
            print(f"opdvr: {path.name} is half-written and is not resumed from")
        steps = complete_steps(folder)
        chosen = folder / f"global_step_{steps[-1]}" if steps else None
    if (folder / TRACKER).exists():  # verl reads it all the same, and a kill may have torn it
        if steps_done := complete_steps(folder):
            write_atomically(folder / TRACKER, str(steps_done[-1]))
        else:
            (folder / TRACKER).unlink()
    set_aside_after(folder, int(chosen.name.rsplit("_", 1)[1]) if chosen else 0)
    with open_dict(config):
        trainer.resume_mode = "resume_path" if chosen else "disable"
        trainer.resume_from_path = str(chosen) if chosen else None
    if chosen:
        check_same_data(chosen, data)
    return chosen


def check_same_data(checkpoint: Path, now: dict[str, object]) -> None:
    """Raise ValueError if the data that the checkpoint stands in is not that of the fingerprint."""
    saved = json.loads((checkpoint / COMPLETE).read_text())["data"]
    changed = sorted(key for key in now if saved.get(key) != now[key])
    if changed:
        # What is no whole option's name is one of the group `data`.
        names = [key if "." in key else f"data.{key}" for key in changed]
        raise ValueError(
            f"cannot resume from {checkpoint}: {', '.join(names)} changed since it was written, so "
            "rows would be repeated or skipped, or two models mixed; restore it, or start anew "
            "under another EXPERIMENT_NAME"
        )


def write_atomically(path: Path, text: str) -> None:
    """Whole or not at all, also when the process is killed."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class Position:
    """In a data loader's place for a checkpoint: its position as it was earlier."""

    def __init__(self, state: dict):
        self._state = state

    def state_dict(self) -> dict:
        """As the data loader's."""
        return self._state
