"""The study's models: those that ship with the embedded task and one more teacher."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from benchmarks.study_plan import HARD_TEACHER
from opdvr.demo import make_models
from opdvr.demo.task import Habits

_SHIPPED = Path(make_models.__file__).parent / "models"
HARD_RECIPE = make_models.Recipe(
    role="teacher: careful, but always forgets the carry when the factor is 6, 7, 8 or 9",
    hidden=128,
    habits=Habits(drop_carry=1.0, forgetful_factors=(6, 7, 8, 9)),
    steps=1000,
    seed=5,
)


class Models:
    """Loads each model once, in float32.

    work: folder of the hard teacher, which is trained on first use.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        self._models: dict[str, Qwen3ForCausalLM] = {}
        self._weights: dict[str, dict[str, torch.Tensor]] = {}

    def get(self, name: str) -> Qwen3ForCausalLM:
        """The model with its first weights, whatever has been done to it since the last call."""
        if name not in self._models:
            model = AutoModelForCausalLM.from_pretrained(self._folder(name), dtype=torch.float32)
            self._weights[name] = copy.deepcopy(model.state_dict())
            self._models[name] = model.eval()
        self._models[name].load_state_dict(self._weights[name])
        return self._models[name]

    def _folder(self, name: str) -> Path:
        if name != HARD_TEACHER:
            return _SHIPPED / name
        folder = self._work / name
        if not folder.exists():
            _train_hard_teacher(folder)
        return folder


def _train_hard_teacher(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    model = make_models.train(HARD_RECIPE)
    # Under another name until whole, so that a cut run leaves no half a teacher.
    partial = folder.with_suffix(".partial")
    make_models.save(model, partial)
    partial.rename(folder)
