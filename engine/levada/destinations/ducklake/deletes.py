"""The deleted rows of a batch, as delete files of DuckLake: one for each data file, with all of its deleted rows.

A new delete file replaces the data file's earlier one. A data file without remaining rows is removed instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from levada.destinations.data_files.layout import FIELD_ID
from levada.destinations.data_files.live_files import Positions, side_by_side
from levada.destinations.data_files.position_deletes import read_position_deletes, write_position_deletes
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files
from levada.destinations.ducklake.statistics import footer_size
from levada.destinations.ducklake.storage import LakeFolder
from levada.destinations.ducklake.tables import LiveDataFile
from levada.errors import Transient

SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), metadata={FIELD_ID: "2147483646"}),
        pa.field("pos", pa.int64(), metadata={FIELD_ID: "2147483645"}),
    ]
)
"""The columns of a delete file, with the field IDs that DuckDB gives them."""


@dataclass(frozen=True, slots=True)
class WrittenDeletes:
    """A delete file, and the path of its data file. ``replaces`` is the ID of the delete file that it was made from."""

    file: WrittenFile
    footer: int
    data_path: str
    data_id: int | None
    replaces: int | None


@dataclass(slots=True)
class DeletedRows:
    """The deleted rows of a batch by data file, and the files that `write` makes of them."""

    storage: Storage
    lake: LakeFolder
    positions: dict[str, list[Positions]] = field(default_factory=dict)
    written: list[WrittenDeletes] = field(default_factory=list)
    emptied: list[LiveDataFile] = field(default_factory=list)
    """The data files of which no row is left."""
    obsolete: set[str] = field(default_factory=set)
    """The paths of the batch's own files of which no row is left."""

    def add(self, paths: Sequence[str], files: npt.NDArray[np.integer[Any]], positions: Positions) -> None:
        """Delete the rows at ``positions[i]`` of ``paths[files[i]]``."""
        order = np.argsort(files, kind="stable")
        bounds = np.searchsorted(files[order], np.arange(len(paths) + 1))
        for path, begin, end in zip(paths, bounds[:-1], bounds[1:], strict=True):
            self.positions.setdefault(path, []).append(positions[order[begin:end]])

    def write(self, live: Mapping[str, LiveDataFile], new: Mapping[str, int]) -> None:
        """Write the delete files. ``live`` has the table's data files, and ``new`` the rows of the batch's own files.

        Both are by path. Raise Transient ``commit_conflict`` if a data file is no longer in the table, because a
        compaction has replaced it.
        """
        tasks = [(path, np.unique(np.concatenate(parts))) for path, parts in self.positions.items()]
        for path, _ in tasks:
            if path not in live and path not in new:
                raise Transient("commit_conflict", "a compaction has replaced data files of the table")
        made = side_by_side(lambda task: self._write(task[0], task[1], live, new), tasks)
        self.written += [written for written in made if written is not None]

    def discard(self) -> None:
        """Remove the files, which are not committed."""
        remove_files(self.storage, [w.file for w in self.written])

    def _write(
        self, path: str, positions: Positions, live: Mapping[str, LiveDataFile], new: Mapping[str, int]
    ) -> WrittenDeletes | None:
        file = live.get(path)
        if file is not None and file.delete_path is not None:
            earlier = read_deletes(self.storage, self.lake, [file.delete_path])
            positions = np.union1d(earlier, positions)
        if len(positions) == (new[path] if file is None else file.rows):
            if file is None:
                self.obsolete.add(path)
            else:
                self.emptied.append(file)
            return None
        made = write_position_deletes(
            self.storage, SCHEMA, [self.lake.location(path)], np.zeros(len(positions), np.int32), positions
        )
        footer = footer_size(self.storage, made.path)
        return WrittenDeletes(
            made, footer, path, None if file is None else file.id, None if file is None else file.delete_id
        )


def read_deletes(storage: Storage, lake: LakeFolder, paths: Collection[str]) -> Positions:
    """Return the deleted positions of one data file, in ascending order. ``paths`` are its delete files."""
    found = read_position_deletes(storage, SCHEMA, [lake.path(p) for p in paths])
    return np.unique(np.concatenate(list(found.values()))) if found else np.empty(0, np.int64)
