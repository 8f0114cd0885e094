"""What a check before training has to say."""

from __future__ import annotations

from dataclasses import dataclass

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
