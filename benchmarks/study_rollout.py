"""Prompts, responses and verdicts of the embedded task, as fast as one core gives them.

Every prompt of the task has the same number of tokens, so nothing is padded on the left and
attention is plainly causal. B responses, P prompt tokens, T response tokens, V vocabulary.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import Qwen3ForCausalLM

from benchmarks.study_decode import Decoder
from opdvr.demo.task import (
    DATA_SOURCE,
    MAX_PROMPT_TOKENS,
    MAX_RESPONSE_TOKENS,
    Problem,
    problems,
)
from opdvr.demo.tokenizer import ASSISTANT, EOS_ID, PAD_ID, TOKENS, USER
from opdvr.verifier import compute_score

_ID = {token: number for number, token in enumerate(TOKENS)}
_SPECIAL = _ID[ASSISTANT]  # ids up to here are markers, which no text shows
# A response with one box, and plain digits in it: golds are whole numbers.
_PLAIN = re.compile(r"[^\\{}]*\\boxed\{(\d+)\}[^\\{}]*")

# Of the training problems the main runs draw from the first, tuning from the others; of the
# held-out ones the demo's own test file is for the final figures alone.
_MAIN_POOL, _TUNING_POOL = slice(0, 40_000), slice(40_000, None)
_MAIN_TEST, _TUNING_TEST = 0, 4096
_SEED_STRIDE = 10_000  # more steps than any run has
_EVALUATION_STEP = _SEED_STRIDE - 1


class Rollout(NamedTuple):
    """One batch, rows of a prompt together.

    ids: [B,P+T] int64. responses: [B,T], right-padded; T is the same for all batches. mask: [B,T]
    bool, the end token included. scores: [B] float32, 1.0 right. groups: [B] int64. problems: [B].
    """

    ids: torch.Tensor
    responses: torch.Tensor
    mask: torch.Tensor
    scores: torch.Tensor
    groups: torch.Tensor
    problems: list[Problem]


def training_problems(seed: int, steps: int, prompts: int, tuning: bool) -> list[list[Problem]]:
    """`prompts` problems for each of `steps`, without repeats; the same for equal seeds."""
    pool = list(problems("train")[_TUNING_POOL if tuning else _MAIN_POOL])
    random.Random(seed).shuffle(pool)
    return [pool[start : start + prompts] for start in range(0, steps * prompts, prompts)]


def test_problems(count: int, tuning: bool) -> Sequence[Problem]:
    """Held-out problems: for the final figures, or the other ones that tuning looks at."""
    first = _TUNING_TEST if tuning else _MAIN_TEST
    return problems("test")[first : first + count]


def prompt_ids(chosen: Sequence[Problem]) -> torch.Tensor:
    """[B,P] int64: the chat template's tokens, user marker, question, assistant marker."""
    ids = [[_ID[USER], *(_ID[c] for c in problem.prompt), _ID[ASSISTANT]] for problem in chosen]
    return torch.tensor(ids)


@torch.inference_mode()
def _generate(
    model: Qwen3ForCausalLM, prompts: torch.Tensor, generator: torch.Generator | None
) -> torch.Tensor:
    """[B,T] int64 response ids at temperature 1 (greedy without a generator), padded with PAD."""
    rows, prompt_tokens = prompts.shape
    decoder = Decoder(model, rows, prompt_tokens + MAX_RESPONSE_TOKENS)
    responses = torch.full((rows, MAX_RESPONSE_TOKENS), PAD_ID)
    ended = torch.zeros(rows, dtype=torch.bool)
    tokens = prompts
    for position in range(MAX_RESPONSE_TOKENS):
        weights = decoder.logits(tokens).softmax(-1)
        if generator is not None:
            # argmax p/e with e from Exp(1) is a draw from p
            weights = weights / torch.empty_like(weights).exponential_(generator=generator)
        chosen = weights.argmax(-1).masked_fill(ended, PAD_ID)
        responses[:, position] = chosen
        ended |= chosen == EOS_ID
        if ended.all():
            break
        tokens = chosen[:, None]
    return responses


def text_of(response: Sequence[int]) -> str:
    """The response as text, without markers."""
    return "".join(TOKENS[token] for token in response if token > _SPECIAL)


def verdict(text: str, gold: str) -> float:
    """`compute_score`'s score; without it where the text has no box, or one with a plain number."""
    if "\\boxed" not in text:
        return 0.0
    plain = _PLAIN.fullmatch(text)
    if plain:
        return float(int(plain[1]) == int(gold))
    return float(compute_score(DATA_SOURCE, text, gold)["score"])


def sample(
    model: Qwen3ForCausalLM, chosen: Sequence[Problem], group_size: int, seed: int, step: int
) -> Rollout:
    """`group_size` responses to each problem at temperature 1, judged.

    Equal (seed, step) use the same random numbers for each row and position, so that methods which
    are compared differ in nothing else.
    """
    generator = torch.Generator().manual_seed(seed * _SEED_STRIDE + step)
    return _judged(model, [p for p in chosen for _ in range(group_size)], group_size, generator)


def _judged(
    model: Qwen3ForCausalLM,
    rows: list[Problem],
    group_size: int,
    generator: torch.Generator | None,
) -> Rollout:
    prompts = prompt_ids(rows)
    assert prompts.shape[1] == MAX_PROMPT_TOKENS, "prompts are not of one length"
    # cloned: what inference mode made cannot be saved for a backward pass
    responses = _generate(model, prompts, generator).clone()
    texts = [text_of(response) for response in responses.tolist()]
    scores = [verdict(text, row.answer) for text, row in zip(texts, rows, strict=True)]
    groups = torch.arange(len(rows)) // group_size
    return Rollout(
        torch.cat((prompts, responses), 1),
        responses,
        _until_end(responses),
        torch.tensor(scores),
        groups,
        rows,
    )


def _until_end(responses: torch.Tensor) -> torch.Tensor:
    # Not `responses != PAD`: nothing keeps a model from sampling the padding token.
    is_end = (responses == EOS_ID).int()
    return is_end.cumsum(1) - is_end == 0


def accuracy(
    model: Qwen3ForCausalLM, chosen: Sequence[Problem], samples: int, seed: int
) -> dict[str, float]:
    """`sampled`: mean score of `samples` responses a problem at temperature 1; `greedy`: of one."""
    sampled = sample(model, chosen, samples, seed, _EVALUATION_STEP)
    greedy = _judged(model, list(chosen), 1, None)
    return {"sampled": sampled.scores.mean().item(), "greedy": greedy.scores.mean().item()}
