"""The teacher on verl's own worker: FSDP2, in the reward-model slot or on a pool of its own."""

from __future__ import annotations

from opdvr.teacher.engines import EngineKind

KIND = EngineKind(
    name="fsdp",
    factory=None,
    any_temperature=True,
    any_ids=True,
    hidden_states=True,
    entropy=True,
    local_weights=True,
)
