"""The cache of downloaded files on this machine, and the lock under which processes download into it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Return ``$LEVADA_CACHE``, or else ``levada`` below ``$XDG_CACHE_HOME`` or ``~/.cache``. It may not exist yet."""
    if own := os.environ.get("LEVADA_CACHE"):
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "levada"


@contextmanager
def only_process(folder: Path) -> Iterator[Path]:
    """Create the folder, and hold its lock during the block. Other processes of this machine wait.

    Yield an empty folder inside it for downloads. A complete download is renamed into its place. The download folder is
    removed afterwards, and so is one that a killed process left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / ".fetching"
    with (folder / ".lock").open("w") as lock:
        # Closing the file releases the lock, and so does the end of the process.
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
