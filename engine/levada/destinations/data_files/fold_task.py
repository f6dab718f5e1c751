"""One range of a batch for an upsert table: its changes folded, and their rows written to data files.

The result depends on the form of the table's data files, and not on the rows that the table has. Pure but for the
files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files
from levada.destinations.data_files.upsert import Before, pieces, write_rows
from levada.destinations.fold import Folded, fold
from levada.destinations.keys import Keys
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.values import Lsn


@dataclass(frozen=True, slots=True, eq=False)
class WrittenPiece:
    """The data files of a folded piece, whose rows are not in the index yet.

    ``keys`` are the keys of the rows in the files, in the same order. ``gone`` are the other keys whose existing rows
    must be deleted. ``incomplete`` has the rows with unknown values, which are not written. Its own ``gone_keys`` are
    empty.
    """

    files: Sequence[WrittenFile]
    keys: Keys
    gone: Keys
    incomplete: Folded | None
    changes: int


@dataclass(slots=True)
class FoldedRange:
    """The pieces of one range, and the number of its values that became NULL.

    ``pieces`` is None if the engine's process must apply the range.
    """

    pieces: list[WrittenPiece] | None
    nulled: int = 0

    @property
    def files(self) -> list[WrittenFile]:
        """The files of the pieces."""
        return [file for piece in self.pieces or () for file in piece.files]


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Folds a range of changes, and writes its data files. It is pickled into tasks. ``seed`` is that of the keys."""

    storage: Storage
    layout: FileLayout
    schema: ReplicatedTableSchema
    seed: bytes
    after: Lsn
    before: Before

    def __call__(self, events: TableEvents) -> FoldedRange:
        """Write the files. After an error they are removed, and if the engine's process must apply the range."""
        done = FoldedRange([])
        assert done.pieces is not None
        returned = 0
        try:
            for piece in pieces(events, self.after, self.before):
                written = self._write(piece)
                done.pieces.append(written)
                returned += written.incomplete.upserts.nbytes if written.incomplete is not None else 0
                if returned > events.limits.returned_bytes:
                    remove_files(self.storage, done.files)
                    return FoldedRange(None)
        except BaseException:
            remove_files(self.storage, done.files)
            raise
        done.nulled = events.nulled
        return done

    def _write(self, piece: pa.Table) -> WrittenPiece:
        folded = fold(piece, self.schema, self.seed)
        complete, incomplete = _divided(folded)
        files, keys = write_rows(self.storage, self.layout, self.schema, complete.upserts, complete.keys)
        return WrittenPiece(files, keys, folded.gone_keys, incomplete, piece.num_rows)


def _divided(folded: Folded) -> tuple[Folded, Folded | None]:
    """Return the rows without unknown values, and those with unknown values. Neither has gone keys."""
    partial_rows, none = folded.partial_rows, Keys.empty(folded.keys.kind)
    if partial_rows is None:
        return folded, None
    complete = np.ones(len(folded.keys), np.bool_)
    complete[partial_rows.rows] = False
    rows = replace(partial_rows, rows=np.arange(len(partial_rows.rows)))
    # `take` copies, so that the other rows are not pickled.
    incomplete = folded.upserts.take(partial_rows.rows)
    return (
        Folded(folded.upserts.filter(pa.array(complete)), folded.keys.take(complete), none),
        Folded(incomplete, folded.keys.take(partial_rows.rows), none, rows),
    )
