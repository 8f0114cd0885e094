"""`opdvr train`: configuration, checks, Ray, verl's run, summary; heavy imports come last."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from opdvr.integration import runs
from opdvr.integration.checkpoints import (
    COMPLETE,
    check_same_data,
    complete_steps,
    data_fingerprint,
)
from opdvr.integration.config import REPO_ROOT, compose, distills, method_name, signal_name
from opdvr.integration.demo_data import make_demo_data
from opdvr.integration.options import preflight_mode
from opdvr.integration.preflight import Finding, Refusal, refuse, summary
from opdvr.integration.preflight.finding import NOTE
from opdvr.integration.teacher_settings import teacher_settings
from opdvr.integration.terminal import output_in_log, say, stage
from opdvr.integration.watchdog import EXIT_CODE as WATCHDOG_EXIT_CODE
from opdvr.integration.watchdog import WatchdogStop
from opdvr.report.run_folder import METRICS_NAME
from opdvr.teacher.engines import API_KEY_VARIABLE, TeacherError

# A Unix socket's path may have 107 bytes; Ray appends up to 68 to its temporary folder.
LONGEST_TEMP_DIR = 39
RESUME_MODES = ("auto", "disable", "resume_path")
PLATFORM_MODULE = "opdvr.integration.platform"


def prepare(overrides: list[str]) -> tuple[DictConfig, TextIO, bool]:
    """Everything that can fail cheaply: the checked configuration, and the held run folder.

    Returns:
        Both, and whether the last step is done, so that only the summary is missing.

    Raises:
        ValueError: a user's mistake, in one line; nothing was started.
    """
    config = compose(overrides)
    if config.opdvr.demo:
        make_demo_data(config)
    look_before(config)
    folder = Path(config.trainer.default_local_dir)
    lock = runs.hold(folder)
    compared = signal_name(config) if distills(config) else "no teacher"
    say(f"opdvr: {method_name(config)} ({compared}), run folder {folder}")
    is_trained = check_resume(config)
    runs.record(folder, overrides, finished=False)
    return config, lock, is_trained


def look_before(config: DictConfig) -> None:
    """The preflight; its notes are for `opdvr check`, where there is time to read them.

    Raises:
        ValueError: the run must not start.
    """

    def hear(found: Finding) -> None:
        if found.level != NOTE:
            say(f"opdvr: {found}")

    report = refuse(config, hear)
    if preflight_mode(config.opdvr.preflight) == "off":
        return
    notes = "; its notes: python -m opdvr check" if report.count(NOTE) else ""
    say(f"opdvr: preflight: {summary(report)}{notes}")


def train(config: DictConfig) -> None:
    """Run the training; errors propagate."""
    set_environment(config)
    if os.environ.get("RAY_ADDRESS"):
        join_cluster_and_run(config)
    else:
        with output_in_log(Path(config.trainer.default_local_dir) / "train.log"):
            run_on_local_ray(config)


def check_resume_mode(trainer: DictConfig) -> None:
    """Raise ValueError for a mode that verl does not know."""
    if trainer.resume_mode not in RESUME_MODES:
        raise ValueError(
            f"trainer.resume_mode is {trainer.resume_mode!r}; it must be one of "
            f"{', '.join(RESUME_MODES)}"
        )


def check_resume(config: DictConfig) -> bool:
    """What can be known before Ray starts about going on from the folder's last checkpoint.

    Returns:
        Whether the last step is done, in a run that was ended before it could say so.

    Raises:
        ValueError: the data changed since, or the last step is done (verl would do one too many).
    """
    folder = Path(config.trainer.default_local_dir)
    trainer = config.trainer
    check_resume_mode(trainer)
    if trainer.resume_mode == "resume_path":
        named = Path(str(trainer.resume_from_path))
        if not (named / COMPLETE).is_file():
            raise ValueError(
                f"trainer.resume_from_path={named} is no complete checkpoint (it has no {COMPLETE})"
            )
        check_same_data(named, data_fingerprint(config))
    steps = complete_steps(folder)
    if not steps or trainer.resume_mode != "auto":
        return False
    check_same_data(folder / f"global_step_{steps[-1]}", data_fingerprint(config))
    total = config.trainer.total_training_steps
    if steps[-1] == total and runs.is_unfinished(folder):
        say(f"opdvr: step {total} of {total} is done already; writing the summary")
        return True
    if total is not None and steps[-1] >= total:
        raise ValueError(
            f"{folder} already holds step {steps[-1]} of {total}: raise TOTAL_STEPS to go on, or "
            "choose another EXPERIMENT_NAME"
        )
    say(f"opdvr: resuming from step {steps[-1]}")
    return False


def set_environment(config: DictConfig) -> None:
    """What this process, and through a local Ray every worker, must have in its environment."""
    variables = OmegaConf.to_container(
        config.ray_kwargs.ray_init.get("runtime_env", {}).get("env_vars", OmegaConf.create({}))
    )
    variables["VERL_USE_EXTERNAL_MODULES"] = ",".join(
        filter(None, (PLATFORM_MODULE, os.environ.get("VERL_USE_EXTERNAL_MODULES")))
    )
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(REPO_ROOT), os.environ.get("PYTHONPATH")))
    )
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TEMP_DIR:
        use_short_temp_dir()
    variables = verl_environment() | variables
    for name, value in variables.items():
        if name not in os.environ or name in ("VERL_USE_EXTERNAL_MODULES", "PYTHONPATH"):
            os.environ[name] = str(value)
    variables = {name: os.environ[name] for name in variables}  # what was set by hand wins
    for name in ("HF_HUB_OFFLINE", "HF_HOME", "TRANSFORMERS_OFFLINE"):
        if name in os.environ:
            variables[name] = os.environ[name]
    OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", variables, force_add=True)


def verl_environment() -> dict[str, str]:
    """What verl puts into its Ray workers' environment, read without importing verl (seconds)."""
    spec = importlib.util.find_spec("verl")
    path = Path(spec.submodule_search_locations[0]) / "trainer" / "constants_ppo.py"
    module_spec = importlib.util.spec_from_file_location("_verl_constants_ppo", path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return dict(module.get_ppo_ray_runtime_env()["env_vars"])


def use_short_temp_dir() -> None:
    """Ray, vLLM and datasets put Unix sockets below TMPDIR: give them one that is short enough."""
    folder = tempfile.mkdtemp(prefix="opdvr-", dir="/tmp")
    say(f"opdvr: TMPDIR ({tempfile.gettempdir()}) is too long for sockets; using {folder}")
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None  # so that this process looks again


def run_on_local_ray(config: DictConfig) -> None:
    """Run in this process on a Ray of its own, which is stopped after."""
    import ray

    options = OmegaConf.to_container(config.ray_kwargs.ray_init)
    options.pop("runtime_env")  # a local Ray's workers inherit this process's environment
    quoted = shlex.quote(sys.executable)
    if quoted != sys.executable:  # Ray puts it unquoted into a shell command
        options["runtime_env"] = {"py_executable": quoted}
    stage("starting a private Ray")
    ray.init(address="local", **options)
    try:
        if config.opdvr.in_process_rollout and config.actor_rollout_ref.rollout.name == "vllm":
            from opdvr.integration import early_server

            early_server.start(replicas(config))
        stage("importing verl")
        from opdvr.integration.task_runner import OpdvrTaskRunner

        OpdvrTaskRunner().run(config)
    finally:
        ray.shutdown()


def replicas(config: DictConfig) -> int:
    """How many inference servers verl will ask for."""
    rollout = config.actor_rollout_ref.rollout
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    return devices // (rollout.tensor_model_parallel_size * rollout.data_parallel_size)


def join_cluster_and_run(config: DictConfig) -> None:
    """verl's own entry on the cluster at RAY_ADDRESS: the runner is an actor there."""
    import ray
    from verl.trainer.main_ppo import run_ppo

    from opdvr.integration.task_runner import OpdvrTaskRunner

    with open_dict(config):
        for option in ("num_cpus", "include_dashboard"):  # refused when joining
            config.ray_kwargs.ray_init.pop(option, None)

    class WithKey(OpdvrTaskRunner):
        """Has what may stand in no configuration: Ray and verl print theirs."""

        key = teacher_settings(config).api_key

        def run(self, config: DictConfig) -> None:
            if self.key:
                os.environ[API_KEY_VARIABLE] = self.key.reveal()
            super().run(config)

    run_ppo(config, task_runner_class=ray.remote(num_cpus=1)(WithKey))


def main(arguments: list[str]) -> int:
    """Entry of `opdvr train`; a user's mistake is one line and exit code 2."""
    started = time.time()
    try:
        config, lock, is_trained = prepare(arguments)
    except Refusal as refusal:
        for found in refusal.findings:
            print(f"opdvr: {found}", file=sys.stderr)
        return 2
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        print(f"opdvr: {error}", file=sys.stderr)
        return 2
    folder = Path(config.trainer.default_local_dir)
    finished = False
    try:
        with lock:
            if not is_trained:
                train(config)
            runs.record(folder, arguments, finished=True)
        finished = True
        from opdvr.integration.finish import report

        report(config)
    except TeacherError as error:
        reason = getattr(error, "cause", None) or error  # on a cluster Ray wraps it
        print(f"opdvr: {reason}", file=sys.stderr)
        return 1
    except WatchdogStop as stop:
        print(f"opdvr: {getattr(stop, 'cause', None) or stop}", file=sys.stderr)
        finished = True  # the line says what there is to know
        if (folder / METRICS_NAME).exists():
            from opdvr.integration.finish import write_page

            write_page(folder)
        return WATCHDOG_EXIT_CODE
    except KeyboardInterrupt:
        steps = complete_steps(folder)
        say(f"opdvr: interrupted; the same command goes on from step {steps[-1] if steps else 0}")
        finished = True  # nothing to look up in the log
        return 130
    finally:
        log = folder / "train.log"
        if not finished and log.exists():
            print(f"opdvr: stopped; the log is {log}", file=sys.stderr)
    say(f"opdvr: done in {time.time() - started:.0f} s")
    return 0
