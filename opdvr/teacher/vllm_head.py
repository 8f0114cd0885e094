"""Inside a vLLM worker: prompt log-probs from the tiled head instead of from whole logits.

vLLM's own `prompt_logprobs` holds [tokens, V] several times (logits, log-softmax, ranks), gives the
model's own top K alone, and knows no temperature. This scores the response's positions of all
requests in a batch with `opdvr.core.score_tokens`.

N positions, K the teacher's own top ids, C the student's candidates, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.v1.outputs import LogprobsTensors

from opdvr.core import GivenLogits, OutputLayer, score_tokens
from opdvr.teacher.engines import Wanted

# Keys of SamplingParams.extra_args: where the response begins; [T,C] ids of the student's choice.
START, CANDIDATES = "opdvr_response_start", "opdvr_candidates"
# Positions whose logits are compared once with the model's own.
_CHECKED = 8
# The head multiplies in the weight's dtype as vLLM does; what differs is the order of the sums.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
# Tokens of one tile where the model's own logits are taken: at 152,000 ids 150 MB in float32.
_LOGITS_TILE = 256


class ScoringExtension:
    """Mixed into vLLM's worker by `worker_extension_cls`; called through `collective_rpc`."""

    def score_with_tiled_head(self, wanted: Wanted) -> str:
        """From now on scoring requests go through a `TiledPromptScores`; says how it scores."""
        scorer = TiledPromptScores(self.model_runner, wanted)
        self.model_runner._get_prompt_logprobs_dict = scorer
        return scorer.describe()


class TiledPromptScores:
    """Stands in the place of `GPUModelRunner._get_prompt_logprobs_dict`.

    Its answer, for each request whose prompt is done, is a LogprobsTensors that nobody between here
    and the engine's output looks into: ids [T,K] int32; values [T, 1 + entropy + K + C] float32;
    ranks [T], unused.
    """

    def __init__(self, runner: Any, wanted: Wanted):  # noqa: ANN401
        self._runner = runner
        self._wanted = wanted
        self._layer = _output_layer(runner.model)
        self._checked = self._layer is None
        self._partial: dict[str, LogprobsTensors] = {}

    def describe(self) -> str:
        """One line."""
        return "the tiled head" if self._layer is not None else "the model's own logits, in tiles"

    def __call__(
        self, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
    ) -> dict[str, LogprobsTensors | None]:
        """Score this batch's positions; complete answers by request."""
        runner, finished = self._runner, {}
        parts: list[tuple[LogprobsTensors, int]] = []
        rows, ids = [], []
        for name in list(runner.num_prompt_logprobs):
            scheduled = num_scheduled_tokens.get(name)
            if scheduled is None:  # preempted: its prompt begins again later
                continue
            request = runner.requests[name]
            begin, length = request.num_computed_tokens, len(request.prompt_token_ids)
            start = request.sampling_params.extra_args[START]
            # Position p predicts token p + 1.
            first, last = max(begin, start - 1), min(begin + scheduled, length - 1)
            if first < last:
                offset = runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]].item()
                rows.append(hidden_states[offset + first - begin : offset + last - begin])
                ids.append(self._ids(request, first, last))
                parts.append((self._answer_of(name, request), first - (start - 1)))
            if begin + scheduled >= length:
                finished[name] = self._answer_of(name, request)
                del runner.num_prompt_logprobs[name], self._partial[name]
        if rows:
            self._fill(parts, torch.cat(rows), ids)
        return finished

    def _ids(self, request: Any, first: int, last: int) -> np.ndarray:  # noqa: ANN401
        """[last - first, 1 + C]: the token that came, then the candidates."""
        came = np.asarray(request.prompt_token_ids[first + 1 : last + 1])[:, None]
        candidates = request.sampling_params.extra_args.get(CANDIDATES)
        if candidates is None:
            return came
        begin = first - (request.sampling_params.extra_args[START] - 1)
        return np.concatenate((came, candidates[begin : begin + last - first]), axis=1)

    def _answer_of(self, name: str, request: Any) -> LogprobsTensors:  # noqa: ANN401
        if name not in self._partial:
            extra = request.sampling_params.extra_args
            tokens = len(request.prompt_token_ids) - extra[START]
            candidates = extra.get(CANDIDATES)
            width = 1 + self._wanted.with_entropy + self._wanted.top_k
            width += 0 if candidates is None else candidates.shape[1]
            self._partial[name] = LogprobsTensors(
                torch.empty(tokens, self._wanted.top_k, dtype=torch.int32),
                torch.full((tokens, width), float("nan")),
                torch.zeros(tokens, dtype=torch.int32),
            )
        return self._partial[name]

    def _fill(
        self,
        parts: list[tuple[LogprobsTensors, int]],
        hidden: torch.Tensor,
        ids: list[np.ndarray],
    ) -> None:
        lengths = [len(part) for part in ids]
        all_ids = torch.from_numpy(np.concatenate(ids).astype(np.int64)).to(hidden.device)
        values, top_ids = self._score(hidden, all_ids)
        values, top_ids = values.cpu(), top_ids.cpu()
        for (answer, place), part, part_ids in zip(
            parts, values.split(lengths), top_ids.split(lengths), strict=True
        ):
            answer.logprobs[place : place + len(part)] = part
            answer.logprob_token_ids[place : place + len(part)] = part_ids

    def _score(self, hidden: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values [N, 1 + entropy + K + C] and top ids [N,K]."""
        self._check(hidden)
        if self._layer is not None:
            return self._columns(self._layer, hidden, ids)
        tiles = [
            self._columns(GivenLogits(self._runner.model.compute_logits(tile)), None, tile_ids)
            for tile, tile_ids in zip(
                hidden.split(_LOGITS_TILE), ids.split(_LOGITS_TILE), strict=True
            )
        ]
        values, top_ids = zip(*tiles, strict=True)
        return torch.cat(values), torch.cat(top_ids)

    def _columns(
        self, source: OutputLayer | GivenLogits, hidden: torch.Tensor | None, ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wanted = self._wanted
        scores = score_tokens(
            replace(source, vocabulary=wanted.vocabulary),
            hidden,
            ids,
            temperature=wanted.temperature,
            with_entropy=wanted.with_entropy,
            top_k=wanted.top_k,
        )
        columns = [scores.logprobs[:, :1], scores.logprobs[:, 1:]]
        if wanted.top_k:
            columns.insert(1, scores.top_logprobs)
        if wanted.with_entropy:
            columns.insert(1, scores.entropy[:, None])
        top_ids = scores.top_ids if wanted.top_k else ids[:, :0]
        return torch.cat(columns, -1).float(), top_ids.int()

    def _check(self, hidden: torch.Tensor) -> None:
        """Once: our logits against the model's own; where they differ, take the model's."""
        if self._checked:
            return
        self._checked = True
        few = hidden[:_CHECKED]
        own = self._runner.model.compute_logits(few).float().log_softmax(-1)
        ids = torch.arange(own.shape[1], device=own.device).expand(len(few), -1)
        layer = self._layer
        if layer.size == own.shape[1]:
            difference = (score_tokens(layer, few, ids).logprobs - own).abs().amax().item()
            if difference <= _TOLERANCE[layer.weight.dtype]:
                return
        self._layer = None
        print("opdvr: teacher: its logits are not one linear layer; taking the model's own")


def _output_layer(model: Any) -> OutputLayer | None:  # noqa: ANN401
    """The model's output layer where it is whole and plain on this device, else None."""
    head, after = getattr(model, "lm_head", None), getattr(model, "logits_processor", None)
    if head is None or after is None or head.tp_size > 1:
        return None
    if not isinstance(head.quant_method, UnquantizedEmbeddingMethod):
        return None
    size = head.org_vocab_size
    bias = getattr(head, "bias", None)
    return OutputLayer(
        head.weight[:size],
        None if bias is None else bias[:size],
        logit_scale=after.scale,
        soft_cap=after.soft_cap,
    )
