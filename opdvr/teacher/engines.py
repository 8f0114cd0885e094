"""What a teacher engine is, what goes into one and what comes out: plain values, no torch, no verl.

T response tokens of one response, K candidates a token.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class EngineKind:
    """A way to run the teacher, as the registry holds it; what it cannot do is refused by name.

    Attributes:
        name: value of TEACHER_ENGINE.
        factory: "module:Class" of the engine, imported where it runs; None: verl's own worker in
            the reward-model slot.
        any_temperature: it divides logits, so TEACHER_TEMPERATURE may be other than 1.
        any_ids: it gives log-probs at ids of the student's choice, not at its own top K alone.
        hidden_states: it gives the last hidden states, for FULL_VOCABULARY.
        entropy: it gives the entropy of each token's distribution.
        local_weights: it loads REWARD_MODEL_PATH itself.
    """

    name: str
    factory: str | None
    any_temperature: bool
    any_ids: bool
    hidden_states: bool
    entropy: bool
    local_weights: bool


@dataclass(frozen=True)
class Wanted:
    """What a run asks of its teacher, the same for every response.

    Attributes:
        top_k: how many of the teacher's own most probable ids; 0 for none.
        temperature: divides the teacher's logits.
        with_entropy: also the entropies.
        vocabulary: ids from here on do not exist (the padding of an embedding); softmax, entropy
            and top K leave them out where the engine can. None: the model's own width.
    """

    top_k: int = 0
    temperature: float = 1.0
    with_entropy: bool = False
    vocabulary: int | None = None


@dataclass(frozen=True)
class Sequence:
    """A prompt and its response, to be scored as they are: ids, never text.

    Attributes:
        key: unique among the sequences of a run.
        token_ids: [prompt + T] int32.
        response_start: where the response begins, at least 1.
        source: the row's data_source, which chooses among several teachers.
        name: how messages call it, "row 5" say.
        candidates: [T,K] int32 ids at which the student wants the teacher's log-probs, -1 for
            nothing; None where it wants none.
    """

    key: int
    token_ids: np.ndarray
    response_start: int
    source: str
    name: str
    candidates: np.ndarray | None = None

    @property
    def response_length(self) -> int:
        """T, in tokens."""
        return len(self.token_ids) - self.response_start


@dataclass(frozen=True)
class Scores:
    """The teacher's view of one response; float32, nats, no value missing and none made up.

    Attributes:
        log_probs: [T] of the tokens that were sampled.
        entropy: [T] or None.
        top_ids: [T,K] int32, by falling probability; None without top_k.
        top_log_probs: [T,K] of top_ids; None likewise.
        candidate_log_probs: [T,K] of Sequence.candidates, 0 where an id is -1; None without them.
    """

    log_probs: np.ndarray
    entropy: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_log_probs: np.ndarray | None = None
    candidate_log_probs: np.ndarray | None = None


# Called by an engine, from any thread, once for each sequence that it has taken on.
Done = Callable[[int, Scores], None]
# Called by an engine when it gives up; nothing more is expected of it.
Failed = Callable[[BaseException], None]


class Engine(Protocol):
    """A teacher engine inside its own process; see `service.ScoringService`, which drives it.

    Constructed as `factory(settings, wanted, done, failed)`; ready to score when that returns.
    """

    def add(self, sequences: list[Sequence]) -> None:
        """Take on more work and return at once; `done` or `failed` reports later."""

    def sleep(self) -> None:
        """Give device memory back; there is no work in hand. May be nothing."""

    def wake(self) -> None:
        """Take it again."""

    def close(self) -> None:
        """Stop; work in hand is dropped."""


# Sequences in the making at once in a vLLM engine. Prefill needs few: a batch is full at some
# thousand tokens.
SCORING_SEQUENCES = 64
# A key in the environment is in no command line and no configuration.
API_KEY_VARIABLE = "TEACHER_API_KEY"


class Secret:
    """A text that no log, traceback or configuration dump shows."""

    def __init__(self, text: str):
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return "<secret>" if self._text else "<no secret>"


def read_api_key() -> Secret:
    """TEACHER_API_KEY of this process, empty where it is not set.

    Raises:
        ValueError: it cannot stand in a header.
    """
    key = os.environ.get(API_KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"{API_KEY_VARIABLE} holds characters that no HTTP header can carry")
    return Secret(key)


@dataclass(frozen=True)
class TeacherSettings:
    """How a teacher engine is set up. Fields that an engine does not need keep their defaults.

    Attributes:
        model: REWARD_MODEL_PATH, a local folder for engines with local_weights.
        device: "cpu" or "cuda".
        dtype: torch's name of the computing type.
        max_tokens: of the longest prompt with its response.
        trust_remote_code: run the model folder's own code.
        tensor_parallel: devices that one engine spreads over.
        memory_utilization: share of a device's memory that a vLLM engine may take.
        shares_devices: the rollout has the same devices: sleep while the teacher has no work.
        urls: addresses of running servers, as `addresses.read_addresses` takes them.
        api_key: sent to the servers.
        timeout_s: of one request to a server, in seconds.
        patience_s: how long a run waits for a server to come back before it stops.
        max_in_flight: requests under way at once to one server.
    """

    model: str
    device: str
    dtype: str
    max_tokens: int
    trust_remote_code: bool = False
    tensor_parallel: int = 1
    memory_utilization: float = 0.5
    shares_devices: bool = False
    urls: str = ""
    api_key: Secret = field(default_factory=lambda: Secret(""))
    timeout_s: float = 600.0
    patience_s: float = 600.0
    max_in_flight: int = 64


_announced: list[str] = []


def announce(line: str) -> None:
    """Something that the person who waits should know: in this process's log, and for the trainer
    to say when it next asks.
    """
    print(f"opdvr: teacher: {line}", flush=True)
    _announced.append(line)


def take_announced() -> list[str]:
    """What was announced in this process since the last time."""
    taken = _announced[:]
    del _announced[: len(taken)]
    return taken


class TeacherError(RuntimeError):
    """The teacher cannot be trusted or reached any more; the run stops, its state saved."""


class TeacherUnavailable(TeacherError):
    """No engine or server answers, and patience has run out."""


class WrongAnswer(TeacherError):
    """A server answered, but not with what was asked: too few log-probs, NaN, another model."""
