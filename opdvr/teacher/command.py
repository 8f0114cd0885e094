"""`opdvr teacher serve MODEL`: options, checks, and one line for a mistake."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from opdvr.teacher import serve
from opdvr.teacher.engines import API_KEY_VARIABLE, read_api_key

USER_MISTAKE = 2
_USAGE = "opdvr teacher serve MODEL [options] [-- flags of vllm serve]"


def main(arguments: list[str]) -> int:
    """Entry of `opdvr teacher`; becomes the server, or returns an exit code."""
    own, further = _split(arguments)
    parser = _parser()
    options = parser.parse_args(own)
    try:
        serve.become_server(_serve_options(options, further), read_api_key().reveal())
    except ValueError as mistake:
        print(f"opdvr teacher: {' '.join(str(mistake).split())}", file=sys.stderr)
    return USER_MISTAKE


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="opdvr teacher", usage=_USAGE, allow_abbrev=False)
    parser.add_argument("command", choices=["serve"], help="vLLM's server, set up for scoring")
    parser.add_argument("model", metavar="MODEL", help="folder or hub name")
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for other machines")
    add("--port", type=_whole(1, 65535), default=serve.DEFAULT_PORT)
    add("--device", choices=["cpu", "cuda"], help="default: cuda where there is a GPU")
    add("--dtype", help="default: the model's own; float32 on the CPU")
    add("--max-logprobs", type=_whole(1), default=serve.DEFAULT_MAX_LOGPROBS,
        help="largest LOG_PROB_TOP_K")  # fmt: skip
    add("--max-model-len", type=_whole(2), help="longest prompt + response + 1; default: the "
        "model's own")  # fmt: skip
    add("--tensor-parallel", type=_whole(1), default=1, help="GPUs")
    add("--gpu-memory-utilization", type=_share, default=serve.DEFAULT_MEMORY_UTILIZATION)
    add("--served-model-name", help="what clients call it; default: MODEL")
    parser.epilog = f"An API key is read from {API_KEY_VARIABLE}, never from the command line."
    return parser


def _serve_options(options: argparse.Namespace, further: tuple[str, ...]) -> serve.ServeOptions:
    for flag in further:
        name = flag.split("=")[0].replace("_", "-")
        if not name.startswith("--"):
            continue
        if "--api-key".startswith(name) and len(name) > len("--a"):
            raise ValueError(f"--api-key: every user sees a command line; set {API_KEY_VARIABLE}")
        if name in ("--host", "--port"):
            raise ValueError(f"{name} belongs before the --, where the address is checked")
    device = options.device or ("cuda" if _has_gpu() else "cpu")
    config = _text_config(options.model)
    positions = config.get("max_position_embeddings")
    if positions is not None and (options.max_model_len or 0) > positions + 1:
        raise ValueError(
            f"--max-model-len {options.max_model_len}: {options.model} was made for {positions} "
            f"tokens; give {positions + 1} at most (one more than it scores)"
        )
    return serve.ServeOptions(
        model=_model_argument(options.model),
        host=options.host,
        port=options.port,
        device=device,
        dtype=options.dtype or ("float32" if device == "cpu" else "auto"),
        max_logprobs=options.max_logprobs,
        max_model_len=options.max_model_len,
        tensor_parallel=options.tensor_parallel,
        memory_utilization=options.gpu_memory_utilization,
        served_model_name=options.served_model_name,
        positions=positions,
        vocabulary=config.get("vocab_size"),
        further=further,
    )


def _text_config(model: str) -> dict:
    """config.json of a folder or a cached model; {} for one that has to be downloaded."""
    from opdvr.integration.preflight.models import ModelOption, find_model
    from opdvr.integration.vocabulary import read_json

    folder = find_model(ModelOption("teacher", "MODEL", "opdvr teacher serve", model))
    if folder is None:
        return {}
    config = read_json(folder / "config.json")
    return config.get("text_config", config)


def _model_argument(model: str) -> str:
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def _has_gpu() -> bool:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and Path("/dev/nvidiactl").exists()


def _whole(least: int, most: int | None = None):  # noqa: ANN202
    def read(text: str) -> int:
        value = int(text)
        if value < least or (most is not None and value > most):
            raise ValueError
        return value

    read.__name__ = f"whole number from {least}" + (f" to {most}" if most else "")
    return read


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError
    return value


_share.__name__ = "share above 0, up to 1"
