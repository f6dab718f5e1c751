"""Folders that only their owner may enter: what is in them holds rows, keys or addresses."""

from __future__ import annotations

from pathlib import Path

_OWNER_ALONE = 0o700


def private_folder(folder: Path) -> None:
    """Create a folder for its owner alone. One that exists keeps its mode, and missing parents get the usual one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=_OWNER_ALONE, exist_ok=True)


def private_folders(root: Path, folder: Path) -> None:
    """Create a folder at or below ``root``, and with it each missing one from ``root`` on, for their owner alone."""
    for each in reversed([folder, *folder.parents]):
        if each == root or root in each.parents:
            private_folder(each)
