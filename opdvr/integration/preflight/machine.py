"""This machine: devices, memory, disk, ports, loggers. Looked at before anything loads."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from omegaconf import DictConfig

from opdvr.data.wording import how_many
from opdvr.integration.preflight.configuration import NGPUS_PER_NODE
from opdvr.integration.preflight.devices import free_disk, shown, visible_count
from opdvr.integration.preflight.estimate import ADAM_MOMENTS, FLOAT32, trained_parameters
from opdvr.integration.preflight.finding import Finding, Refusal, error, note, warning
from opdvr.integration.preflight.memory import check_memory
from opdvr.integration.preflight.models import (
    ModelOption,
    find_model,
    student_option,
    teacher_option,
)
from opdvr.integration.preflight.weights import Shape, read_shape
from opdvr.integration.wandb_login import wandb_login

CHECKPOINTS = "FINAL_CKPT_DIR (trainer.default_local_dir)"
RAY_ADDRESS = "RAY_ADDRESS"
_CONNECT_SECONDS = 2.0
# Ray finds the cluster of this machine by itself.
_FOUND_BY_RAY = ("auto", "local")


def check_machine(config: DictConfig) -> Iterator[Finding]:
    """What the run would take of this machine against what it has."""
    shapes = []
    for model in (student_option(config), teacher_option(config)):
        try:
            shapes.append(_shape_of(model))
        except ValueError as damaged:
            yield error(str(model), str(damaged), remedy="get or save the model anew")
            return
    student, teacher = shapes
    if os.environ.get(RAY_ADDRESS):
        yield from check_cluster(os.environ[RAY_ADDRESS])
        yield note(RAY_ADDRESS, "devices and memory are those of a cluster and were not compared")
    else:
        yield from check_devices(config)
        yield from check_memory(config, student, teacher)
    if student is not None:
        yield from check_disk(config, student)
    yield from check_ports()
    yield from check_loggers(config)


def check_devices(config: DictConfig) -> Iterator[Finding]:
    """As many GPUs as the options ask for are visible here."""
    if config.trainer.device == "cpu":
        return
    own = config.opdvr.teacher_devices if config.reward_model.enable else 0
    wanted = config.trainer.n_gpus_per_node + own
    visible = visible_count()
    if visible is None:
        yield note(NGPUS_PER_NODE, "nvidia-smi did not answer, so GPUs were not counted")
    elif visible < wanted:
        teacher = f" and TEACHER_DEVICES (opdvr.teacher_devices) {own} more" if own else ""
        yield error(
            NGPUS_PER_NODE,
            f"asks for {config.trainer.n_gpus_per_node}{teacher}, but {visible} are visible here",
            "Ray would wait for them",
            "lower it, or show more in CUDA_VISIBLE_DEVICES",
        )


def check_disk(config: DictConfig, student: Shape) -> Iterator[Finding]:
    """Room for the checkpoints: weights and AdamW moments in float32, and the model's folder."""
    trainer = config.trainer
    count = checkpoint_count(config)
    if not count:
        yield warning(
            "SAVE_FREQ (trainer.save_freq)",
            f"is {trainer.save_freq}, so no checkpoint is written",
            "the trained student is lost at the end",
            "set it above 0",
        )
        return
    trained = trained_parameters(config, student)
    one = FLOAT32 * (2 * student.parameters + ADAM_MOMENTS * trained)
    folder, free = free_disk(Path(trainer.default_local_dir))
    if folder.is_file():
        yield error(
            CHECKPOINTS,
            f"is {trainer.default_local_dir}, but {folder} is a file",
            remedy="name another folder",
        )
        return
    what = (
        f"up to {how_many(count, 'checkpoint')} of {shown(one)} each "
        f"(trainer.max_actor_ckpt_to_keep, and one being written), {shown(free)} free in {folder}"
    )
    remedy = "free some, name another FINAL_CKPT_DIR, or lower trainer.max_actor_ckpt_to_keep"
    if one > free:
        yield error(CHECKPOINTS, what, "the first checkpoint would fail", remedy)
    elif count * one > free:
        yield warning(CHECKPOINTS, what, "a later checkpoint would fail", remedy)
    else:
        yield note(CHECKPOINTS, what)


def checkpoint_count(config: DictConfig) -> int:
    """Checkpoints that lie on the disk at once, at most."""
    trainer = config.trainer
    if trainer.save_freq <= 0:
        return 0
    kept = trainer.max_actor_ckpt_to_keep
    limits = [kept + 1] if kept else []
    if trainer.total_training_steps:
        limits.append(-(-trainer.total_training_steps // trainer.save_freq))
    return min(limits, default=1)


def check_cluster(address: str) -> Iterator[Finding]:
    """Something answers at the cluster's address."""
    if address in _FOUND_BY_RAY:
        yield note(RAY_ADDRESS, f"is {address}, which Ray looks up itself")
        return
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        yield error(RAY_ADDRESS, f"is {address!r}", remedy="give HOST:PORT of the head node")
        return
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as reason:
        yield error(
            RAY_ADDRESS,
            f"nothing answers at {host}:{port} within {_CONNECT_SECONDS:g} s ({reason})",
            "the run cannot join its cluster",
            "start Ray there (`ray start --head`), or unset RAY_ADDRESS for a Ray of its own",
        )


def check_ports() -> Iterator[Finding]:
    """This machine may listen on itself, and the ports named in the environment are free."""
    refused = _cannot_bind(0)
    if refused is not None:
        yield error(
            "localhost",
            f"no port of 127.0.0.1 can be opened ({refused.strerror})",
            "Ray and vLLM talk over it",
            "allow it, for example by a network namespace with its loopback up",
        )
        return
    for variable in ("VLLM_PORT", "MASTER_PORT"):
        text = os.environ.get(variable, "")
        if not text:
            continue
        if not text.isdigit() or not 0 < int(text) < 1 << 16:
            yield error(variable, f"is {text!r}", remedy="give a port from 1 to 65535, or unset it")
            continue
        refused = _cannot_bind(int(text))
        if refused is not None:
            is_used = refused.errno == errno.EADDRINUSE
            reason = "is in use" if is_used else f"cannot be opened ({refused.strerror})"
            yield warning(
                variable,
                f"port {text} {reason}",
                "a server of the run may fail to start",
                f"unset {variable}, or name a free port",
            )


def _cannot_bind(port: int) -> OSError | None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", port))
            server.listen()
        except OSError as reason:
            return reason
    return None


def check_loggers(config: DictConfig) -> Iterator[Finding]:
    """wandb without a key records offline, which is a surprise at the end of a run."""
    loggers = config.trainer.logger
    if "wandb" not in ([loggers] if isinstance(loggers, str) else list(loggers or [])):
        return
    login = wandb_login()
    if not login.installed:
        yield warning(
            "trainer.logger",
            "has wandb, which is not installed",
            "metrics go to the console and metrics.jsonl only",
            "install wandb, or leave it out",
        )
    elif not login.has_key and not login.mode:
        yield warning(
            "trainer.logger",
            "has wandb, but there is no WANDB_API_KEY and no saved login",
            "the run is recorded offline (`wandb sync` uploads it)",
            "run `wandb login`, set WANDB_API_KEY, or say WANDB_MODE=offline",
        )


def _shape_of(model: ModelOption | None) -> Shape | None:
    """None for a model that is not used, not here, or refused by `check_models`."""
    if model is None:
        return None
    try:
        folder = find_model(model)
    except Refusal:
        return None
    return None if folder is None else read_shape(folder)
