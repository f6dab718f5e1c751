"""Lets the destination fold the files of transactions in progress, so that less is left to do after their COMMIT."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from levada.apply.applier import Applier
from levada.destinations.answers import perform
from levada.errors import LevadaError
from levada.runtime.stages.messages import (
    ApplyEnded,
    EarlyFilesRemoved,
    FileFolded,
    FileStagedEarly,
    SegmentStaged,
)
from levada.runtime.stages.stage import Stage, StageParts
from levada.runtime.tables.phases import STREAMING
from levada.schema import ReplicatedTableSchema
from levada.segments.files import SegmentFile
from levada.threads import MarkedPool
from levada.values import Lsn, TableId

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 2
"""The files that are folded simultaneously, by a process each."""


@dataclass(slots=True)
class _Begun:
    """A file that was given to the destination. ``end_lsn`` is that of its segment after the COMMIT."""

    table: TableId
    future: Future[None]
    end_lsn: Lsn | None = None


class AheadStage(Stage):
    """Starts the folding of large files before their COMMIT. A batch folds itself what has not begun by then.

    It is made after the stage of batches, which records the end of a batch first.
    """

    def __init__(self, parts: StageParts, applier: Applier) -> None:
        super().__init__(parts)
        self._applier = applier
        self._pool = MarkedPool(_AT_ONCE, "levada-ahead")
        self._removals = MarkedPool(1, "levada-ahead-removals")
        self._begun: dict[str, _Begun] = {}
        """By the paths of the files."""
        self._closed = False
        self._folds = parts.destination.capabilities.folds_ahead
        # Also for a destination that folds nothing ahead, because capture reports the files of each pipeline.
        parts.inbox.on(FileStagedEarly, self._staged)
        parts.inbox.on(EarlyFilesRemoved, self._removed)
        parts.inbox.on(SegmentStaged, self._committed)
        parts.inbox.on(FileFolded, lambda report: self._tidy({report.table}))
        parts.inbox.on(ApplyEnded, lambda report: self._tidy(set(report.tables)))

    def _staged(self, report: FileStagedEarly) -> None:
        """Begin with a file of a table that will get it in its next batch."""
        record = self._registry.tables.get(report.file.table)
        if not self._folds or self._closed or record is None or record.phase.name not in STREAMING or record.suspended:
            return
        if self._registry.backlog.moves(record.id) or self._registry.backlog.holds(record.id, shadow=True):
            return
        after = self._registry.position(record)
        future = self._pool.submit(self._fold, record.id, after, report.file, report.schema)
        self._begun[report.file.path] = _Begun(record.id, future)
        ended = FileFolded(record.id)
        future.add_done_callback(lambda _: self._inbox.put(ended))

    def _fold(self, table: TableId, after: Lsn, file: SegmentFile, schema: ReplicatedTableSchema) -> None:  # in a pool
        try:
            self._applier.fold_ahead(table, after, file, schema)
        except (LevadaError, InterruptedError, OSError) as error:
            # Without the hint of the error: a file that was rolled back meanwhile is missing, and nothing is wrong.
            why = error.message if isinstance(error, LevadaError) else error
            _log.info("%s: a file is folded after the COMMIT, if there is one, and not before: %s", schema.name, why)
        except BaseException:
            _log.exception("%s: a file could not be folded before the COMMIT", schema.name)

    def _removed(self, report: EarlyFilesRemoved) -> None:
        """Forget files that no batch will have. What is being folded is removed when it ends."""
        for path in (f.path for f in report.files):
            if (begun := self._begun.get(path)) is not None:
                begun.future.cancel()
                begun.end_lsn = Lsn(0)
        self._tidy({f.table for f in report.files})

    def _committed(self, report: SegmentStaged) -> None:
        """Leave what has not begun to the batch, which divides it among more processes."""
        for path in report.manifest.files.paths if report.manifest.files.commit_ts_us is not None else ():
            if (begun := self._begun.get(path)) is not None:
                begun.end_lsn = report.manifest.end_lsn
                if begun.future.cancel():
                    del self._begun[path]

    def _tidy(self, tables: set[TableId]) -> None:
        """Remove the results that no batch of these tables will use, and those of tables that were left out."""
        if self._closed:
            return
        over: dict[TableId, list[str]] = {}
        for path, begun in self._begun.items():
            if not begun.future.done():
                continue
            record = self._registry.tables.get(begun.table)
            end_lsn = begun.end_lsn if begun.table in tables else None
            if record is None or (end_lsn is not None and self._registry.position(record) >= end_lsn):
                over.setdefault(begun.table, []).append(path)
        for table, paths in over.items():
            self._removals.submit(self._forget, table, paths)
            for path in paths:
                del self._begun[path]

    def _forget(self, table: TableId, paths: Sequence[str]) -> None:  # in a pool, as an object store may be slow
        try:
            perform(self._destination.forget_ahead, table, paths)
        except BaseException:
            _log.exception("data files from before a COMMIT are left at the destination")

    def close(self) -> None:
        """Wait for the files that are folded or removed now. The end of the destination removes the other results.

        Messages that are handled afterwards begin nothing.
        """
        self._closed = True
        for pool in (self._pool, self._removals):
            pool.shutdown(cancel_futures=True)
