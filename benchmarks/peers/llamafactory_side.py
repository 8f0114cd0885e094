"""LlamaFactory's side of benchmarks/llamafactory_check.py: its own loader on an export's YAML.

Arguments: a JSON list of jobs (folder of an export, tokenizer, rows to show), a scratch folder, a
file for the results. Runs where LlamaFactory is.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
from llamafactory.hparams import get_train_args
from llamafactory.model import load_tokenizer

NO_LOSS = -100  # LlamaFactory's label of a token without loss


def load(folder: Path, tokenizer_folder: str, scratch: Path) -> tuple[dict[str, Any], Any]:
    """Its data sets by name, and the tokenizer as it changed it, from the YAML as it stands."""
    arguments = yaml.safe_load((folder / "sft.yaml").read_text(encoding="utf-8"))
    arguments |= {
        "model_name_or_path": tokenizer_folder,
        "dataset_dir": str(folder),
        "output_dir": str(scratch / "output"),
    }
    if not torch.cuda.is_available():  # where its training arguments refuse bfloat16
        arguments |= {"bf16": False, "use_cpu": True}
    model, data, training, _finetuning, _generating = get_train_args(arguments)
    tokens = load_tokenizer(model)
    template = get_template_and_fix_tokenizer(tokens["tokenizer"], data)
    sets = get_dataset(template, model, data, training, stage="sft", **tokens)
    return sets, tokens["tokenizer"]


def read(job: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Rows of each data set, and the samples asked for with their tokens and loss mask."""
    sets, tokenizer = load(Path(job["folder"]), job["tokenizer"], scratch)
    samples = []
    for row in job["rows"]:
        ids, labels = (sets["train_dataset"][row][name] for name in ("input_ids", "labels"))
        samples.append(
            {
                "row": row,
                "input_ids": ids,
                "labels": labels,
                "loss_mask": [int(label != NO_LOSS) for label in labels],
                "tokens": tokenizer.convert_ids_to_tokens(ids),
            }
        )
    return {
        "llamafactory": importlib.metadata.version("llamafactory"),
        "rows": {name: len(rows) for name, rows in sets.items()},
        "samples": samples,
    }


def main() -> None:
    """Write what was found for each job, as JSON."""
    jobs, scratch, result = sys.argv[1:]
    found = [read(job, Path(scratch)) for job in json.loads(jobs)]
    Path(result).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
