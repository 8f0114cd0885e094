"""A vLLM server's HTTP side without vLLM: a small made-up model, and switchable faults."""

import asyncio
import contextlib
import json
import threading
import time

import numpy as np
from aiohttp import web

VOCABULARY = 40
ABORT = object()


def distribution(seed, ids, at):
    """Log-probs [V] at a position: of the seed, the position and the token before."""
    logits = np.random.default_rng([seed, at, int(ids[at - 1])]).normal(size=VOCABULARY) * 3
    return logits - np.log(np.exp(logits).sum())


def expected(ids, start, k=0, seed=0):
    """What `Scores` must hold: log-probs [T], top ids and log-probs [T,K]."""
    rows = [distribution(seed, ids, at) for at in range(start, len(ids))]
    own = np.array([row[ids[start + i]] for i, row in enumerate(rows)], np.float32)
    order = np.array([np.argsort(-row)[:k] for row in rows])
    top = np.array([row[order[i]] for i, row in enumerate(rows)], np.float32)
    return own, order, top


def entry(row, token, k):
    """One entry of prompt_logprobs in vLLM's form: the token first, then the K most probable."""
    order = np.argsort(-row)
    ranks = {int(t): r + 1 for r, t in enumerate(order)}
    chosen = dict.fromkeys([int(token), *(int(t) for t in order[:k])])
    return {
        str(t): {"logprob": float(row[t]), "rank": ranks[t], "decoded_token": f" t{t}"}
        for t in chosen
    }


class FakeServer:
    """Serves in a thread until `stop`; `fault` is called with each scoring request's number.

    Attributes:
        fault: f(server, number, asked) -> None for a good answer, a web.Response, ABORT to drop
            the connection half way through the body, or a function that edits the answer.
        most_at_once: scoring requests that were under way together.
        keys: Authorization headers that came.
    """

    def __init__(self, model="fake/teacher", seed=0, delay_s=0.0, port=0, fault=None, **options):
        self.model, self.seed, self.delay_s, self.fault = model, seed, delay_s, fault
        self.root = options.get("root", model)
        self.max_model_len = options.get("max_model_len", 4096)
        self.max_logprobs = options.get("max_logprobs", 20)
        self.tokens = options.get("tokens")  # id -> text, for /detokenize
        self.key = options.get("key")
        self.cards = options.get("cards")
        self.healthy = True
        self.scored, self.most_at_once, self.now, self.keys, self.asked = 0, 0, 0, set(), []
        self.port = port
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        """Die at once, as if killed: every connection is cut."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    async def _serve(self):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**28, middlewares=[self._check_key])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        if self.tokens is not None:
            app.router.add_post("/detokenize", self._detokenize)
        runner = web.AppRunner(app, shutdown_timeout=0.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self._started.set()
        await self._end.wait()
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    @web.middleware
    async def _check_key(self, request, handler):
        self.keys.add(request.headers.get("Authorization"))
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    async def _health(self, request):
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request):
        card = {"id": self.model, "root": self.root, "max_model_len": self.max_model_len}
        return web.json_response(
            {"object": "list", "data": [card] if self.cards is None else self.cards}
        )

    async def _detokenize(self, request):
        asked = await request.json()
        text = "".join(self.tokens.get(i, "") for i in asked["tokens"])
        return web.json_response({"prompt": text})

    async def _completions(self, request):
        asked = await request.json()
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        try:
            self.scored += 1
            self.asked.append(asked)
            return await self._answer(request, asked, self.scored)
        finally:
            self.now -= 1

    async def _answer(self, request, asked, number):
        if self.delay_s:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._end.wait(), self.delay_s)
        if asked["model"] != self.model:
            message = f"The model `{asked['model']}` does not exist."
            return web.json_response({"error": {"message": message, "code": 404}}, status=404)
        ids, k = asked["prompt"], asked["prompt_logprobs"]
        if k > self.max_logprobs:
            message = f"Requested prompt logprobs of {k}, greater than allowed {self.max_logprobs}"
            return web.json_response({"error": {"message": message, "code": 400}}, status=400)
        fault = self.fault and self.fault(self, number, asked)
        if isinstance(fault, web.Response):
            return fault
        answer = self.answer(ids, k)
        if callable(fault):
            fault(answer)
        body = json.dumps(answer).encode()  # NaN stays NaN, which is no JSON
        if fault is ABORT:
            response = web.StreamResponse(headers={"Content-Length": str(len(body))})
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            request.transport.abort()
            return response
        return web.Response(body=body, content_type="application/json")

    def answer(self, ids, k):
        entries = [None]
        for at in range(1, len(ids)):
            entries.append(entry(distribution(self.seed, ids, at), ids[at], k))
        choice = {"index": 0, "text": "x", "logprobs": None, "prompt_logprobs": entries}
        return {"id": "cmpl-1", "object": "text_completion", "model": self.model,
                "choices": [choice | {"finish_reason": "length"}], "usage": {}}  # fmt: skip


def after_probe(fault):
    """A fault of scoring requests alone: the probe, each server's first request, is spared."""
    return lambda server, number, asked: fault(server, number, asked) if number > 1 else None


def wait_for(condition, seconds=10):
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
