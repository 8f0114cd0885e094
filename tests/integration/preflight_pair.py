"""The embedded pair as folders that a test may damage, and a run's configuration over them."""

import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from opdvr.integration.config import DEMO_MODELS, compose


def copy_model(name, folder):
    """The embedded model of that name, in a folder of its own."""
    shutil.copytree(DEMO_MODELS / name, folder)
    return folder


def change_json(path, **changes):
    """Keys of a JSON file set, or with None removed."""
    values = json.loads(path.read_text()) if path.exists() else {}
    values |= changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def write_prompts(path, contents):
    rows = {
        "prompt": [[{"role": "user", "content": content}] for content in contents],
        "data_source": ["demo"] * len(contents),
        "reward_model": [{"ground_truth": "5"}] * len(contents),
    }
    pq.write_table(pa.table(rows), path)
    return path


def make_config(folder, *overrides, prompts=("347*8+9=?", "120*2+0=?", "999*9+9=?", "505*7+3=?")):
    """A CPU run of copies of the careless student and the faulty teacher in `folder`."""
    for role, name in (("student", "student"), ("teacher", "teacher-faulty")):
        if not (folder / role).exists():
            copy_model(name, folder / role)
    data = write_prompts(folder / "train.parquet", prompts)
    return compose(
        [
            "platform=cpu",
            "task=demo",
            f"actor_rollout_ref.model.path={folder / 'student'}",
            f"reward_model.model.path={folder / 'teacher'}",
            f"data.train_files={data}",
            f"data.val_files={data}",
            "data.max_prompt_length=64",
            *overrides,
        ]
    )


def by_level(findings, level):
    """One line for each finding of that level."""
    return [str(found) for found in findings if found.level == level]


def swap_outputs(folder, one, other):
    """The model gives each of two tokens the other's logit; the embeddings are no longer tied."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    rows = tensors["model.embed_tokens.weight"].clone()
    rows[[one, other]] = rows[[other, one]]
    save_file(tensors | {"lm_head.weight": rows}, file, metadata={"format": "pt"})
    change_json(folder / "config.json", tie_word_embeddings=False)


def running_on(rows):
    """`pack` with positions that do not begin anew, so that sequences see each other."""
    import torch

    from opdvr.integration.preflight.layouts import pack

    row = pack(rows)
    return replace(row, position_ids=torch.arange(row.input_ids.shape[1])[None])
