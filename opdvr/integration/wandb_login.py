"""Whether wandb is there and may upload: its key, a saved login, its mode. It is not imported."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

# Where `wandb login` saves a key, by version, unless WANDB_BASE_URL names a server of one's own.
WANDB_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")


@dataclass(frozen=True)
class WandbLogin:
    """What wandb would find.

    Attributes:
        installed: it can be imported.
        has_key: WANDB_API_KEY is set, or a login for its server is saved in netrc.
        mode: WANDB_MODE, "" where it is not set.
    """

    installed: bool
    has_key: bool
    mode: str


def wandb_login() -> WandbLogin:
    """Look; a few file reads."""
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    hosts = {*WANDB_HOSTS, os.environ.get("WANDB_BASE_URL", "").split("://")[-1].strip("/")} - {""}
    logins = netrc.read_text(errors="replace") if netrc.is_file() else ""
    return WandbLogin(
        installed=importlib.util.find_spec("wandb") is not None,
        has_key=bool(os.environ.get("WANDB_API_KEY")) or any(host in logins for host in hosts),
        mode=os.environ.get("WANDB_MODE", ""),
    )
