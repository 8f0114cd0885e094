"""A small Qwen3 model with a full vocabulary: through the engine, against plain transformers.

Plain: the model's forward on the padded batch, float32 logits [B, P+T, V], log-softmax of the
response part. B responses, P prompt and T response tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import torch

from benchmarks.measure import Result, note
from benchmarks.memory import peak_mebibytes
from benchmarks.scoring import Scores, compare

ENGINE, PLAIN = "engine", "plain transformers"
PROMPT_WIDTH, RESPONSE_WIDTH = 64, 192


def run(
    chunk_tokens: int,
    rounds: int,
    vocabulary: int,
    rows: int,
    entropy: tuple[bool, ...] = (False, True),
) -> list[Result]:
    """Time, peak memory and largest difference, a case for each of `entropy`."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        _write_model(folder, vocabulary)
        for with_entropy in entropy:
            case = {
                "folder": folder,
                "rows": rows,
                "chunk_tokens": chunk_tokens,
                "with_entropy": with_entropy,
            }
            label = f"model of {rows} x {PROMPT_WIDTH + RESPONSE_WIDTH} tokens, "
            label += "with entropy" if with_entropy else "no entropy"
            note(label)
            results += _measure(label, case, rounds)
    return results


def _measure(label: str, case: dict, rounds: int) -> list[Result]:
    def peak(side: str) -> float:
        return peak_mebibytes("benchmarks.teacher_engine:prepare", side=side, **case)

    sides = {name: prepare(name, **case) for name in (ENGINE, PLAIN)}
    return compare(label, sides, peak, rounds)


def prepare(
    side: str, folder: str, rows: int, chunk_tokens: int, with_entropy: bool
) -> Callable[[], Scores]:
    """The call to measure, the model loaded."""
    if side == PLAIN:
        return _plain(folder, rows, with_entropy)
    from benchmarks import verl_workers

    verl_workers.start_process(chunk_tokens)
    micro_batches = verl_workers.MicroBatches(rows=rows)
    worker = verl_workers.training_worker(folder, micro_batches, forward_only=True)
    batch = _batch(worker.model_config.hf_config.vocab_size, rows)
    return lambda: verl_workers.score(worker, batch, with_entropy)


def _plain(folder: str, rows: int, with_entropy: bool) -> Callable[[], Scores]:
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    batch = {key: value.to(device) for key, value in _batch(model.config.vocab_size, rows).items()}
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "position_ids")}
    mask = batch["response_mask"]

    @torch.no_grad()
    def score() -> Scores:
        logits = model(**inputs, use_cache=False).logits.float()
        log_p = logits[:, PROMPT_WIDTH - 1 : -1].log_softmax(-1)
        del logits
        logprobs = log_p.gather(-1, batch["responses"][..., None]).squeeze(-1) * mask
        entropy = -(log_p.exp() * log_p).sum(-1) * mask if with_entropy else None
        return logprobs.cpu(), None if entropy is None else entropy.cpu()

    return score


def _write_model(folder: str, vocabulary: int) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=PROMPT_WIDTH + RESPONSE_WIDTH,
            tie_word_embeddings=True,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
        )
    ).float()
    with torch.no_grad():  # spread the logits, so that an error shows
        model.get_output_embeddings().weight.mul_(5.0)
    model.save_pretrained(folder)


def _batch(vocabulary: int, rows: int) -> dict[str, torch.Tensor]:
    """verl's layout: left-padded prompts and right-padded responses, half to all of their width."""
    generator = torch.Generator().manual_seed(0)

    def lengths(width: int) -> torch.Tensor:
        return torch.randint(width // 2, width + 1, (rows, 1), generator=generator)

    prompt_mask = torch.arange(PROMPT_WIDTH) >= PROMPT_WIDTH - lengths(PROMPT_WIDTH)
    response_mask = torch.arange(RESPONSE_WIDTH) < lengths(RESPONSE_WIDTH)
    attention = torch.cat((prompt_mask, response_mask), 1).long()
    ids = torch.randint(2, vocabulary, attention.shape, generator=generator) * attention
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "response_mask": response_mask.long(),
        "prompts": ids[:, :PROMPT_WIDTH],
        "responses": ids[:, PROMPT_WIDTH:],
    }
