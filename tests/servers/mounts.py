"""A small file system of its own, for what happens when there is no room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[None]:
    """Mount a tmpfs on the folder. Skip the test if this machine does not allow it."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def covered(folder: Path) -> Iterator[None]:
    """Mount an empty file system over the folder during the block, so that another one is seen there."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make the file system that is mounted on the folder read-only during the block."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


def fill(folder: Path, *, leaving: int) -> Path:
    """Leave at most so many bytes free. Return the file that takes the others."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        while (free := os.statvfs(folder).f_bavail * os.statvfs(folder).f_bsize) > leaving:
            file.write(bytes(min(1 << 16, free - leaving)))
            file.flush()
    return filler
