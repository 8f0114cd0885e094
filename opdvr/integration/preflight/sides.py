"""Student and teacher as the checks of tokens and numbers take them: local folders."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from opdvr.data.reading import read_records
from opdvr.integration.preflight.finding import Finding, Refusal, error, note
from opdvr.integration.preflight.models import (
    ModelOption,
    find_model,
    student_option,
    teacher_option,
)
from opdvr.integration.teacher_settings import loads_weights

STUDENT, TEACHER = "student", "teacher"
# safetensors' names of dtypes, by torch's.
_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


@dataclass(frozen=True)
class Side:
    """A model of the run that lies in a local folder.

    Attributes:
        option: how messages name it.
        folder: configuration and weights. tokenizer_folder: its tokenizer.
        trust_option: the option that lets the folder's own code run; trust: its value.
        chat_template: what replaces the tokenizer's own; None where nothing does.
    """

    option: ModelOption
    folder: Path
    tokenizer_folder: Path
    trust_option: str
    trust: bool
    chat_template: str | None = None

    @property
    def role(self) -> str:
        """student or teacher."""
        return self.option.role


def find_sides(config: DictConfig, unlooked: str) -> tuple[dict[str, Side], list[Finding]]:
    """The student and, if there is one, the teacher, by role; those with no local folder as notes.

    Args:
        unlooked: what is not looked at without the folder, for the note.
    """
    findings: list[Finding] = []
    if config.reward_model.enable and not loads_weights(config):
        where = "TEACHER_ENGINE (opdvr.teacher_engine)"
        findings.append(note(where, f"the teacher is behind a server; {unlooked}"))
    sides = {}
    for option in filter(None, (student_option(config), teacher_option(config))):
        where = str(option)
        try:
            folder = find_model(option)
        except Refusal as refusal:  # the checks of models say so, as an error
            findings += [note(where, found.what, unlooked) for found in refusal.findings]
            continue
        if folder is None:
            findings.append(note(where, f"{option.path} is not in the local hub cache", unlooked))
            continue
        sides[option.role] = _side(config, option, folder)
    return sides, findings


def _side(config: DictConfig, option: ModelOption, folder: Path) -> Side:
    is_student = option.role == STUDENT
    model = config.actor_rollout_ref.model if is_student else config.reward_model.model
    own_tokenizer = model.get("tokenizer_path") if is_student else None
    return Side(
        option,
        folder,
        Path(own_tokenizer).expanduser() if own_tokenizer else folder,
        option.option.removesuffix("path") + "trust_remote_code",
        bool(model.get("trust_remote_code")),
        model.get("custom_chat_template") if is_student else None,
    )


def load_tokenizer(side: Side) -> tuple[Any, Finding | None]:
    """A side's tokenizer, with the chat template that the run puts into it; else what is wrong."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            side.tokenizer_folder, trust_remote_code=side.trust
        )
    except (OSError, ValueError, ImportError, TypeError) as reason:
        # Where files are missing, transformers opens None.
        words = "files are missing" if isinstance(reason, TypeError) else first_line(reason)
        what = f"{side.tokenizer_folder} has no usable tokenizer: {words}"
        remedy = "save a tokenizer into the folder (tokenizer.json)"
        if side.role == STUDENT:
            return None, error(str(side.option), what, "no prompt can be made", remedy)
        return None, note(str(side.option), what, "its tokens were not looked at", remedy)
    if side.chat_template:
        tokenizer.chat_template = side.chat_template
    return tokenizer, None


def first_line(reason: Exception) -> str:
    """What an exception says first, or its name."""
    return (str(reason).strip().splitlines() or [type(reason).__name__])[0]


def first_prompts(config: DictConfig, rows: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """(row, messages) of the first training rows; none where the file is not here or is damaged.

    The checks of data say what is wrong with a file; rows without messages are left out.
    """
    files = config.data.train_files
    first = files if isinstance(files, str) else (list(files) or [""])[0]
    path = Path(first).expanduser()
    if "://" in first or not path.is_file():
        return []
    try:
        records = list(islice(read_records(path), rows))
    except ValueError:
        return []
    key = config.data.prompt_key
    found = ((row, record.get(key)) for row, record in enumerate(records))
    return [(row, messages) for row, messages in found if _are_messages(messages)]


def _are_messages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, dict) for part in value)


def weight_files(folder: Path) -> list[Path]:
    """The files of weights that are loaded: safetensors, or without them *.bin."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def stored_dtype(folder: Path) -> str | None:
    """The dtype of most tensors, torch's name; None where no safetensors say it, or another kind.

    config.json may name what the model was trained in and not what was saved.
    """
    from safetensors import SafetensorError, safe_open

    dtypes: Counter[str] = Counter()
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="np") as tensors:
                dtypes.update(tensors.get_slice(name).get_dtype() for name in tensors.keys())  # noqa: SIM118
        except SafetensorError:  # damaged; the checks of memory and the loading say so
            return None
    return _DTYPES.get(dtypes.most_common(1)[0][0]) if dtypes else None
