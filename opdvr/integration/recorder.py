"""What a step leaves in the run folder for people to look at: the gate's anatomy, a few responses.

Bounded whatever the run's length: so many steps are written, of each so many responses, and of a
long response the beginning and the end. docs/report.md has the files' columns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from verl import DataProto

from opdvr.core import Anatomy, anatomy_metrics, most_pushed
from opdvr.core.anatomy import EDGES, POSITION_ROWS, POSITION_STARTS, RATIO_ROWS, VERDICTS
from opdvr.integration.observed import NO_SLOT, Observed, Trace
from opdvr.integration.signal import Signal, sample_names
from opdvr.report.step_records import ANATOMY_NAME, TOKEN_SAMPLES_NAME

# Steps that are written of a run: some 6 KB of anatomy, and of 1,024 tokens a response some 30 KB.
ANATOMY_STEPS, SAMPLED_STEPS = 256, 48
# Of a longer response the first and the last so many tokens are kept.
FIRST_TOKENS, LAST_TOKENS = 768, 256
PUSHED_TOKENS = 20
PROMPT_CHARS = 4000
_BROKEN = "\ufffd"  # what a tokenizer makes of a piece of a character

Record = tuple[str, dict[str, Any]]  # file name in the run folder, line


@dataclass
class Recorder:
    """Chooses what is written of each step.

    tokenizer: the student's. source_key: column of the data sources' names. responses: how many a
    written step; 0 for none. total_steps: of the run, which spreads the written ones over it.
    """

    tokenizer: Any
    source_key: str
    responses: int
    total_steps: int
    _has_header: bool = False

    def choose(self, step: int, correct: torch.Tensor) -> torch.Tensor:
        """[B] int64: 0, 1, ... for the responses to trace, NO_SLOT for the others.

        Half of them correct and half not, as far as there are; drawn by the step's number, so the
        same in a repeated step.
        """
        slots = torch.full((len(correct),), NO_SLOT, dtype=torch.int64)
        if not self.responses or not self._is_written(step, SAMPLED_STEPS):
            return slots
        draw = random.Random(step)
        rows = [torch.nonzero(correct == verdict).squeeze(-1).tolist() for verdict in (True, False)]
        for side in rows:
            draw.shuffle(side)
        few, many = sorted(rows, key=len)
        few = few[: (self.responses + 1) // 2]
        for slot, row in enumerate(few + many[: self.responses - len(few)]):
            slots[row] = slot
        return slots

    def metrics(self, observed: Observed | None) -> dict[str, float]:
        """Quantiles of the log-ratio, and its mean by position."""
        return {} if observed is None else anatomy_metrics(observed.anatomy)

    def records(
        self,
        step: int,
        batch: DataProto,
        facts: Signal,
        slots: torch.Tensor,
        observed: Observed | None,
    ) -> list[Record]:
        """The lines of this step; without a teacher, responses without values."""
        lines: list[Record] = []
        if observed is not None and self._is_written(step, ANATOMY_STEPS):
            if not self._has_header:
                lines.append((ANATOMY_NAME, header()))
                self._has_header = True
            lines.append((ANATOMY_NAME, self._anatomy_line(step, observed.anatomy)))
        traces = {} if observed is None else observed.traces
        for row in torch.nonzero(slots != NO_SLOT).squeeze(-1).tolist():
            trace = traces.get(int(slots[row]))
            lines.append((TOKEN_SAMPLES_NAME, self._sample(step, row, batch, facts, trace)))
        return lines

    def _is_written(self, step: int, most: int) -> bool:
        stride = -(-self.total_steps // most)
        return step in (1, self.total_steps) or step % stride == 0

    def _anatomy_line(self, step: int, anatomy: Anatomy) -> dict[str, Any]:
        pushed = most_pushed(anatomy, PUSHED_TOKENS)
        return {
            "step": step,
            "log_ratio": _by_verdict(anatomy.log_ratio, RATIO_ROWS),
            "position": _by_verdict(anatomy.position, POSITION_ROWS),
            "pushed": {
                side: [
                    [token_id, self.tokenizer.decode([token_id]), count, _short(total)]
                    for token_id, count, total in found
                ]
                for side, found in pushed.items()
            },
        }

    def _sample(
        self, step: int, row: int, batch: DataProto, facts: Signal, trace: Trace | None
    ) -> dict[str, Any]:
        mask = batch.batch["response_mask"][row].bool()
        ids = batch.batch["responses"][row][mask].tolist()
        texts = token_texts(self.tokenizer, ids)
        kept = _ends(len(ids))
        # Truncated responses can be masked whole: they have no signal then.
        has_values = trace is not None and len(trace.reward) == len(ids)
        return {
            "step": step,
            "name": sample_names(batch)[row],
            "data_source": str(batch.non_tensor_batch[self.source_key][row]),
            "prompt": self._prompt(batch, row),
            "gold": str(batch.non_tensor_batch["reward_model"][row].get("ground_truth")),
            "response_tokens": len(ids),
            "score": _short(float(facts.scores[row])),
            "correct": bool(facts.correct[row]),
            "truncated": bool(batch.batch["truncated"][row]),
            "scale": None if facts.scale is None else _short(float(facts.scale[row])),
            "tokens": [texts[i] for i in kept],
            "ids": [ids[i] for i in kept],
            "log_ratio": [_short(float(trace.log_ratio[i])) for i in kept] if has_values else None,
            "reward": [_short(float(trace.reward[i])) for i in kept] if has_values else None,
            "zeroed": [int(trace.zeroed[i]) for i in kept] if has_values else None,
            "omitted": [FIRST_TOKENS, len(ids) - len(kept)] if len(kept) < len(ids) else None,
        }

    def _prompt(self, batch: DataProto, row: int) -> str:
        prompt = batch.batch["prompts"][row]
        present = batch.batch["attention_mask"][row][: len(prompt)].bool()
        text = self.tokenizer.decode(prompt[present].tolist())
        return text if len(text) <= PROMPT_CHARS else f"{text[:PROMPT_CHARS]}…"


def header() -> dict[str, Any]:
    """What the lists of an anatomy's line are over; null stands for an infinite edge."""
    edges = [None if edge in (-torch.inf, torch.inf) else edge for edge in EDGES]
    return {"log_ratio_edges": edges, "position_starts": list(POSITION_STARTS)}


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:  # noqa: ANN401
    """Each token's text; of tokens that make up one character the last one has it, the others "".

    Where tokens together are no character either, each has what the tokenizer makes of it.
    """
    texts = [tokenizer.decode([token_id]) for token_id in ids]
    start = None
    for place in range(len(texts)):
        if _BROKEN not in texts[place]:
            start = None
            continue
        start = place if start is None else start
        whole = tokenizer.decode(list(ids[start : place + 1]))
        if _BROKEN not in whole:
            texts[start : place + 1] = [""] * (place - start) + [whole]
            start = None
    return texts


def _ends(length: int) -> list[int]:
    if length <= FIRST_TOKENS + LAST_TOKENS:
        return list(range(length))
    return [*range(FIRST_TOKENS), *range(length - LAST_TOKENS, length)]


def _by_verdict(sums: torch.Tensor, rows: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    return {
        verdict: {
            name: [_short(value) for value in sums[i, :, j].tolist()] for j, name in enumerate(rows)
        }
        for i, verdict in enumerate(VERDICTS)
    }


def _short(value: float) -> float | int:
    """Four significant digits; whole numbers whole."""
    return int(value) if value == int(value) else float(f"{value:.4g}")
