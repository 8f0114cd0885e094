"""Accuracy of models on a data file of the embedded task, sampled and greedy.

python -m opdvr.demo.evaluate MODEL... --data FILE [--n N] [--json]
"""

import argparse
import json
import math
import os
import time
from collections.abc import Sequence

import pyarrow.parquet as pq
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from opdvr.demo.task import MAX_RESPONSE_TOKENS
from opdvr.verifier import compute_score

# Rows generated at once: enough to hide the cost of a call, few enough for any memory.
_ROWS_AT_ONCE = 512


@torch.no_grad()
def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    temperature: float,
) -> list[str]:
    sampling = {"do_sample": False}
    if temperature > 0:
        # Every filter off: the plain distribution, whatever the model's folder recommends.
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    responses: list[str] = []
    for start in range(0, len(prompts), _ROWS_AT_ONCE):
        batch = tokenizer(
            list(prompts[start : start + _ROWS_AT_ONCE]),
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        ids = model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=MAX_RESPONSE_TOKENS,
            **sampling,
        )
        new_ids = ids[:, batch.input_ids.shape[1] :]
        responses += tokenizer.batch_decode(new_ids, skip_special_tokens=True)
    return responses


def _read_rows(parquet: str | os.PathLike[str], limit: int | None) -> list[dict[str, object]]:
    if not os.path.isfile(parquet):
        raise ValueError(f"there is no data file {os.fspath(parquet)}: opdvr.demo.task writes one")
    columns = ["data_source", "prompt", "reward_model"]
    rows = pq.read_table(parquet, columns=columns).slice(0, limit).to_pylist()
    if not rows:
        raise ValueError(f"{os.fspath(parquet)} has no rows to evaluate on (limit={limit})")
    return rows


def _mean_scores(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[dict[str, object]],
    samples: int,
    temperature: float,
) -> torch.Tensor:
    """Mean verifier score of each row over its samples, [rows] float64."""
    asked = [row for row in rows for _ in range(samples)]
    prompts = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        for row in asked
    ]
    responses = _generate(model, tokenizer, prompts, temperature)
    scores = [
        compute_score(row["data_source"], text, row["reward_model"]["ground_truth"])["score"]
        for row, text in zip(asked, responses, strict=True)
    ]
    return torch.tensor(scores, dtype=torch.float64).view(-1, samples).mean(1)


def evaluate(
    model_dir: str | os.PathLike[str],
    parquet: str | os.PathLike[str],
    n_samples: int = 1,
    temperature: float = 1.0,
    seed: int = 0,
    limit: int | None = None,
    greedy: bool = True,
) -> dict[str, float | int | str | None]:
    """Judge a model's responses to the first `limit` rows of `parquet` with the product's verifier.

    Returns `sampled_accuracy` (mean over rows of `n_samples` responses each at `temperature`),
    `sampled_stderr` (its standard error over rows), `greedy_accuracy` (None without `greedy`), and
    what was asked for. Float32 on the CPU; torch's generator is left as it was.
    Raises ValueError for a model or file that is not there, a file without rows, and counts or
    temperatures that are not positive.
    """
    if n_samples < 1 or temperature <= 0 or (limit is not None and limit < 1):
        raise ValueError(
            f"n_samples={n_samples}, temperature={temperature}, limit={limit}: give positive values"
        )
    # Without this check transformers would look for the name on its hub.
    if not os.path.isfile(os.path.join(model_dir, "config.json")):
        raise ValueError(f"there is no model in {os.fspath(model_dir)}: it has no config.json")
    started = time.monotonic()
    rows = _read_rows(parquet, limit)
    tokenizer = AutoTokenizer.from_pretrained(os.fspath(model_dir))
    model = AutoModelForCausalLM.from_pretrained(os.fspath(model_dir), dtype=torch.float32).eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sampled = _mean_scores(model, tokenizer, rows, n_samples, temperature)
    greedy_scores = _mean_scores(model, tokenizer, rows, 1, 0.0) if greedy else None
    return {
        "model": os.fspath(model_dir),
        "data": os.fspath(parquet),
        "sampled_accuracy": sampled.mean().item(),
        "sampled_stderr": sampled.std(correction=0).item() / math.sqrt(len(rows)),
        "greedy_accuracy": greedy_scores.mean().item() if greedy else None,
        "problems": len(rows),
        "n_samples": n_samples,
        "temperature": temperature,
        "seed": seed,
        "seconds": round(time.monotonic() - started, 1),
    }


def _print_table(results: Sequence[dict[str, float | int | str | None]]) -> None:
    width = max(len(str(result["model"])) for result in results)
    print(f"{'model':<{width}}  sampled  stderr  greedy  problems  samples")
    for r in results:
        print(
            f"{r['model']:<{width}}  {r['sampled_accuracy']:7.3f}  {r['sampled_stderr']:6.3f}  "
            f"{r['greedy_accuracy']:6.3f}  {r['problems']:8d}  {r['n_samples']:7d}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: one line a model, or a JSON list with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="model folders")
    parser.add_argument("--data", required=True, help="parquet file in verl's schema")
    parser.add_argument("--n", type=int, default=4, help="samples a problem (default 4)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="only the first rows of the file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    try:
        results = [
            evaluate(
                model, options.data, options.n, options.temperature, options.seed, options.limit
            )
            for model in options.models
        ]
    except ValueError as mistake:
        parser.error(str(mistake))
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        _print_table(results)


if __name__ == "__main__":
    main()
