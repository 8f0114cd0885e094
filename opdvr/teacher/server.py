"""The teacher behind one or several running vLLM servers, asked over HTTP."""

from __future__ import annotations

from opdvr.teacher.engines import EngineKind

KIND = EngineKind(
    name="server",
    factory="opdvr.teacher.server:ServerEngine",
    any_temperature=False,
    any_ids=False,
    hidden_states=False,
    entropy=False,
    local_weights=False,
)
