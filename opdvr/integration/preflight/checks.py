"""All checks of a run, cheap ones first, and what follows from their findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from omegaconf import DictConfig

from opdvr.integration.options import preflight_mode
from opdvr.integration.preflight.configuration import check_effects, check_names, check_options
from opdvr.integration.preflight.data import check_data
from opdvr.integration.preflight.finding import ERROR, LEVELS, WARNING, Finding, Refusal
from opdvr.integration.preflight.machine import check_machine
from opdvr.integration.preflight.models import check_models
from opdvr.integration.preflight.ranges import check_ranges

# Levels that stop a run, by the value of opdvr.preflight.
STOPPING = {"stop": (ERROR,), "strict": (ERROR, WARNING), "warn": (), "off": (ERROR,)}

Check = Callable[[DictConfig], Iterable[Finding]]
Hear = Callable[[Finding], None]


@dataclass
class Report:
    """What was found, in order, and the seconds that each part took."""

    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def count(self, level: str) -> int:
        """Findings of one level."""
        return sum(found.level == level for found in self.findings)

    @property
    def has_errors(self) -> bool:
        """Whether the run is doomed or cannot start."""
        return self.count(ERROR) > 0


def look(config: DictConfig, hear: Hear = lambda found: None) -> Report:
    """Run every check that can be run.

    What cannot be looked at because something before it is broken is left out: with a value out of
    its range nothing is computed, and with any error no torch, tokenizer or model is loaded.

    Args:
        config: verl's ppo_trainer configuration with our `opdvr` group, interpolations resolved.
        hear: called with every finding as it comes.
    """
    report = Report()
    _part(report, "options", check_values, config, hear)
    in_range = not report.has_errors
    _part(report, "files", lambda c: check_files(c, in_range), config, hear)
    if in_range:
        _part(report, "machine", check_machine, config, hear)
    for name, check in (("method", _method), ("tokens", _tokens), ("numbers", _numbers)):
        if not report.has_errors:
            _part(report, name, check, config, hear)
    return report


def look_at_names(config: DictConfig, hear: Hear = lambda found: None) -> Report:
    """The least, for opdvr.preflight=off: a run without these could not even be set up."""
    report = Report()
    _part(report, "options", check_names, config, hear)
    if not report.has_errors:
        _part(report, "method", _method, config, hear)
    return report


def refuse(config: DictConfig, hear: Hear) -> Report:
    """Look as `opdvr.preflight` says, and stop the run where that says so.

    Args:
        config: as for `look`.
        hear: called with every finding that does not stop the run, in order.

    Returns:
        What was found.

    Raises:
        Refusal: with all findings of the levels that stop.
    """
    mode = preflight_mode(config.opdvr.preflight)
    report = (look_at_names if mode == "off" else look)(config)
    stopping = [found for found in report.findings if found.level in STOPPING[mode]]
    for found in report.findings:
        if found not in stopping:
            hear(found)
    if stopping:
        raise Refusal(stopping)
    return report


def summary(report: Report) -> str:
    """Counts and seconds in one line."""
    counts = []
    for level in LEVELS:
        number = report.count(level)
        counts.append(f"{number} {level}{'' if number == 1 else 's'}")
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.seconds.items())
    return f"{', '.join(counts)} in {sum(report.seconds.values()):.1f} s ({parts})"


def _part(report: Report, name: str, check: Check, config: DictConfig, hear: Hear) -> None:
    started = time.monotonic()
    for found in check(config):
        report.findings.append(found)
        hear(found)
    report.seconds[name] = time.monotonic() - started


def check_values(config: DictConfig) -> Iterator[Finding]:
    """Names, options without effect, ranges; what values come to together, if all are in range."""
    yield from check_names(config)
    yield from check_effects(config)
    ranges = list(check_ranges(config))
    yield from ranges
    if not ranges:
        yield from check_options(config)


def check_files(config: DictConfig, in_range: bool) -> Iterator[Finding]:
    """Models, data, verifier and servers; lengths are computed with only where `in_range`."""
    yield from check_models(config, with_lengths=in_range)
    yield from check_data(config)


def _method(config: DictConfig) -> Iterable[Finding]:
    from opdvr.integration.preflight.method import check_method

    return check_method(config)


def _tokens(config: DictConfig) -> Iterable[Finding]:
    from opdvr.integration.preflight.tokens import check_tokens

    return check_tokens(config)


def _numbers(config: DictConfig) -> Iterable[Finding]:
    from opdvr.integration.preflight.numbers import check_numbers

    return check_numbers(config)
