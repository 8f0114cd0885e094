"""One server as a scorer: which model it has, that it is the right one, and scores out of it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import numpy as np

from opdvr.teacher.answers import Asked, Malformed, read_scores
from opdvr.teacher.client import Client, Missing
from opdvr.teacher.engines import Scores, Sequence, TeacherSettings, Wanted, WrongAnswer
from opdvr.teacher.served_models import (
    PROBE_TOLERANCE,
    ModelCard,
    choose_model,
    probe_difference,
    probe_ids,
)


class Scorer:
    """Asks one server; faults of its answers become a WrongAnswer that names it.

    Attributes:
        card: the model that it scores with; None before `meet`.
        probe: [N] the probe's log-probs under it, float32 nats; None before `meet`.
    """

    def __init__(self, client: Client, settings: TeacherSettings, wanted: Wanted, parse: Executor):
        self.address = client.address
        self.card: ModelCard | None = None
        self.probe: np.ndarray | None = None
        self._client, self._wanted, self._parse = client, wanted, parse
        self._model = settings.model or None
        self._probe_ids = probe_ids(wanted.vocabulary, settings.max_tokens)

    async def meet(self) -> None:
        """Learn the model and its probe; the second time, that both are what they were.

        Raises:
            Unreachable, Busy: try again later.
            WrongAnswer: no model to score with, a faulty probe, or another model than before.
        """
        try:
            await self._client.health()
            card = choose_model(await self._client.models(), self._model)
        except (Malformed, Missing) as fault:
            raise self._wrong(str(fault)) from None
        if self.card is not None and card.names != self.card.names:
            raise self._wrong(f"it served {self.card} before and came back with {card}")
        # Random ids may well make an id of the padding likely: only real text is held to that.
        probe = (await self._ask(self._probe_ids, 1, card, None, "the probe")).log_probs
        if self.probe is not None:
            apart = probe_difference(self.probe, probe)
            if apart > PROBE_TOLERANCE:
                raise self._wrong(
                    f"it came back as {card} with other weights than {self.card} had: log-probs of "
                    f"a fixed sequence differ by {apart:.3g} nats a token"
                )
            return
        self.card, self.probe = card, probe

    async def score(self, sequence: Sequence) -> Scores:
        """Scores of one response.

        Raises:
            Unreachable, Busy: try again, here or elsewhere.
            TeacherError: another try cannot help.
        """
        return await self._ask(
            sequence.token_ids,
            sequence.response_start,
            self.card,
            self._wanted.vocabulary,
            sequence.name,
        )

    def require_same(self, other: Scorer) -> None:
        """Refuse two servers of one teacher with different models; WrongAnswer naming both."""
        apart = probe_difference(self.probe, other.probe)
        if apart > PROBE_TOLERANCE:
            raise self._wrong(
                f"it serves {self.card}, and {other.address}, a server of the same teacher, "
                f"{other.card}: log-probs of a fixed sequence differ by {apart:.3g} nats a token; "
                "give one teacher servers of one model, in TEACHER_URLS (opdvr.teacher_urls)"
            )

    async def _ask(
        self, ids: np.ndarray, start: int, card: ModelCard, vocabulary: int | None, name: str
    ) -> Scores:
        asked = Asked(ids, start, self._wanted.top_k, vocabulary, card.id)
        try:
            body = await self._client.score(card.id, ids, asked.top_k)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._parse, read_scores, body, asked)
        except Missing as missing:
            fault = f"it has no {card.id} to score with any more, or is no vLLM server: {missing}"
        except Malformed as malformed:
            fault = str(malformed)
        raise self._wrong(f"{name}: {fault}")

    def _wrong(self, text: str) -> WrongAnswer:
        return WrongAnswer(f"teacher server {self.address}: {text}")
