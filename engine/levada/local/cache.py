"""Where this machine keeps what was fetched once, and how processes take turns to fetch it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Return ``$LEVADA_CACHE``, else ``levada`` below ``$XDG_CACHE_HOME`` or ``~/.cache``; it may not exist yet."""
    if own := os.environ.get("LEVADA_CACHE"):
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "levada"


@contextmanager
def only_process(folder: Path) -> Iterator[Path]:
    """Make the folder, and let in one process of this machine at a time; the others wait.

    Yields an empty folder inside it, which is removed afterwards: what is fetched there comes into its place whole, by
    a rename. One that a killed process left is removed as well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / ".fetching"
    with (folder / ".lock").open("w") as lock:
        # Closing the file gives the lock back, and so does the death of the process.
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
