"""Which model a server has, by its names and by a probe of its log-probs."""

from __future__ import annotations

import msgspec
import numpy as np

from opdvr.teacher.answers import Malformed

# The probe: long enough for its mean difference to be steady, short enough to cost nothing.
_PROBE_TOKENS = 64
# Ids that every vocabulary has, for runs that do not know its size.
_SMALLEST_VOCABULARY = 16
_PROBE_SEED = 2608_24696
# Mean absolute difference of the probe's log-probs, nats. In bfloat16 logits of 16 to 32 have
# steps of 0.125, so another batch or another kind of GPU moves single log-probs by tenths: a bound
# on the largest would not hold. The embedded teacher in bfloat16 is 0.05 from itself in float32 on
# average (0.5 at most), and 4 from the other teacher.
PROBE_TOLERANCE = 0.1


class ModelCard(msgspec.Struct, frozen=True):
    """A line of /v1/models; root is the path that was loaded, parent is set for adapters."""

    id: str
    root: str | None = None
    max_model_len: int | None = None
    parent: str | None = None

    def __str__(self) -> str:
        return self.id if self.root in (None, self.id) else f"{self.id} ({self.root})"

    @property
    def names(self) -> set[str]:
        """Whatever the model is called."""
        return {self.id, self.root or self.id}


def choose_model(cards: list[ModelCard], wanted: str | None) -> ModelCard:
    """The only model of a server, or of several the one that `wanted` names.

    Raises:
        Malformed: none, or several and not one of that name.
    """
    if not cards:
        raise Malformed("/v1/models lists no model")
    exact = [card for card in cards if wanted in card.names]
    alike = [card for card in cards if wanted and same_last_part(card, wanted)]
    for found in (exact, alike, cards):
        if len(found) == 1:
            return found[0]
    raise Malformed(
        f"it serves {len(cards)} models, {', '.join(map(str, cards))}: set REWARD_MODEL_PATH "
        "(reward_model.model.path) to one of them"
    )


def same_last_part(card: ModelCard, wanted: str) -> bool:
    """Whether a path or hub name ends like one of the card's: folders differ between machines."""
    return _last(wanted) in {_last(name) for name in card.names}


def probe_ids(vocabulary: int | None, max_tokens: int) -> np.ndarray:
    """The fixed sequence that tells models apart: ids below the vocabulary, always the same."""
    ids = np.random.default_rng(_PROBE_SEED).integers(
        vocabulary or _SMALLEST_VOCABULARY, size=max(2, min(_PROBE_TOKENS, max_tokens))
    )
    return ids.astype(np.int32)


def probe_difference(one: np.ndarray, other: np.ndarray) -> float:
    """Mean absolute difference of two probes' log-probs, nats."""
    return float(np.abs(one.astype(np.float64) - other).mean())


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
