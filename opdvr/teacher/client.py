"""One server over HTTP: what it is asked, and what its refusals mean.

Requests never go through a proxy of the environment (trust_env is off: servers stand on loopback
or in one's own network) and follow no redirect, which could carry the key elsewhere.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec
import numpy as np

from opdvr.teacher.addresses import Address
from opdvr.teacher.answers import Malformed, server_message
from opdvr.teacher.engines import API_KEY_VARIABLE, Secret, TeacherError
from opdvr.teacher.served_models import ModelCard

_CONNECT_S = 10.0
# Of requests that need no computing: health, models, detokenize.
_SMALL_S = 30.0
# vLLM closes a connection that was idle for 5 s; one that closes as we write looks like a crash.
_KEEP_IDLE_S = 2.0
# A machine that loses its power closes nothing: silence of about a minute on the wire ends a
# connection, however long the answer may take.
_WIRE_IDLE_S, _WIRE_EVERY_S, _WIRE_PROBES = 30, 10, 3
# Of an answer without log-probs, and what one log-prob may take with the text of its token.
_MOST_BYTES, _MOST_BYTES_A_LOG_PROB = 4 * 1024**2, 1024
# Statuses below 500 that pass by themselves.
_PASSING_FAULTS = (408, 425)


class Unreachable(Exception):
    """The server is down, out of time or broken; another try may help.

    Attributes:
        reached: it had the request in hand.
        dropped: it closed the connection on us, or never took it: all its requests are lost.
    """

    def __init__(self, reason: str, reached: bool = True, dropped: bool = False):
        super().__init__(reason)
        self.reached, self.dropped = reached, dropped


class Busy(Exception):
    """429: the server is well, and wants fewer requests; Retry-After in seconds, 0 without."""

    def __init__(self, retry_after_s: float):
        super().__init__("it has too many requests (429)")
        self.retry_after_s = retry_after_s


class Missing(Exception):
    """404: the server has no such endpoint, or no such model."""


class _Models(msgspec.Struct):
    data: list[ModelCard]


class _Text(msgspec.Struct):
    prompt: str


@dataclass(frozen=True)
class _Reply:
    status: int
    body: bytes
    retry_after: str


def new_session() -> aiohttp.ClientSession:
    """Connections to servers; how many at once is for the caller to bound."""
    connector = aiohttp.TCPConnector(
        limit=0, keepalive_timeout=_KEEP_IDLE_S, socket_factory=_watched_socket
    )
    return aiohttp.ClientSession(connector=connector, trust_env=False)


class Client:
    """Requests to one server. All methods raise Unreachable, Busy, or TeacherError for good."""

    def __init__(
        self, session: aiohttp.ClientSession, address: Address, key: Secret, timeout_s: float
    ):
        self.address = address
        self._session, self._key, self._timeout_s = session, key, timeout_s

    async def models(self) -> list[ModelCard]:
        """What /v1/models lists."""
        body = self._accept(await self._request("GET", "/v1/models", None, _SMALL_S))
        try:
            return msgspec.json.decode(body, type=_Models).data
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Malformed(f"/v1/models is not that of a vLLM server ({error})") from None

    async def health(self) -> None:
        """Returns if the server says that it is well, or has no such endpoint."""
        reply = await self._request("GET", "/health", None, _SMALL_S)
        if reply.status != 404:
            self._accept(reply)

    async def detokenize(self, model: str, ids: list[int]) -> str:
        """The text of `ids`; Missing if the server does not tell."""
        asked = {"model": model, "tokens": ids}
        body = self._accept(await self._request("POST", "/detokenize", asked, _SMALL_S))
        try:
            return msgspec.json.decode(body, type=_Text).prompt
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Malformed(f"/detokenize is not that of a vLLM server ({error})") from None

    async def score(self, model: str, token_ids: np.ndarray, top_k: int) -> bytes:
        """The answer's body, for `answers.read_scores`."""
        asked = {
            "model": model,
            "prompt": token_ids.tolist(),
            "max_tokens": 1,  # the least that it can be asked for
            "prompt_logprobs": top_k,
            # Nothing that bends the distribution, whatever the model's generation_config.json says.
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        most = _MOST_BYTES + len(token_ids) * (top_k + 1) * _MOST_BYTES_A_LOG_PROB
        reply = await self._request("POST", "/v1/completions", asked, self._timeout_s, most)
        return self._accept(reply)

    async def _body(self, answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
        body = bytearray()
        async for part in answer.content.iter_any():
            body += part
            if len(body) > most_bytes:
                raise Malformed(f"the answer is longer than the {most_bytes} bytes it could need")
        return bytes(body)

    async def _request(
        self,
        method: str,
        path: str,
        asked: Any,  # noqa: ANN401
        time_s: float,
        most_bytes: int = _MOST_BYTES,
    ) -> _Reply:
        headers = {"Content-Type": "application/json", **self._authorization()}
        data = None if asked is None else msgspec.json.encode(asked)
        timeout = aiohttp.ClientTimeout(total=time_s, sock_connect=min(_CONNECT_S, time_s))
        try:
            async with self._session.request(
                method,
                self.address.url + path,
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                body = await self._body(answer, most_bytes)
                return _Reply(answer.status, body, answer.headers.get("Retry-After", ""))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            failure = _unreachable(error, time_s)
        # Raised out here, so that it does not hold aiohttp's own error: that has the headers.
        raise failure

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key.reveal()}"} if self._key else {}

    def _accept(self, reply: _Reply) -> bytes:
        """The body of a good answer.

        Raises:
            Unreachable, Busy, Missing: by status.
            TeacherError: the key or the request is refused, another try cannot help.
        """
        status = reply.status
        if status == 200:
            return reply.body
        said = self._without_secrets(server_message(reply.body))
        if status in (401, 403):
            raise TeacherError(
                f"teacher server {self.address} refuses the key ({status}): set "
                f"{API_KEY_VARIABLE} to the key that it was started with"
            )
        if status == 429:
            raise Busy(_seconds(reply.retry_after))
        if 300 <= status < 400:
            raise TeacherError(
                f"teacher server {self.address} answered {status}, a redirect, and none is "
                "followed; put the address that it leads to into TEACHER_URLS"
            )
        if status >= 500 or status in _PASSING_FAULTS:
            raise Unreachable(f"it answered {status}: {said}")
        if status == 404:
            raise Missing(said)
        raise TeacherError(
            f"teacher server {self.address} answered {status}: {said}{_remedy(said)}"
        )

    def _without_secrets(self, text: str) -> str:
        return text.replace(self._key.reveal(), "<redacted>") if self._key else text


def _watched_socket(info: tuple) -> socket.socket:
    """A socket for one of getaddrinfo's answers, whose silence the kernel looks into."""
    made = socket.socket(*info[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _WIRE_IDLE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _WIRE_EVERY_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _WIRE_PROBES)
    return made


def _seconds(retry_after: str) -> float:
    """Retry-After as seconds from now, 0 for what is neither a number nor a date."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        when = parsedate_to_datetime(retry_after)
    except (TypeError, ValueError):
        return 0.0
    return max(0.0, when.timestamp() - time.time())


def _remedy(said: str) -> str:
    lower = said.lower()
    if "logprob" in lower:
        return "; start the server with --max-logprobs K, or lower LOG_PROB_TOP_K"
    if "context length" in lower or "max_model_len" in lower or "too long" in lower:
        return (
            "; start the server with a --max-model-len of at least MAX_PROMPT_LENGTH + "
            "MAX_RESP_LENGTH + 1, or lower those"
        )
    return ""


def _unreachable(error: Exception, time_s: float) -> Unreachable:
    if isinstance(error, (aiohttp.ConnectionTimeoutError, aiohttp.ServerTimeoutError)):
        return Unreachable("connecting took too long", reached=False, dropped=True)
    if isinstance(error, asyncio.TimeoutError):
        return Unreachable(f"no answer within {time_s:g} s")
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.strerror or type(error.os_error).__name__
        if "Connect call failed" in reason or "Multiple exceptions" in reason:
            reason = "connection refused"
        return Unreachable(reason, reached=False, dropped=True)
    if isinstance(error, aiohttp.ClientPayloadError):
        return Unreachable("the connection broke half way through an answer", dropped=True)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return Unreachable("the connection was closed without an answer", dropped=True)
    if isinstance(error, OSError):
        return Unreachable(error.strerror or type(error).__name__, dropped=True)
    return Unreachable(f"{type(error).__name__}: not an answer in HTTP", dropped=True)
