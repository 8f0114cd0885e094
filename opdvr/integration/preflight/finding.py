"""What a check before training has to say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

ERROR, WARNING, NOTE = LEVELS = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing found before a run starts.

    Attributes:
        level: error (the run is doomed or cannot start), warning (it may be), note (a measured
            number or what was not looked at).
        where: the variable and option, file or row it is about, as a user sets them:
            "VAL_N (actor_rollout_ref.rollout.val_kwargs.n)".
        what: what was found there, with the numbers.
        why: what would become of the run.
        remedy: which option to change, and to what.
    """

    level: str
    where: str
    what: str
    why: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.level in LEVELS, self.level

    def __str__(self) -> str:
        """One line."""
        text = "; ".join(part for part in (self.what, self.why, self.remedy) if part)
        return " ".join(f"{self.where}: {text}".split())


class Refusal(ValueError):
    """Errors among the findings: nothing may be started.

    Attributes:
        findings: the errors (with `opdvr.preflight=strict` the warnings too), one line each in
            `str()`.
    """

    def __init__(self, findings: list[Finding]):
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


error, warning, note = (partial(Finding, level) for level in LEVELS)


def from_message(level: str, where: str, message: str) -> Finding:
    """A line of another part of the program as a finding about `where`, which it may begin with."""
    return Finding(level, where, message.removeprefix(where).lstrip(": "))
