"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO


def lock_folder(folder: Path, name: str, unwritable: str, busy: str) -> TextIO:
    """Lock a folder, made if missing; keep the returned file open for as long as it is needed.

    Args:
        folder: the folder.
        name: of the lock file in it.
        unwritable: message if it cannot be written, with ``{error}`` where the reason goes.
        busy: message if another process holds it.

    Raises:
        ValueError: with one of the two messages.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / name, "w")  # noqa: SIM115  (open as long as the lock is held)
    except OSError as error:
        raise ValueError(unwritable.replace("{error}", str(error))) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(busy) from None
    return file
