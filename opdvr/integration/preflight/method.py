"""Names and ranges of the method, which the core's registries know: torch is imported here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from opdvr.integration.config import distills
from opdvr.integration.options import OpdvrOptions, name_variables
from opdvr.integration.preflight.configuration import N_RESPONSES
from opdvr.integration.preflight.finding import Finding, error

# The core's messages: OPTION=VALUE, what is wrong with it, perhaps ": " and what to do.
_CORE_MESSAGE = re.compile(r"(?P<where>\S+(?: \([\w.]+\))?=\S+) (?P<what>.*?)(?:: (?P<remedy>.*))?")


def check_method(config: DictConfig) -> Iterator[Finding]:
    """Gate and estimator exist and fit the number of responses and the single forward."""
    options: OpdvrOptions = OmegaConf.to_object(config.opdvr)
    estimator = config.algorithm.adv_estimator
    try:
        spec = options.method(estimator, distills(config))
    except ValueError as reason:
        yield _from_core(name_variables(str(reason)))
        return
    from opdvr.core import needs_full_batch

    n_responses = config.actor_rollout_ref.rollout.n
    if spec.needs_groups and n_responses < 2:
        yield error(
            N_RESPONSES,
            f"is {n_responses}, but CORRECTNESS_GATED_MODE={spec.gate} "
            "(opdvr.correctness_gated_mode) looks at the other responses to a prompt",
            remedy="set it to 2 or more",
        )
    if needs_full_batch(spec) and options.student_logprobs == "update":
        yield error(
            f"ADV_ESTIMATOR={estimator} (algorithm.adv_estimator)",
            "needs whole groups before the update",
            remedy="set STUDENT_LOGPROBS=recompute (opdvr.student_logprobs)",
        )


def _from_core(message: str) -> Finding:
    parts = _CORE_MESSAGE.fullmatch(message)
    if parts is None:
        return error("opdvr", message)
    return error(parts["where"], parts["what"], remedy=parts["remedy"] or "")
