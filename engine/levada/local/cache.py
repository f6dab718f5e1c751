"""Where this machine keeps what was fetched once, and how processes take turns to fetch it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Return ``$LEVADA_CACHE``, else ``levada`` below ``$XDG_CACHE_HOME`` or ``~/.cache``; it may not exist yet."""
    if own := os.environ.get("LEVADA_CACHE"):
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "levada"


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Make the folder, and let in one process of this machine at a time; the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        # Closing the file gives the lock back, and so does the death of the process.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
