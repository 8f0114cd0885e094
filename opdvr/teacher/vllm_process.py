"""The process that `opdvr teacher serve` becomes: vLLM's own server, which outlives nobody.

Run as `python -m opdvr.teacher.vllm_process OPTIONS`, with `ServeOptions` as JSON.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import urllib.request
from typing import Any

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5


def die_with_parent() -> None:
    """Linux kills this process when its parent ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_at_a_signal() -> None:
    """SIGTERM and SIGINT end this process at once, its children by `die_with_parent`.

    vLLM's own handlers come and go while it loads, swallow a signal at times and answer others
    with tracebacks, so nobody else may set one. Nothing here needs an orderly end: no state is
    lost with a server.
    """
    codes = {signal.SIGTERM: 0, signal.SIGINT: 130}
    set_handler = signal.signal
    for number, code in codes.items():
        set_handler(number, lambda *_, code=code: os._exit(code))

    def others_only(number: int, handler: Any) -> Any:  # noqa: ANN401
        return signal.getsignal(number) if number in codes else set_handler(number, handler)

    signal.signal = others_only


def without_token_texts() -> None:
    """Leave out the text of each token: a decoder call for K tokens of every token scored.

    vLLM decodes them one by one and no field of a request stops it (detokenize is not one of
    /v1/completions). The answer has null instead, as with a model that has no tokenizer.
    """
    from vllm.v1.engine import logprobs

    logprobs.convert_ids_list_to_tokens = _no_texts


def main(options_json: str) -> int:
    """Serve until a signal; returns the exit code."""
    from opdvr.teacher.serve import ServeOptions

    options = ServeOptions.from_json(options_json)
    os.register_at_fork(after_in_child=die_with_parent)
    end_at_a_signal()
    sys.argv = ["vllm", "serve", *options.vllm_flags()]
    from vllm.entrypoints.cli.main import main as vllm_main

    without_token_texts()
    threading.Thread(target=_say_ready, args=(options,), daemon=True).start()
    vllm_main()
    return 0


def _no_texts(tokenizer: Any, token_ids: list[int]) -> list[None]:  # noqa: ANN401
    return [None] * len(token_ids)


def _say_ready(options: Any) -> None:  # noqa: ANN401
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with direct.open(f"{options.url}/health", timeout=10):
                break
        except OSError:  # not yet
            time.sleep(_POLL_S)
    with_key = " and the TEACHER_API_KEY of here" if "VLLM_API_KEY" in os.environ else ""
    line = (
        f"opdvr: teacher: ready at {options.url} ({options.model}), use TEACHER_ENGINE=server "
        f"TEACHER_URLS={options.url}{with_key}\n"
    )
    os.write(sys.__stdout__.fileno(), line.encode())  # vLLM puts a prefix before what is printed


if __name__ == "__mp_main__":  # a process that vLLM starts by spawning
    die_with_parent()
if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
