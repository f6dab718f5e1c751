"""Folders and files for their owner alone: they hold rows, keys or addresses."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_OTHERS: Final = 0o077


def private_folder(folder: Path) -> None:
    """Create a folder for its owner alone. One that exists keeps its mode, and missing parents get the usual one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)


def private_folders(root: Path, folder: Path) -> None:
    """Create a folder at or below ``root``, and with it each missing one from ``root`` on, for their owner alone."""
    for each in reversed([folder, *folder.parents]):
        if each == root or root in each.parents:
            private_folder(each)


def process_folder(name: str) -> Path:
    """Create a folder for the temporary files of this process. Remove the folders of processes that have ended.

    The folder stays locked until the process ends, however it ends. The next process of this user then removes it.
    """
    parent = _scratch(name)
    at_parent = _locked(parent, fcntl.LOCK_EX)
    try:
        for former in parent.iterdir():
            _remove_unlocked(former)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        _locked(folder, fcntl.LOCK_EX)
        return folder
    finally:
        os.close(at_parent)


def _scratch(name: str) -> Path:
    """Return a folder of this user alone. One of that name that others can use is left alone, and a new one created."""
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=_FOLDER_MODE)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS:
        return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))


def _locked(folder: Path, how: int) -> int:
    """Lock a folder and return its descriptor, which holds the lock. Raise BlockingIOError with ``LOCK_NB``."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, how)
    except OSError:
        os.close(fd)
        raise
    return fd


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder that no process has locked. What cannot be removed stays."""
    with suppress(OSError):
        fd = _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(fd)


def private_file(path: Path | str, mode: str) -> IO[Any]:
    """Open a file as `open` does. A file that this creates is readable and writable for its owner alone."""
    return open(path, mode, opener=_private)


def replace_file(
    path: Path, content: bytes, *, durable: bool = False, begun: Callable[[], None] = lambda: None
) -> None:
    """Write a file for its owner alone, in one step: a reader finds the former content or all of the new one.

    With ``durable`` the new content also survives a crash of the machine. Call ``begun`` before the step. After an
    error before that call the file is as it was.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with private_file(partial, "wb") as file:
            file.write(content)
        if durable:
            sync(partial)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    begun()
    partial.replace(path)
    if durable:
        sync(path.parent)


def sync(path: Path | str) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def create_private(path: str) -> None:
    """Create an empty file for its owner alone. One that exists keeps its content."""
    os.close(_private(path, os.O_WRONLY | os.O_CREAT))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)
