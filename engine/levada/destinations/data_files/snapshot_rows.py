"""The rows of a copy whose ranges were read in several snapshots, as one key index and the rows to delete.

`levada.copy.kept` says why they are one state of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from levada.copy.rows import CopiedRows
from levada.destinations.data_files.key_reader import KeyReader, add_files
from levada.destinations.data_files.live_files import Positions, without_deletes
from levada.destinations.data_files.storage import Storage, WrittenFile
from levada.destinations.key_index.index import KeyIndex
from levada.destinations.keys import KeyEncoder
from levada.schema import ReplicatedTableSchema


class Deletes(Protocol):
    """Takes the deleted rows of uncommitted files."""

    def add(self, paths: Sequence[str], files: npt.NDArray[np.integer[Any]], positions: Positions) -> None:
        """Delete the rows at ``positions[i]`` of ``paths[files[i]]``."""
        ...


def all_files(copied: CopiedRows[list[WrittenFile]]) -> list[WrittenFile]:
    """Return the files of all ranges, and those of the changed rows."""
    return [file for parts in (*copied.snapshots, copied.changed) for part in parts for file in part]


def index_rows(
    index: KeyIndex,
    reader: KeyReader,
    storage: Storage,
    schema: ReplicatedTableSchema,
    copied: CopiedRows[list[WrittenFile]],
    deletes: Deletes,
) -> None:
    """Add the keys of a copy of one or of several snapshots, see `index_snapshots`."""
    if copied.changed_keys is None:
        add_files(index, reader, storage, (without_deletes(file.path) for file in all_files(copied)))
    else:
        index_snapshots(index, reader, storage, schema, copied, deletes)


def index_snapshots(
    index: KeyIndex,
    reader: KeyReader,
    storage: Storage,
    schema: ReplicatedTableSchema,
    copied: CopiedRows[list[WrittenFile]],
    deletes: Deletes,
) -> None:
    """Add the keys of all rows to the index. Delete the rows whose keys changed, which do not belong to the table."""
    assert copied.changed_keys is not None
    outdated = KeyEncoder(schema, index.seed).encode(copied.changed_keys)
    for parts in copied.snapshots:
        # Snapshot by snapshot, because the index has only one row for each key.
        add_files(index, reader, storage, (without_deletes(file.path) for part in parts for file in part))
        gone = index.lookup(outdated, forget=True)
        found = np.flatnonzero(gone.found)
        if len(found):
            numbers, places = np.unique(gone.file_id[found], return_inverse=True)
            deletes.add([index.file_path(int(n)) for n in numbers], places, gone.position[found])
    add_files(index, reader, storage, (without_deletes(file.path) for part in copied.changed for file in part))
