"""Teacher scoring: the tiled head against dense float32 log-softmax and chunked cross-entropy.

N tokens, H hidden size, V vocabulary. All sides start from the same hidden states and head, without
gradients. The last cases take whole models: a small one through the engine, and larger ones to see
what scoring adds to a bare backbone (benchmarks/teacher_engine.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F

from benchmarks import teacher_engine
from benchmarks.measure import Result, note
from benchmarks.memory import peak_mebibytes
from benchmarks.scoring import Scores, compare
from opdvr.core.head import score_tokens
from opdvr.core.output_layer import OutputLayer
from opdvr.integration.options import OpdvrOptions

OURS, DENSE, CROSS_ENTROPY = "ours", "dense", "chunked cross_entropy"
QWEN3_VOCABULARY = 151_936
QUICK_VOCABULARY = 4096
# Qwen3-0.6B's shape, and the same with as many layers as give its head a larger model's share
BACKBONES = "1024x28,1024x84"
LOGIT_SCALE = 2.0  # standard deviation of the logits, so that they are not nearly uniform
GIBIBYTE = 2**30


@dataclass(frozen=True)
class Case:
    """Sizes of one case; also what the memory probe's child process is told."""

    tokens: int
    hidden: int
    vocabulary: int
    chunk_tokens: int
    tile_tokens: int | None
    dtype: str
    with_entropy: bool

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {'with' if self.with_entropy else 'no'} entropy"

    def dense_bytes(self) -> int:
        """What the dense side holds at its peak, the head included."""
        element = getattr(torch, self.dtype).itemsize
        logits = 4 * (3 if self.with_entropy else 2) + (element if element < 4 else 0)
        return self.vocabulary * (self.tokens * logits + self.hidden * element)


def add_options(parser: argparse.ArgumentParser) -> None:
    """This benchmark's options."""
    parser.add_argument("--tokens", default="512,1024,2048,4096", help="numbers of tokens")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=QWEN3_VOCABULARY)
    tile = OpdvrOptions.head_chunk_tokens
    parser.add_argument("--tile-tokens", type=int, default=tile, help="opdvr.head_chunk_tokens")
    parser.add_argument("--chunk-tokens", type=int, default=256, help="of chunked cross_entropy")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--memory-limit", type=float, default=7.0, help="GiB a process")
    parser.add_argument("--engine-rows", type=int, default=8, help="responses of the engine's case")
    parser.add_argument("--backbone", default=BACKBONES, help="HIDDENxLAYERS, ...; none: ''")
    parser.add_argument("--backbone-tokens", type=int, default=256)


def run(options: argparse.Namespace) -> list[Result]:
    """Time and peak memory of every case that fits, and the largest difference of the values."""
    rounds = options.rounds or 3
    cases = _cases(options)
    model = {"vocabulary": options.vocabulary, "rows": options.engine_rows}
    backbones = [tuple(map(int, part.split("x"))) for part in options.backbone.split(",") if part]
    backbone_tokens = options.backbone_tokens
    if options.quick:
        rounds = 2
        cases = [
            replace(case, tokens=64, hidden=64, vocabulary=QUICK_VOCABULARY, chunk_tokens=16)
            for case in cases[:2]
        ]
        model = {"vocabulary": QUICK_VOCABULARY, "rows": 4, "entropy": (True,)}
        backbones, backbone_tokens = [(64, 2)], 64
    results: list[Result] = []
    for case in cases:
        if case.dense_bytes() > options.memory_limit * GIBIBYTE:
            note(f"left out: {case}; dense needs {case.dense_bytes() / GIBIBYTE:.1f} GiB")
            continue
        note(str(case))
        results += _measure(case, rounds)
    results += teacher_engine.run(options.tile_tokens, rounds, **model)
    for hidden, layers in backbones:
        results += teacher_engine.over_backbone(
            hidden, layers, model["vocabulary"], backbone_tokens, rounds
        )
    return results


def _cases(options: argparse.Namespace) -> list[Case]:
    sizes = {
        name: getattr(options, name)
        for name in ("hidden", "vocabulary", "chunk_tokens", "tile_tokens", "dtype")
    }
    return [
        Case(tokens=int(tokens), with_entropy=entropy, **sizes)
        for tokens in options.tokens.split(",")
        for entropy in (False, True)
        if tokens
    ]


def _measure(case: Case, rounds: int) -> list[Result]:
    names = [OURS, DENSE] if case.with_entropy else [OURS, DENSE, CROSS_ENTROPY]

    def peak(side: str) -> float:
        return peak_mebibytes("benchmarks.teacher:prepare", side=side, **asdict(case))

    return compare(str(case), dict(zip(names, _sides(case, names), strict=True)), peak, rounds)


def prepare(side: str, **case: object) -> Callable[[], Scores]:
    """The call to measure in a memory probe."""
    return _sides(Case(**case), [side])[0]


def _sides(case: Case, names: list[str]) -> list[Callable[[], Scores]]:
    """Calls on the same hidden states, head and targets, each warmed up on a few ids."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, case.dtype)
    generator = torch.Generator(device).manual_seed(0)
    make = {"dtype": dtype, "device": device}
    hidden = torch.empty(case.tokens, case.hidden, **make).normal_(generator=generator)
    weight = torch.empty(case.vocabulary, case.hidden, **make)
    weight.normal_(std=LOGIT_SCALE / case.hidden**0.5, generator=generator)
    targets = torch.randint(case.vocabulary, (case.tokens,), generator=generator, device=device)

    def side(name: str) -> Callable[[], Scores]:
        function = _FUNCTIONS[name]
        function(hidden[:2], weight[:16], targets[:2] % 16, case)
        return lambda: function(hidden, weight, targets, case)

    return [side(name) for name in names]


@torch.no_grad()
def _ours(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, case: Case) -> Scores:
    tile, entropy = case.tile_tokens, case.with_entropy
    layer, ids = OutputLayer(weight), targets[:, None]
    scores = score_tokens(layer, hidden, ids, tile_tokens=tile, with_entropy=entropy)
    return scores.logprobs[:, 0], scores.entropy


@torch.no_grad()
def _dense(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, case: Case) -> Scores:
    logits = F.linear(hidden, weight).float()
    log_p = logits.log_softmax(-1)
    del logits  # as lean as it can be: two [N,V] tensors, three with entropy
    logprobs = log_p.gather(1, targets[:, None]).squeeze(1)
    entropy = -(log_p.exp() * log_p).sum(-1) if case.with_entropy else None
    return logprobs, entropy


@torch.no_grad()
def _cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, case: Case
) -> Scores:
    chunks = zip(hidden.split(case.chunk_tokens), targets.split(case.chunk_tokens), strict=True)
    losses = [
        F.cross_entropy(F.linear(states, weight).float(), ids, reduction="none")
        for states, ids in chunks
    ]
    return -torch.cat(losses), None


_FUNCTIONS = {OURS: _ours, DENSE: _dense, CROSS_ENTROPY: _cross_entropy}
