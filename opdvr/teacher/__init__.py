"""Teacher engines: how the teacher's log-probs of the student's own tokens are made.

A new engine is one file with an `EngineKind` named KIND, and one line here.
"""

from __future__ import annotations

from opdvr.teacher import fsdp, server, vllm
from opdvr.teacher.engines import EngineKind

ENGINES: dict[str, EngineKind] = {module.KIND.name: module.KIND for module in (fsdp, vllm, server)}
