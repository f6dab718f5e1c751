"""Applies a large batch of changes to an upsert table in tasks.

The batch is divided by its order in the WAL, and not by keys. So each change is read once, without a shuffle, and a row
whose key changes needs no treatment of its own. Each task folds its range in pieces, and writes their data files. This
process then takes the pieces in WAL order, as `Upsert` does: it looks up and deletes the earlier rows of their keys, in
the table and in earlier pieces, and adds their rows to the index. So the table is that of an `Upsert` with other limits
of pieces.

A row with values that only the destination knows (unchanged TOAST) is completed and written by this process, because
its former row may be in an earlier range. While this process would wait, it folds ranges that no task has begun. The
range of a task that has failed is applied by this process, which raises the error if it has it too. Files of a task
that was killed are orphans, as those of a killed engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from levada.copy.results_in_order import results_in_order
from levada.copy.tasks import BatchRunner
from levada.destinations.data_files.batch_ranges import plan_tasks
from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files
from levada.destinations.data_files.upsert import Before, Upsert, pieces, write_rows
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


@dataclass(slots=True)
class ParallelUpsert(Upsert):
    """An `Upsert` that writes a large batch in tasks of ``runner``, unless they would wait for other tasks."""

    runner: BatchRunner | None = None

    def _apply(self, events: TableEvents, after: Lsn, before: Before) -> None:
        plan = plan_tasks(events, self.runner)
        if plan is None:
            Upsert._apply(self, events, after, before)
            return
        task = FoldTask(self.storage, self.layout, self.schema, self.index.seed, after, before)
        with results_in_order(
            plan.runner,
            [partial(task, part) for part in plan.parts],
            f"changes of {self.schema.name}",
            parallel=plan.places,
            window=plan.window,
            helps=plan.runner.is_helped,
            unused=lambda folded: remove_files(self.storage, folded.files),
        ) as results:
            for part, result in zip(plan.parts, results, strict=True):
                folded = result.value
                if folded is None or folded.pieces is None:
                    part.nulled = 0
                    Upsert._apply(self, part, task.after, task.before)
                else:
                    events.tasks += result.elsewhere
                    part.nulled = folded.nulled
                    self._add_range(folded.pieces)
        events.nulled += sum(part.nulled for part in plan.parts)

    def _add_range(self, pieces: Sequence[WrittenPiece]) -> None:
        """Apply the pieces of a range."""
        self.files += [file for piece in pieces for file in piece.files]
        for piece in pieces:
            self._add(piece)

    def _add(self, piece: WrittenPiece) -> None:
        """Write the piece's incomplete rows, delete the existing rows of its keys, and add its rows to the index."""
        files, keys, gone = list(piece.files), [piece.keys], [piece.gone]
        if piece.incomplete is not None:
            rows, upserts = self._completed(piece.incomplete)
            more, their_keys = write_rows(self.storage, self.layout, self.schema, upserts, rows.keys)
            self.files += more
            files += more
            keys.append(their_keys)
            gone.append(rows.gone_keys)
        self._place(files, Keys.concat(keys), Keys.concat(gone), piece.changes)
