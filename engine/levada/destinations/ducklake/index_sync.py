"""Keeps a key index up to date with its DuckLake table: follows compactions, or rebuilds the index."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from levada.destinations.data_files.key_reader import KeyReader, add_files
from levada.destinations.data_files.live_files import LiveFile
from levada.destinations.data_files.storage import Storage
from levada.destinations.ducklake.deletes import read_deletes
from levada.destinations.ducklake.storage import LakeFolder
from levada.destinations.ducklake.tables import LiveDataFile
from levada.destinations.key_index.index import KeyIndex

_log = logging.getLogger(__name__)

_WAVE: Final = 64
"""Data files whose deleted positions are in memory at the same time."""


def sync_index(
    index: KeyIndex,
    reader: KeyReader,
    storage: Storage,
    lake: LakeFolder,
    files: Sequence[LiveDataFile],
    snapshot: int,
) -> None:
    """Update the index to the table's current files, and commit it for ``snapshot``.

    ``snapshot`` is that of Levada's last commit to the table. If the index has it, all other differences come from
    compactions, which replace files and keep their rows. Otherwise the index is rebuilt from all files.
    """
    if index.snapshot_id != snapshot:
        _log.info("rebuilding a key index from %d data files", len(files))
        index.clear()
    by_path = {lake.path(f.path): f for f in files}
    index.remove_files(index.paths - by_path.keys())
    added = [by_path[path] for path in sorted(by_path.keys() - index.paths)]
    for start in range(0, len(added), _WAVE):
        add_files(index, reader, storage, live_files(storage, lake, added[start : start + _WAVE]))
    index.commit(snapshot)


def live_files(storage: Storage, lake: LakeFolder, files: Iterable[LiveDataFile]) -> list[LiveFile]:
    """Return the data files, with the positions of their deleted rows."""
    return [
        LiveFile(
            lake.path(f.path),
            np.empty(0, np.int64) if f.delete_path is None else read_deletes(storage, lake, [f.delete_path]),
        )
        for f in files
    ]
