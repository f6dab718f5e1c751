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
from dataclasses import dataclass
from functools import partial

from levada.copy.results_in_order import results_in_order
from levada.copy.tasks import BatchRunner
from levada.destinations.data_files.batch_ranges import plan_tasks
from levada.destinations.data_files.fold_task import FoldTask, WrittenPiece
from levada.destinations.data_files.folded_ahead import FoldedAhead
from levada.destinations.data_files.storage import remove_files
from levada.destinations.data_files.upsert import Before, Upsert, write_rows
from levada.destinations.keys import Keys
from levada.segments.batch import TableEvents
from levada.values import Lsn


@dataclass(slots=True)
class ParallelUpsert(Upsert):
    """An `Upsert` that writes a large batch in tasks of ``runner``, unless they would wait for other tasks."""

    runner: BatchRunner | None = None
    ahead: FoldedAhead | None = None
    """The ranges that are folded already."""

    def _apply(self, events: TableEvents, after: Lsn, before: Before) -> None:
        task = FoldTask(self.storage, self.layout, self.schema, self.index.seed, after, before)
        for part, folded in [(events, None)] if self.ahead is None else self.ahead.ranges(events, task):
            if folded is not None and folded.pieces is not None:
                self._add_range(folded.pieces)
            else:
                self._fold(part, task)
            if part is not events:
                events.nulled += part.nulled
                events.tasks += part.tasks

    def _fold(self, events: TableEvents, task: FoldTask) -> None:
        """Apply changes of which no range is folded yet."""
        plan = plan_tasks(events, self.runner)
        if plan is None:
            Upsert._apply(self, events, task.after, task.before)
            return
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
