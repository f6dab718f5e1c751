"""Lets the destination fold the files of transactions in progress, so that less is left to do after their COMMIT."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final

from levada.apply.applier import Applier
from levada.errors import LevadaError
from levada.runtime.stages.messages import EarlyFilesRemoved, FileStagedEarly, SegmentStaged
from levada.runtime.stages.stage import Stage, StageParts
from levada.runtime.tables.phases import STREAMING
from levada.schema import ReplicatedTableSchema
from levada.segments.files import SegmentFile
from levada.threads import MarkedPool
from levada.values import Lsn, TableId

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 2
"""The files that are folded simultaneously, by a process each."""


class AheadStage(Stage):
    """Starts the folding of large files before their COMMIT. A batch folds itself what has not begun by then."""

    def __init__(self, parts: StageParts, applier: Applier) -> None:
        super().__init__(parts)
        self._applier = applier
        self._pool = MarkedPool(_AT_ONCE, "levada-ahead")
        self._begun: dict[str, Future[None]] = {}
        """By the paths of the files."""
        if parts.destination.capabilities.folds_ahead:
            parts.inbox.on(FileStagedEarly, self._staged)
            parts.inbox.on(EarlyFilesRemoved, self._removed)
            parts.inbox.on(SegmentStaged, self._committed)

    def _staged(self, report: FileStagedEarly) -> None:
        """Begin with a file of a table that will get it in its next batch."""
        record = self._registry.tables.get(report.file.table)
        if record is None or record.phase.name not in STREAMING or record.suspended:
            return
        if self._registry.backlog.moves(record.id) or self._registry.backlog.holds(record.id, shadow=True):
            return
        after = self._registry.position(record)
        self._begun[report.file.path] = self._pool.submit(self._fold, record.id, after, report.file, report.schema)

    def _fold(self, table: TableId, after: Lsn, file: SegmentFile, schema: ReplicatedTableSchema) -> None:  # in a pool
        try:
            self._applier.fold_ahead(table, after, file, schema)
        except (LevadaError, InterruptedError, OSError) as error:
            _log.info("%s: a file is folded after the COMMIT, not before: %s", schema.name, error)
        except Exception:
            _log.exception("%s: a file could not be folded before the COMMIT", schema.name)

    def _removed(self, report: EarlyFilesRemoved) -> None:
        """Forget files that no batch will have."""
        self._cancel(f.path for f in report.files)
        for table in {f.table for f in report.files}:
            self._destination.forget_ahead(table, [f.path for f in report.files if f.table == table])

    def _committed(self, report: SegmentStaged) -> None:
        """Leave what has not begun to the batch, which divides it among more processes."""
        if report.manifest.files.commit_ts_us is not None:
            self._cancel(report.manifest.files.paths)

    def _cancel(self, paths: Iterable[str]) -> None:
        for path in paths:
            if (begun := self._begun.pop(path, None)) is not None:
                begun.cancel()

    def close(self) -> None:
        """Wait for the files that are folded now."""
        self._pool.shutdown(cancel_futures=True)
