"""From a server's answer to scores: every number checked, none filled in.

vLLM's form: one entry a prompt token, null for the first, else an object from ids (as text) to
{"logprob", "rank", "decoded_token"}: the token itself and the K most probable ones, K or K + 1 in
all. T response tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from opdvr.report.redact import redact_command
from opdvr.teacher.engines import Scores

# vLLM writes this (as -9999) where a probability is 0 in float32, which JSON has no number for.
_ZERO_PROBABILITY = -9000.0
# A log-softmax in float32 may end a little above 0.
_ROUNDING = 1e-4
# Probabilities of K tokens may add up to a little more than 1 likewise.
_TOTAL_ROUNDING = 1e-2
_SHOWN_CHARACTERS = 300


class Malformed(Exception):
    """What was expected of an answer and what was found, without the server's name."""


@dataclass(frozen=True)
class Asked:
    """What an answer must fit.

    Attributes:
        token_ids: [prompt + T] the sequence.
        start: where the response begins, at least 1.
        top_k: K.
        vocabulary: ids from here on do not exist for the student; None: not known.
        model: what the server calls the model that was asked.
    """

    token_ids: np.ndarray
    start: int
    top_k: int
    vocabulary: int | None
    model: str


class _LogProb(msgspec.Struct, gc=False):
    logprob: float
    rank: int | None = None


class _Choice(msgspec.Struct):
    # Raw: one decoding of everything would keep Python's lock for a third of a second.
    prompt_logprobs: list[msgspec.Raw] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    model: str | None = None
    error: msgspec.Raw = msgspec.Raw()


_ANSWER = msgspec.json.Decoder(_Answer)
_ENTRY = msgspec.json.Decoder(dict[int, _LogProb])


def read_scores(body: bytes, asked: Asked) -> Scores:
    """The scores of one response, float32 nats: log_probs [T], and top_ids, top_log_probs [T,K].

    Top ids come by falling log-prob; the token itself is among them only if it belongs there.

    Raises:
        Malformed: the answer is not what was asked for.
    """
    entries = _entries(body, asked)
    ids, values, ranks, sizes = _tables(entries, asked)
    width = asked.top_k + 1
    present = np.arange(width) < sizes[:, None]
    _require(((ids >= 0) | ~present).all(1), asked, lambda at: "ids of tokens", "a negative number")
    if asked.vocabulary is not None:
        _require_vocabulary(ids, asked)
    own = (ids == asked.token_ids[asked.start :, None]) & present
    _require(own.any(1), asked, lambda at: f"token {asked.token_ids[at]} itself", "no such id")
    _require_log_probs(values, present, asked)
    log_probs = values[own]
    if not asked.top_k:
        return Scores(log_probs.astype(np.float32))
    # K + 1 entries: the token is not among the K most probable, and must not be more probable.
    spare = own & (sizes == width)[:, None]
    top = np.where(present & ~spare, values, -np.inf)
    least = np.where(present & ~spare, values, np.inf).min(1)
    _require(
        ~spare.any(1) | (log_probs <= least + _ROUNDING),
        asked,
        lambda at: f"the {asked.top_k} most probable tokens",
        "a more probable one beside them",
    )
    _require_ranks(np.where(present & ~spare, ranks, 0), asked)
    order = np.argsort(-top, axis=1, kind="stable")[:, : asked.top_k]
    top = np.take_along_axis(top, order, 1)
    _require(
        np.exp(top).sum(1) <= 1 + _TOTAL_ROUNDING,
        asked,
        lambda at: "probabilities that add up to 1 at most",
        "more",
    )
    top_ids = np.take_along_axis(ids, order, 1).astype(np.int32)
    return Scores(
        log_probs.astype(np.float32), top_ids=top_ids, top_log_probs=top.astype(np.float32)
    )


def server_message(body: bytes) -> str:
    """What an error body says, without secrets, in a line."""
    text = body[: 8 * _SHOWN_CHARACTERS].decode("utf-8", "replace")
    try:
        error = msgspec.json.decode(body)
        while isinstance(error, dict) and isinstance(error.get("error"), dict):
            error = error["error"]
        if isinstance(error, dict):
            text = str(error.get("message") or error.get("error") or error.get("detail") or text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # some proxy's page: its text as it is
    line = " ".join(redact_command([" ".join(text.split())]))
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"


def _entries(body: bytes, asked: Asked) -> list[msgspec.Raw]:
    try:
        answer = _ANSWER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = [word.decode() for word in (b"NaN", b"Infinity") if word in body]
        reason = f"it holds {found[0]} in place of a number" if found else str(error)
        raise Malformed(f"the answer is not that of a vLLM server ({reason})") from None
    if bytes(answer.error) not in (b"", b"null"):
        raise Malformed(f"an error came with status 200: {server_message(body)}")
    if not answer.choices:
        raise Malformed(f"the answer has no choices: {server_message(body)}")
    if answer.model != asked.model:
        raise Malformed(f"expected model {asked.model!r}, the answer is of {answer.model!r}")
    entries, length = answer.choices[0].prompt_logprobs, len(asked.token_ids)
    if entries is None:
        raise Malformed("the answer has no prompt_logprobs")
    if len(entries) != length:
        raise Malformed(f"expected prompt_logprobs of {length} tokens, found {len(entries)}")
    return entries


def _tables(entries: list[msgspec.Raw], asked: Asked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids [T,K+1] (-1 where there is no entry), log-probs [T,K+1] float64, entries a token [T]."""
    start, width = asked.start, asked.top_k + 1
    count = len(entries) - start
    ids = np.full((count, width), -1, np.int64)
    values = np.zeros((count, width))
    ranks = np.zeros((count, width), np.int64)
    sizes = np.zeros(count, np.int64)
    for row in range(count):
        try:
            entry = _ENTRY.decode(entries[start + row])
        except msgspec.DecodeError as error:
            raise Malformed(
                f"expected log-probs at token {start + row}, found "
                f"{bytes(entries[start + row])[:60].decode('utf-8', 'replace')!r} ({error})"
            ) from None
        size = len(entry)
        if size > width or size < max(asked.top_k, 1):
            few = f"{asked.top_k} or {width}" if asked.top_k else "1"
            raise Malformed(f"expected {few} log-probs at token {start + row}, found {size}")
        try:
            ids[row, :size] = list(entry)
            ranks[row, :size] = [item.rank or 0 for item in entry.values()]
        except OverflowError:
            raise Malformed(f"an id at token {start + row} is beyond any vocabulary") from None
        values[row, :size] = [item.logprob for item in entry.values()]
        sizes[row] = size
    return ids, values, ranks, sizes


def _require_vocabulary(ids: np.ndarray, asked: Asked) -> None:
    """The token itself is below the vocabulary, so what is beyond is one of the top K."""
    beyond = ids >= asked.vocabulary
    _require(
        ~beyond.any(1),
        asked,
        lambda at: f"ids below {asked.vocabulary}, the student's vocabulary",
        "an id beyond, as probable as the top K: the teacher gives weight to the padding of its "
        "embedding, or has tokens that the student lacks; use a smaller LOG_PROB_TOP_K "
        "(opdvr.log_prob_top_k), or another teacher",
    )


def _require_ranks(ranks: np.ndarray, asked: Asked) -> None:
    """The top K have the ranks 1 to K, or none is given: K ids with a gap are not the top K."""
    ranks = np.sort(ranks, axis=1)[:, -asked.top_k :]
    complete = (ranks == np.arange(1, asked.top_k + 1)).all(1) | (ranks == 0).all(1)
    _require(complete, asked, lambda at: f"ranks 1 to {asked.top_k}", "others: one is missing")


def _require_log_probs(values: np.ndarray, present: np.ndarray, asked: Asked) -> None:
    _require(
        ~(present & (values <= _ZERO_PROBABILITY)).any(1),
        asked,
        lambda at: "probabilities above 0",
        "a log-prob of -9000 or less: the server's form of probability 0, or of a NaN or a mask",
    )
    fine = np.isfinite(values) & (values <= _ROUNDING)
    _require(
        (fine | ~present).all(1), asked, lambda at: "finite log-probs of 0 at most", "another value"
    )


def _require(good: np.ndarray, asked: Asked, expected, found: str) -> None:  # noqa: ANN001
    """Refuse the first token at which `good` [T] is false."""
    if not good.all():
        at = asked.start + int(np.argmin(good))
        raise Malformed(f"expected {expected(at)} at token {at}, found {found}")
