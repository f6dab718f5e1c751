"""Applies one batch of changes to an upsert table, which has the last state of each row.

The batch is folded in pieces of bounded size, in WAL order. Each piece becomes one data file and a set of deleted
positions. The key index has the positions of the rows to delete, including those of earlier pieces. The caller adds all
the files in one commit, and then commits the index. `levada.destinations.data_files.parallel_upsert` folds and writes
the pieces of a large batch in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.data_files.arrangement import arranged, write_parts
from levada.destinations.data_files.layout import FileLayout, project
from levada.destinations.data_files.live_files import Positions
from levada.destinations.data_files.row_lookup import RowLookup
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files
from levada.destinations.fold import Folded, fold, row_missing
from levada.destinations.key_index.index import KeyIndex
from levada.destinations.keys import Keys
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, ORDINAL
from levada.segments.batch import TableEvents
from levada.values import Lsn


class Deletes(Protocol):
    """Takes the rows that a batch deletes, in the form that the table's format needs."""

    def add(self, paths: Sequence[str], files: npt.NDArray[np.integer[Any]], positions: Positions) -> None:
        """Delete the rows at ``positions[i]`` of ``paths[files[i]]``. A data file may come in several calls."""
        ...

    def discard(self) -> None:
        """Forget the deleted rows, and remove the files of them, which are not committed."""
        ...


Before = tuple[int, int] | None
"""The (commit LSN, ordinal) of the last TRUNCATE of a batch. Changes before it are dropped."""


@dataclass(slots=True)
class Upsert:
    """The files of one batch. `run` writes the files and changes the index. `discard` undoes both."""

    storage: Storage
    layout: FileLayout
    schema: ReplicatedTableSchema
    index: KeyIndex
    deletes: Deletes
    files: list[WrittenFile] = field(default_factory=list)
    truncated: bool = False
    changes: int = 0
    """The number of changes, including truncates."""

    def run(self, events: TableEvents, after: Lsn) -> None:
        """Write the files of the changes from ``after`` on, inclusive. After an error the files are removed."""
        truncates = [t for t in events.truncates if t.commit_lsn >= after]
        before = None
        try:
            if truncates:
                before = (int(truncates[-1].commit_lsn), truncates[-1].ordinal)
                self.truncated = True
                self.changes += len(truncates)
                self.index.clear()
            self._apply(events, after, before)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the files, which are not committed, and reset the index to its last commit."""
        self.index.discard()
        remove_files(self.storage, self.files)
        self.deletes.discard()

    def _apply(self, events: TableEvents, after: Lsn, before: Before) -> None:
        """Apply the changes piece by piece, in WAL order."""
        for piece in pieces(events, after, before):
            changes = piece.num_rows
            folded = fold(piece, self.schema, self.index.seed)
            # Free the piece before the result is written, and the result before the next piece is read.
            del piece
            folded, upserts = self._completed(folded)
            files, keys = write_rows(self.storage, self.layout, self.schema, upserts, folded.keys)
            self.files += files
            self._place(files, keys, folded.gone_keys, changes)
            del folded, upserts

    def _place(self, files: Sequence[WrittenFile], keys: Keys, gone: Keys, changes: int) -> None:
        """Delete the existing rows of both keys, and add the rows of written files, which have ``keys``, to the index.

        An entry of ``keys`` need not be forgotten, because the new one replaces it.
        """
        places = [self.index.lookup(keys), self.index.lookup(gone, forget=True)]
        found = np.concatenate([p.found for p in places])
        if found.any():
            file_ids, positions = (
                np.concatenate(column)[found] for column in zip(*((p.file_id, p.position) for p in places), strict=True)
            )
            numbers, rows = np.unique(file_ids, return_inverse=True)
            paths = [self.index.file_path(int(n)) for n in numbers]
            self.deletes.add(paths, rows, positions)
        first = 0
        for written in files:
            self.index.add_file(written.path, keys.take(slice(first, first + written.rows)))
            first += written.rows
        self.changes += changes

    def _completed(self, folded: Folded) -> tuple[Folded, pa.Table]:
        """Return what exists of a folded piece, and its rows with all their values."""
        if folded.partial_rows is None:
            return folded, folded.upserts
        old = self.index.lookup(folded.partial_rows.former_keys)
        if (lost := ~old.found & folded.partial_rows.optional).any():
            folded = folded.without_lost(old.found)
            old = old.take(~lost)
        partial_rows = folded.partial_rows
        if partial_rows is None:
            return folded, folded.upserts
        if not old.found.all():
            raise row_missing(self.schema.name, partial_rows.column_of(~old.found))
        held = RowLookup(self.storage, self.layout, self.schema)
        numbers, files = np.unique(old.file_id, return_inverse=True)
        paths = [self.index.file_path(int(n)) for n in numbers]
        return folded, folded.complete(held.read(list(partial_rows.columns), paths, files, old.position))


def write_rows(
    storage: Storage, layout: FileLayout, schema: ReplicatedTableSchema, upserts: pa.Table, keys: Keys
) -> tuple[list[WrittenFile], Keys]:
    """Write rows of the source table to data files. Return the files, and the keys in the order of their rows."""
    if not upserts.num_rows:
        return [], keys
    rows = project(upserts, layout, schema)
    order, parts = arranged(layout, rows)
    if order is not None:
        rows, keys = rows.combine_chunks().take(order), keys.take(order)
    return write_parts(storage, layout, rows, parts), keys


def pieces(events: TableEvents, after: Lsn, truncated_before: Before) -> Iterator[pa.Table]:
    """Yield the changes from ``after`` on, in WAL order, without those before the last TRUNCATE.

    The batch's `BatchLimits` bound the size of a piece.
    """
    most_rows, most_bytes = events.limits.piece_rows, events.limits.piece_bytes
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in events.scan():
        kept = batch if after <= events.after else batch.filter(pc.greater_equal(batch.column(COMMIT_LSN), int(after)))
        if truncated_before is not None:
            kept = kept.filter(pa.array(_not_before(kept, truncated_before)))
        if not kept.num_rows:
            continue
        waiting.append(kept)
        rows += kept.num_rows
        size += kept.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _not_before(batch: pa.RecordBatch, point: tuple[int, int]) -> npt.NDArray[np.bool_]:
    lsn, ordinal = batch.column(COMMIT_LSN).to_numpy(), batch.column(ORDINAL).to_numpy()
    later: npt.NDArray[np.bool_] = (lsn > point[0]) | ((lsn == point[0]) & (ordinal >= point[1]))
    return later
