"""The watchdogs in a run: their lines on the terminal and in alarms.jsonl, and an orderly stop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdvr.integration.checkpoints import complete_steps
from opdvr.integration.terminal import say
from opdvr.report.run_folder import METRICS_NAME, RunFolder, read_metrics
from opdvr.report.step_records import ALARMS_NAME
from opdvr.report.watch import NON_FINITE, Alarm, Watch

if TYPE_CHECKING:
    from opdvr.integration.trainer import OpdvrTrainer

EXIT_CODE = 3
# Far beyond what any model has, and before its activations overflow.
LARGEST_WEIGHT = 1e6
_GO_ON = "WATCHDOG=warn goes on as it is"


class WatchdogStop(RuntimeError):
    """A watchdog ends the run; the message is a line for the person who started it.

    is_sound: the student's state is worth going on from.
    """

    def __init__(self, message: str, is_sound: bool = True) -> None:
        super().__init__(message)
        self.is_sound = is_sound


class Watchdog:
    """Looks at every step that is logged.

    Args:
        mode: a key of `opdvr.report.watch.MODES`.
        run: where its alarms are written; its metrics.jsonl is the resumed run's by now.
        last_step: of the run; no alarm stops it there.
    """

    def __init__(self, mode: str, run: RunFolder, last_step: int) -> None:
        self._mode, self._run, self._last_step = mode, run, last_step
        has_history = (run.path / METRICS_NAME).exists()
        self._watch = Watch(history=read_metrics(run.path) if has_history else ())

    def look(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Say and write what is wrong at a step.

        Raises:
            WatchdogStop: it speaks, the mode is "stop", and there are steps left to save.
        """
        if self._mode == "off":
            return
        alarms = self._watch.look(step, metrics)
        for alarm in alarms:
            self._run.append_record(ALARMS_NAME, alarm.record())
            say(alarm.line())
        if alarms and self._mode == "stop" and step < self._last_step:
            raise _stop(alarms)


def _stop(alarms: list[Alarm]) -> WatchdogStop:
    kinds = [alarm.kind for alarm in alarms]
    message = f"stopped by the watchdog ({' and '.join(kinds)}) after step {alarms[0].step}"
    return WatchdogStop(message, is_sound=NON_FINITE not in kinds)


def refuse_broken_weights(checkpoint: Path) -> None:
    """Does nothing when the weights in a checkpoint folder's safetensors files are all sound.

    Raises:
        NonFiniteError: naming the first tensor with a weight that is NaN, infinite or larger than
            any model has, and its file.
    """
    import torch
    from safetensors import safe_open

    from opdvr.core import NonFiniteError

    for file in sorted(checkpoint.rglob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (no mapping)
                tensor = tensors.get_tensor(name)
                if not tensor.numel() or not tensor.is_floating_point():
                    continue
                # The extremes are NaN where any value is; a tensor of flags would need memory.
                low, high = torch.aminmax(tensor)
                if not bool(torch.stack([low, high]).abs().max() <= LARGEST_WEIGHT):
                    raise NonFiniteError(
                        f"{name} in {file} has weights from {low.item():.3g} to {high.item():.3g}"
                    )


def ended(trainer: OpdvrTrainer, stop: WatchdogStop) -> WatchdogStop:
    """The message of a run that ends after a whole step, whose state it saves first.

    `fit` has logged the step and not begun another, so that the data stands where it should. Where
    numbers were not finite nothing is saved: the student may be far from where it was.
    """
    from opdvr.core import NonFiniteError

    go_on = f"set EXPERIMENT_NAME={trainer.run_folder.name} to go on"
    if not stop.is_sound:
        return WatchdogStop(
            f"{stop}; {_last_good(trainer)}: change what is named above and {go_on}"
        )
    if trainer.global_steps not in complete_steps(trainer.run_folder):
        try:
            trainer._save_checkpoint()
        except NonFiniteError as error:
            return broken(trainer, error)
    return WatchdogStop(
        f"{stop}; its state is saved: change what is named above and {go_on} from there; "
        "WATCHDOG=warn goes on regardless"
    )


def broken(trainer: OpdvrTrainer, error: Exception) -> WatchdogStop:
    """The message of a run that ends within a step, because the student's numbers are not finite.

    Nothing is saved: its weights may be what is broken.
    """
    reason = str(getattr(error, "cause", None) or error)  # Ray wraps what a worker raised
    say(f"watchdog: step {trainer.global_steps}: {reason}")
    return WatchdogStop(
        f"stopped by the watchdog (non-finite) at step {trainer.global_steps}; "
        f"{_last_good(trainer)}: lower ACTOR_LR or set MODEL_DTYPE=float32, and set "
        f"EXPERIMENT_NAME={trainer.run_folder.name} to go on"
    )


def _last_good(trainer: OpdvrTrainer) -> str:
    """Where to go on from: the last checkpoint before the step under way."""
    good = [step for step in complete_steps(trainer.run_folder) if step < trainer.global_steps]
    if not good:
        return "nothing is saved of it, and there is no checkpoint before it, so it starts anew"
    folder = trainer.run_folder / f"global_step_{good[-1]}"
    return f"nothing is saved of it; the last good checkpoint is {folder}"
