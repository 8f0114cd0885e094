"""Where a judge is: behind an OpenAI-compatible address, or a model of one's own in vLLM."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from opdvr.eval.judge import Asker
from opdvr.eval.models import context_length, resolve
from opdvr.eval.options import JudgeOptions
from opdvr.eval.prepare import find_device
from opdvr.eval.problems import QUIETLY
from opdvr.inference import EngineSettings, Request, Sampling, generate
from opdvr.inference.quiet import output_in

API_KEY = "OPDVR_JUDGE_API_KEY"
# Questions under way at once: a server batches them, and few services forbid so many.
_AT_ONCE = 16
_TIMEOUT_S = 300
_TRIES = 3
JUDGE_LOG = "judge.log"


class NoAnswer(OSError):
    """A question that got no answer; the message never holds the key."""


class NobodyThere(NoAnswer):
    """The address or the key is wrong: no question will get an answer."""


def asker(options: JudgeOptions, folder: Path, say: Callable[[str], None]) -> Asker:
    """How to ask the judge.

    Raises:
        ValueError: a local judge cannot be found.
    """
    if options.url is not None:
        return _Server(options)
    return _Local(options, folder, say)


class _Server:
    def __init__(self, options: JudgeOptions):
        self._options = options

    def __call__(self, prompts: Sequence[str]) -> Iterator[tuple[int, str | Exception]]:
        from openai import OpenAI

        # Servers without keys want one all the same.
        client = OpenAI(
            base_url=self._options.url,
            api_key=os.environ.get(API_KEY) or "none",
            timeout=_TIMEOUT_S,
            max_retries=_TRIES - 1,
        )
        first = self._ask(client, prompts[0])
        yield 0, first
        if isinstance(first, NobodyThere):
            yield from ((place, first) for place in range(1, len(prompts)))
            return
        threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="opdvr-judge")
        try:
            calls = {
                threads.submit(self._ask, client, prompt): place
                for place, prompt in enumerate(prompts[1:], start=1)
            }
            for call in as_completed(calls):
                yield calls[call], call.result()
        finally:
            threads.shutdown(cancel_futures=True)

    def _ask(self, client: Any, prompt: str) -> str | NoAnswer:  # noqa: ANN401
        from openai import APIConnectionError, AuthenticationError, OpenAIError

        try:
            answer = client.chat.completions.create(
                model=self._options.model,
                messages=[{"role": "user", "content": prompt}],
                temperature=0.0,
                max_tokens=self._options.max_tokens,
            )
        except OpenAIError as error:
            for_good = isinstance(error, (APIConnectionError, AuthenticationError))
            kind = NobodyThere if for_good else NoAnswer
            return kind(f"{type(error).__name__}: {_without_key(str(error))}")
        return (answer.choices[0].message.content or "") if answer.choices else ""


def _without_key(text: str) -> str:
    key = os.environ.get(API_KEY)
    return text.replace(key, "<redacted>") if key else text


class _Local:
    def __init__(self, options: JudgeOptions, folder: Path, say: Callable[[str], None]):
        self._options = options
        self._folder = folder
        self._model = resolve(options.model, folder, say, "--judge-model")

    def __call__(self, prompts: Sequence[str]) -> Iterator[tuple[int, str | Exception]]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._model.folder)
        tokenised = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                add_generation_prompt=True,
                tokenize=True,
                enable_thinking=False,
                tokenizer_kwargs=QUIETLY,
            )
            for prompt in prompts
        ]
        device = self._options.device or find_device()
        context = context_length(self._model.folder)
        length = max(map(len, tokenised)) + self._options.max_tokens
        requests = []
        for place, ids in enumerate(tokenised):
            room = self._options.max_tokens
            if context is not None:
                room = min(room, context - len(ids))
            if room < 1:
                yield (
                    place,
                    ValueError(f"a question of {len(ids)} tokens is too long for the judge"),
                )
                continue
            requests.append(Request(place, 0, tuple(ids), room))
        if not requests:
            return
        settings = EngineSettings(
            model=str(self._model.folder),
            device=device,
            dtype="float32" if device == "cpu" else "bfloat16",
            max_model_len=length if context is None else min(length, context),
        )
        with output_in(self._folder / JUDGE_LOG):
            for completion in generate(settings, Sampling(temperature=0.0), requests):
                yield completion.prompt, completion.text
