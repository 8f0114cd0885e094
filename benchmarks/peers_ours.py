"""Our side of the `peers` benchmark: `opdvr train` itself, step by step.

The arguments are those of `opdvr train`. The training loop, its processes and its logging are what
a user gets; the loop's data loader waits at the gate, where it would hand out the next batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers_gate import Gate, digest
from opdvr.integration import launch

# Of a step's metrics, by what the table calls them; generation includes handing over the weights.
PHASES = {
    "generation": "timing_s/gen",
    "verifier and teacher": "timing_s/reward",
    "update": "timing_s/update_actor",
}


class GatedLoader:
    """A data loader that hands out each batch when the gate opens."""

    def __init__(self, loader: object, gate: Gate, folder: Path):
        self._loader, self._gate, self._folder = loader, gate, folder
        self.seen: dict = {}  # of the batch under way

    def __iter__(self) -> Iterator[dict]:
        for batch in self._loader:
            self._gate.wait(self._report())
            yield batch

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def _report(self) -> dict:
        if not self.seen:
            return {}
        last = (self._folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
        metrics = json.loads(last)
        phases = {name: metrics.get(key) or 0.0 for name, key in PHASES.items()}
        return self.seen | {"phases": phases}


def gate_trainer(gate: Gate) -> None:
    """Put a trainer that waits for every step in `OpdvrTrainer`'s place."""
    from opdvr.integration import task_runner

    class GatedTrainer(task_runner.OpdvrTrainer):
        """`OpdvrTrainer` at the gate."""

        def _create_dataloader(self, *args: object, **kwargs: object) -> None:
            super()._create_dataloader(*args, **kwargs)
            folder = Path(self.config.trainer.default_local_dir)
            self.train_dataloader = GatedLoader(self.train_dataloader, gate, folder)

        def _update_actor(self, batch: object) -> object:
            tensors = batch.batch
            width = tensors["prompts"].shape[1]
            masks = tensors["attention_mask"][:, :width].bool()
            prompts = zip(tensors["prompts"], masks, strict=True)
            self.train_dataloader.seen = {
                "tokens": int(tensors["response_mask"].sum()),
                "rows": len(tensors["responses"]),
                "prompts": digest(row[mask].tolist() for row, mask in prompts),
            }
            return super()._update_actor(batch)

    task_runner.OpdvrTrainer = GatedTrainer


def main(arguments: list[str]) -> int:
    """Train until told to stop."""
    gate = Gate()
    set_environment = launch.set_environment

    def then_gate(config: object) -> None:
        set_environment(config)  # verl may only be imported after this
        gate_trainer(gate)

    launch.set_environment = then_gate
    return launch.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
