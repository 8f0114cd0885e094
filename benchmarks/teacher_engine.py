"""Whole Qwen3-shaped models with a full vocabulary.

`run`: a small one through the engine, against plain transformers: the model's forward on the padded
batch, float32 logits [B, P+T, V], log-softmax of the response part. B responses, P prompt and T
response tokens. `over_backbone`: what scoring adds to a backbone that has no head.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from benchmarks.measure import (
    CPU,
    TOTAL,
    Result,
    interleaved,
    note,
    over_rounds,
    phase_of,
    time_results,
    timed,
)
from benchmarks.memory import peak_mebibytes
from benchmarks.scoring import Scores, compare
from opdvr.core.head import score_tokens
from opdvr.core.output_layer import OutputLayer

if TYPE_CHECKING:
    from transformers import Qwen3Config

ENGINE, PLAIN = "engine", "plain transformers"
PROMPT_WIDTH, RESPONSE_WIDTH = 64, 192
DISTINCT_LAYERS = 28  # more repeat these, which takes as long and needs less memory


def run(
    tile_tokens: int | None,
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
                "tile_tokens": tile_tokens,
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
    side: str, folder: str, rows: int, tile_tokens: int | None, with_entropy: bool
) -> Callable[[], Scores]:
    """The call to measure, the model loaded."""
    if side == PLAIN:
        return _plain(folder, rows, with_entropy)
    from benchmarks import verl_workers

    verl_workers.start_process(tile_tokens)
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


def over_backbone(
    hidden: int, layers: int, vocabulary: int, tokens: int, rounds: int
) -> list[Result]:
    """Time of a backbone and the scores of all its tokens, over that of the backbone alone.

    Also the least that can be, as if only products took time: 1 + head / backbone, in FLOPs.
    """
    label = f"backbone of {layers} layers, hidden {hidden}, {tokens} tokens"
    note(label)
    sides = _backbone_sides(hidden, layers, vocabulary, tokens)
    calls = {name: timed(side) for name, (side, _) in sides.items()}
    seconds = interleaved(calls, rounds, warm_up=1)
    (bare, (_, backbone_flops)), *scored = sides.items()
    results = list(time_results(f"{label}: {bare}", "time", seconds[bare]))
    for name, (_, flops) in scored:
        case = f"{label}: {name}"
        least = flops / backbone_flops
        results.append(Result(case, "FLOPs of products over the backbone's", least, "x"))
        for what, phase in (("time", TOTAL), ("CPU time", CPU)):
            pairs = zip(phase_of(seconds[name], phase), phase_of(seconds[bare], phase), strict=True)
            times = [mine / alone for mine, alone in pairs]
            results.append(over_rounds(case, f"{what} over the backbone's", "x", times))
    return results


def _backbone_sides(
    hidden: int, layers: int, vocabulary: int, tokens: int
) -> dict[str, tuple[Callable[[], object], int]]:
    """Calls by name, the bare backbone first, each with the FLOPs of its products a token."""
    from transformers import AutoModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    distinct = min(layers, DISTINCT_LAYERS)
    config = _config(vocabulary, hidden, distinct, max(tokens, PROMPT_WIDTH + RESPONSE_WIDTH))
    with torch.device(device):
        model = AutoModel.from_config(config, dtype=torch.float32).eval()
        ids = torch.randint(2, vocabulary, (1, tokens))
    weight = model.get_input_embeddings().weight.detach()  # tied
    one_layer = 2 * sum(p.numel() for p in model.layers[0].parameters() if p.dim() == 2)
    products = one_layer * layers
    model.layers = torch.nn.ModuleList(model.layers[i % distinct] for i in range(layers))
    model.config.num_hidden_layers = layers

    @torch.no_grad()
    def states() -> torch.Tensor:
        return model(input_ids=ids, use_cache=False).last_hidden_state[0]

    @torch.no_grad()
    def score(with_entropy: bool) -> Scores:
        layer, targets = OutputLayer(weight), ids[0, :, None]
        scores = score_tokens(layer, states(), targets, with_entropy=with_entropy)
        return scores.logprobs[:, 0], scores.entropy

    whole = products + 2 * weight.numel()
    return {
        "backbone": (states, products),
        "scored": (lambda: score(False), whole),
        "scored with entropy": (lambda: score(True), whole),
    }


def _config(vocabulary: int, hidden: int, layers: int, positions: int) -> Qwen3Config:
    """Qwen3's proportions: the MLP three times as wide, two query heads for one of keys."""
    from transformers import Qwen3Config

    heads = max(hidden // 64, 2)
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=min(2 * hidden // heads, 128),
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )


def _write_model(folder: str, vocabulary: int) -> None:
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        _config(vocabulary, hidden=256, layers=2, positions=PROMPT_WIDTH + RESPONSE_WIDTH)
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
