"""`opdvr sft train`: configuration, checks, tokens, verl's SFT run, the model folder."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict

from opdvr.data.wording import how_many
from opdvr.integration import runs
from opdvr.integration.checkpoints import check_same_data, complete_steps
from opdvr.integration.config import SUPERVISED_MODEL
from opdvr.integration.finish import write_page
from opdvr.integration.launch import PLATFORM_MODULE, check_resume_mode
from opdvr.integration.preflight.models import ModelOption, find_model
from opdvr.integration.sft.config import check, compose
from opdvr.integration.sft.export import export
from opdvr.integration.sft.worker import LOG
from opdvr.integration.terminal import say
from opdvr.report.metrics import SFT_VALIDATION_LOSS
from opdvr.report.run_folder import METRICS_NAME, read_metrics
from opdvr.sft.prepare import Prepared, Reading, prepare

_TRAIN = "TRAIN_DATASET (data.train_files)"
_VALIDATION = "TEST_DATASET (data.val_files)"
_DATASET_CLASS = {"path": "pkg://opdvr.integration.sft.dataset", "name": "TokenDataset"}


def main(arguments: list[str]) -> int:
    """Entry of `opdvr sft train`; a user's mistake is one line and exit code 2."""
    started = time.time()
    try:
        config, lock, fingerprint, end_ids = _prepare(arguments)
    except (ValueError, HydraException) as error:
        print(f"opdvr: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    folder = Path(config.trainer.default_local_dir)
    finished = False
    try:
        with lock:
            if fingerprint is not None:
                _train(config, fingerprint)
            model = export(folder, end_ids, say)
            runs.record(folder, arguments, finished=True)
        finished = True
    except KeyboardInterrupt:
        steps = complete_steps(folder)
        say(f"opdvr: interrupted; the same command goes on from step {steps[-1] if steps else 0}")
        finished = True
        return 130
    finally:
        if not finished and (folder / LOG).exists():
            print(f"opdvr: stopped; the log is {folder / LOG}", file=sys.stderr)
    _say_losses(folder)
    write_page(folder)
    say(f"model: {model} (ACTOR_MODEL_PATH, transformers and vLLM take it)")
    say(f"opdvr: done in {time.time() - started:.0f} s")
    return 0


def _prepare(
    arguments: list[str],
) -> tuple[DictConfig, TextIO, dict[str, object] | None, tuple[int, ...]]:
    """Everything that can fail cheaply; the token files are written into the held run folder.

    Returns:
        Configuration, lock, fingerprint of the data (None: only the model is still to be written),
        and the tokens that end a response.
    """
    config = compose(arguments)
    check(config)
    option = ModelOption("student", "ACTOR_MODEL_PATH", "model.path", config.model.path)
    find_model(option)
    folder = Path(config.trainer.default_local_dir)
    _require_files(config)
    lock = runs.hold(folder)
    say(f"opdvr: SFT of {config.model.path}, run folder {folder}")
    train = _tokens(config, "train_files", _TRAIN, folder)
    batch = config.data.train_batch_size
    if train.rows < batch:
        raise ValueError(
            f"{_TRAIN} has {how_many(train.rows, 'row')} to learn from, fewer than one step takes: "
            f"BATCH_SIZE (data.train_batch_size) is {batch}; lower it"
        )
    if config.data.val_files:
        _tokens(config, "val_files", _VALIDATION, folder)
    else:
        with open_dict(config):
            config.trainer.test_freq = -1
    with open_dict(config):
        config.data.custom_cls = _DATASET_CLASS
    fingerprint = {
        "data.train_files": hashlib.sha256(Path(config.data.train_files).read_bytes()).hexdigest(),
        "data.train_batch_size": int(batch),
        "model.path": config.model.path,
        "model.lora_rank": config.model.lora_rank,
        "trainer.seed": int(config.trainer.seed),
        "trainer.n_gpus_per_node": int(config.trainer.n_gpus_per_node),
    }
    rest = _is_trained(folder, config, fingerprint, train.rows // batch)
    runs.record(folder, arguments, finished=False)
    return config, lock, None if rest else fingerprint, train.end_ids


def _require_files(config: DictConfig) -> None:
    """The embedded task's rollouts are made by a command of their own."""
    first = config.data.train_files
    first = first if isinstance(first, str) else next(iter(first), "")
    if not Path(first).expanduser().exists() and "://" not in first:
        made = "`bash rollout.sh` makes it" if config.sft.demo else "`opdvr sft rollout` makes one"
        raise ValueError(f"{_TRAIN}: data file not found: {first}; {made}")


def _tokens(config: DictConfig, key: str, option: str, folder: Path) -> Prepared:
    """Tokenise the files of a data option; the option then names the tokens."""
    files = config.data[key]
    target = folder / f"tokens-{key.removesuffix('_files')}.arrow"
    done = prepare(
        [files] if isinstance(files, str) else list(files),
        option,
        target,
        Reading(
            tokenizer=config.model.tokenizer_path or config.model.path,
            max_length=config.data.max_length,
            template=dict(config.data.apply_chat_template_kwargs),
            thinking=config.sft.thinking,
            messages=config.data.messages_key,
            trust_remote_code=config.model.trust_remote_code,
        ),
    )
    for line in done.lines(option):
        say(line)
    with open_dict(config):
        config.data[key] = str(target)
    return done


def _is_trained(
    folder: Path, config: DictConfig, fingerprint: dict[str, object], steps_per_epoch: int
) -> bool:
    """Whether the last step is done and only the model is missing, as a kill may leave a run.

    Raises:
        ValueError: what can be known before a model is loaded about going on from a checkpoint.
    """
    trainer = config.trainer
    check_resume_mode(trainer)
    steps = complete_steps(folder)
    if not steps or trainer.resume_mode != "auto":
        return False
    check_same_data(folder / f"global_step_{steps[-1]}", fingerprint)
    total = trainer.total_training_steps or steps_per_epoch * trainer.total_epochs
    if steps[-1] == total and not (folder / SUPERVISED_MODEL).is_dir():
        say(f"opdvr: step {total} of {total} is done already; writing the model")
        return True
    if steps[-1] >= total:
        raise ValueError(
            f"{folder} already holds step {steps[-1]} of {total}: raise TOTAL_EPOCHS or "
            "TOTAL_STEPS to go on, or choose another EXPERIMENT_NAME"
        )
    return False


def _train(config: DictConfig, fingerprint: dict[str, object]) -> None:
    """All ranks of this machine: one in this process, several in processes of their own."""
    ranks = config.trainer.n_gpus_per_node
    _set_environment(config, ranks)
    from opdvr.integration.sft.worker import run_rank

    if ranks == 1:
        run_rank(0, config, fingerprint)
        return
    import torch.multiprocessing as multiprocessing

    multiprocessing.spawn(run_rank, (config, fingerprint), nprocs=ranks)


def _set_environment(config: DictConfig, ranks: int) -> None:
    """What every rank must have in its environment before it imports verl."""
    modules = [PLATFORM_MODULE, os.environ.get("VERL_USE_EXTERNAL_MODULES")]
    os.environ["VERL_USE_EXTERNAL_MODULES"] = ",".join(filter(None, modules))
    os.environ |= {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if config.trainer.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        cores = len(os.sched_getaffinity(0))
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // ranks)))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _say_losses(folder: Path) -> None:
    if not (folder / METRICS_NAME).exists():
        return
    losses = [
        (record["step"], record[SFT_VALIDATION_LOSS])
        for record in read_metrics(folder)
        if SFT_VALIDATION_LOSS in record
    ]
    if losses:
        (first_step, first), (last_step, last) = losses[0], losses[-1]
        before = f"{first:.4f} (step {first_step}) -> " if len(losses) > 1 else ""
        say(f"validation loss {before}{last:.4f} (step {last_step})")
    say(f"metrics: {folder / METRICS_NAME}")
