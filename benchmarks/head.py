"""The tiled output layer, forward and backward, against dense log-softmax and cross-entropy.

N tokens, H hidden size, V vocabulary, K ids a token. All sides start from the same hidden states
and head: log-probs of given ids, and with training their gradients in hidden states and head. A
last part has ours alone: twice the tokens, twice the vocabulary, and more ids or a top-k.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.measure import Result, interleaved, note, time_results, timed
from benchmarks.memory import MEBIBYTE, peak_mebibytes
from benchmarks.scoring import PEAK, compare
from opdvr.core.head import score_tokens
from opdvr.core.output_layer import OutputLayer

OURS, DENSE, CROSS_ENTROPY = "ours", "dense", "chunked cross_entropy"
QWEN3_VOCABULARY = 151_936
LOGIT_DEVIATION = 2.0  # of the logits, so that they are not nearly uniform
SAMPLED_ROWS = 64  # one row in as many of the head's gradient is compared
GIBIBYTE = 2**30
MANY = (16, 64, 256)

# log-probs [N,K] and, with training, gradients of hidden states and of some rows of the head
Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """Sizes of one case; also what the memory probe's child process is told."""

    tokens: int
    hidden: int
    vocabulary: int
    dtype: str
    chunk_tokens: int
    tile_tokens: int | None
    train: bool
    ids: int = 1
    top_k: int = 0

    def __str__(self) -> str:
        what = "forward + backward" if self.train else "forward"
        return f"{self.tokens} tokens, hidden {self.hidden}, {what}"

    def head_bytes(self) -> int:
        """The head, and as much again for its gradient."""
        return self.vocabulary * self.hidden * getattr(torch, self.dtype).itemsize

    def dense_bytes(self) -> int:
        """What the dense side holds at its peak, the head and its gradient included."""
        tables = 3 if self.train else 2
        return tables * 4 * self.tokens * self.vocabulary + (1 + self.train) * self.head_bytes()


def add_options(parser: argparse.ArgumentParser) -> None:
    """This benchmark's options."""
    parser.add_argument("--tokens", default="1024", help="numbers of tokens, forward")
    parser.add_argument("--train-tokens", default="512", help="the same, forward and backward")
    parser.add_argument("--hidden", default="1024", help="hidden sizes")
    parser.add_argument("--vocabulary", type=int, default=QWEN3_VOCABULARY)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--tile-tokens", type=int, help="ours; by default chosen by device")
    parser.add_argument("--chunk-tokens", type=int, default=256, help="of chunked cross_entropy")
    parser.add_argument("--memory-limit", type=float, default=7.0, help="GiB a process")
    parser.add_argument("--growth-tokens", type=int, default=256, help="0 leaves growth out")
    parser.add_argument("--growth-hidden", type=int, default=256)


def run(options: argparse.Namespace) -> list[Result]:
    """Time, peak memory and largest differences of every case, then how ours grows."""
    rounds = options.rounds or 2
    cases, base = _cases(options), _growth_base(options)
    if options.quick:
        small = {"tokens": 64, "hidden": 64, "vocabulary": 8192, "chunk_tokens": 16}
        cases = [replace(cases[0], **small, train=True)]
        base = replace(base, tokens=32, hidden=32, vocabulary=2048)
    results: list[Result] = []
    for case in cases:
        note(str(case))
        results += _measure(case, rounds, options.memory_limit)
    if options.growth_tokens:
        groups = _growing_top_k(base, MANY[:1]) if options.quick else _growing(base)
        results += _growth(groups, rounds + 1)
    return results


def _cases(options: argparse.Namespace) -> list[Case]:
    names = ("vocabulary", "dtype", "chunk_tokens", "tile_tokens")
    sizes = {name: getattr(options, name) for name in names}
    return [
        Case(tokens=int(tokens), hidden=int(hidden), train=train, **sizes)
        for hidden in options.hidden.split(",")
        for train, numbers in ((False, options.tokens), (True, options.train_tokens))
        for tokens in numbers.split(",")
        if tokens
    ]


def _growth_base(options: argparse.Namespace) -> Case:
    return Case(
        options.growth_tokens,
        options.growth_hidden,
        options.vocabulary // 2,
        options.dtype,
        options.chunk_tokens,
        options.tile_tokens,
        train=True,
    )


def _measure(case: Case, rounds: int, memory_limit: float) -> list[Result]:
    names = [OURS, DENSE, CROSS_ENTROPY]
    if case.dense_bytes() > memory_limit * GIBIBYTE:
        note(f"dense is left out: it needs {case.dense_bytes() / GIBIBYTE:.1f} GiB")
        names.remove(DENSE)
    sides = dict(zip(names, _sides(case, names), strict=True))
    held = ("the head's gradient", case.head_bytes() / MEBIBYTE) if case.train else None
    return compare(str(case), sides, lambda side: _peak(case, side), rounds, _differences, held)


def _peak(case: Case, side: str) -> float:
    return peak_mebibytes("benchmarks.head:prepare", side=side, **asdict(case))


def prepare(side: str, **case: object) -> Callable[[], Outputs]:
    """The call to measure in a memory probe."""
    return _sides(Case(**case), [side])[0]


def _differences(label: str, ours: Outputs, peer: str, theirs: Outputs) -> list[Result]:
    largest = (ours[0] - theirs[0]).abs().max().item()
    results = [Result(label, "largest log-prob difference", largest, "nats", peer)]
    for what, mine, other in zip(("hidden", "head"), ours[1:], theirs[1:], strict=False):
        relative = ((mine - other).norm() / other.norm()).item()
        results.append(Result(label, f"difference of {what} gradient", relative, "of norm", peer))
    return results


def _growing(base: Case) -> dict[str, dict[str, Case]]:
    """Cases by name, a group for each thing to compare with: the first of it."""
    trained = {
        "as it is": base,
        "2 x tokens": replace(base, tokens=2 * base.tokens),
        "2 x vocabulary": replace(base, vocabulary=2 * base.vocabulary),
        **{f"{k} ids": replace(base, ids=k) for k in MANY},
    }
    label = f"growth from {base}, V = {base.vocabulary}"
    return {label: trained} | _growing_top_k(base, MANY)


def _growing_top_k(base: Case, many: tuple[int, ...]) -> dict[str, dict[str, Case]]:
    plain = replace(base, train=False)
    ranked = {f"top-{k}": replace(plain, top_k=k) for k in many}
    return {f"growth from {plain}, V = {base.vocabulary}": {"as it is": plain} | ranked}


def _growth(groups: dict[str, dict[str, Case]], rounds: int) -> list[Result]:
    """Ours at more of one thing; ratios are the first / it, so 0.5 is twice the cost."""
    results: list[Result] = []
    for label, cases in groups.items():
        note(label)
        calls = {name: _sides(case, [OURS])[0] for name, case in cases.items()}
        memory = {name: _peak(case, OURS) for name, case in cases.items()}
        seconds = interleaved({name: timed(call) for name, call in calls.items()}, rounds, 1)
        first = next(iter(cases))
        for name in cases:
            peers = {} if name == first else {first: seconds[first]}
            results += time_results(f"{label}: {name}", "time", seconds[name], peers)
            ratio = {} if name == first else {"peer": first, "ratio": memory[first] / memory[name]}
            results.append(Result(f"{label}: {name}", PEAK, memory[name], "MiB", **ratio))
    return results


def _sides(case: Case, names: list[str]) -> list[Callable[[], Outputs]]:
    """Calls on the same hidden states, head and ids, each warmed up on a few of them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    make = {"dtype": getattr(torch, case.dtype), "device": device}
    hidden = torch.empty(case.tokens, case.hidden, **make).normal_(generator=generator)
    weight = torch.empty(case.vocabulary, case.hidden, **make)
    weight.normal_(std=LOGIT_DEVIATION / case.hidden**0.5, generator=generator)
    shape = (case.tokens, case.ids)
    ids = torch.randint(case.vocabulary, shape, generator=generator, device=device)
    scale = torch.randn(shape, generator=generator, device=device)
    few = (hidden[:2].clone(), weight[:512].clone(), ids[:2] % 512, scale[:2])

    def side(name: str) -> Callable[[], Outputs]:
        _call(_FUNCTIONS[name], case, *few)
        return lambda: _call(_FUNCTIONS[name], case, hidden, weight, ids, scale)

    return [side(name) for name in names]


def _call(
    function: Callable[..., torch.Tensor],
    case: Case,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    scale: torch.Tensor,
) -> Outputs:
    if not case.train:
        with torch.no_grad():
            return (function(hidden, weight, ids, case),)
    leaves = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    logprobs = function(*leaves, ids, case)
    (logprobs * scale).sum().backward()
    return logprobs.detach(), leaves[0].grad, leaves[1].grad[::SAMPLED_ROWS].clone()


def _ours(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, case: Case
) -> torch.Tensor:
    layer = OutputLayer(weight)
    tile = case.tile_tokens
    return score_tokens(layer, hidden, ids, top_k=case.top_k, tile_tokens=tile).logprobs


def _dense(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, case: Case
) -> torch.Tensor:
    # as lean as autograd lets it be: two [N,V] tensors, three in backward
    return F.linear(hidden, weight).float().log_softmax(-1).gather(1, ids)


def _cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, case: Case
) -> torch.Tensor:
    """In chunks whose logits are computed again in backward, as one would write it by hand."""

    def losses(states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(states, weight).float(), targets, reduction="none")

    chunks = zip(hidden.split(case.chunk_tokens), ids[:, 0].split(case.chunk_tokens), strict=True)
    if not case.train:
        return -torch.cat([losses(*chunk) for chunk in chunks])[:, None]
    parts = [checkpoint(losses, *chunk, use_reentrant=False) for chunk in chunks]
    return -torch.cat(parts)[:, None]


_FUNCTIONS = {OURS: _ours, DENSE: _dense, CROSS_ENTROPY: _cross_entropy}
