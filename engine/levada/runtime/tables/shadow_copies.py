"""The requests for shadow copies, each with a marker in the store that makes the next process resume it."""

from __future__ import annotations

import logging

from levada.runtime.tables.kept_copies import kept_copy, store_kept_copy
from levada.runtime.tables.pipeline_tables import PipelineTables
from levada.runtime.tables.record import TableRecord
from levada.stores.interface import PipelineStore
from levada.stores.workers import resync_worker
from levada.values import TableId

_log = logging.getLogger(__name__)


class ShadowCopies:
    """Requests shadow copies from the resync stage, and abandons them."""

    def __init__(self, store: PipelineStore, tables: PipelineTables) -> None:
        self._store = store
        self._tables = tables

    def request(self, record: TableRecord) -> None:
        """Request a shadow copy of the table. One that was requested before is discarded and begins again."""
        store_kept_copy(self._store, record.id, None)
        self._store.upsert_replication_progress(resync_worker(record.id), self._tables.staged_lsn)
        record.resync.request()

    def resume(self, record: TableRecord) -> None:
        """Request the shadow copy that an earlier process began. Keep the segments that its finished ranges need."""
        record.resync.request()
        kept = kept_copy(self._store, record.id)
        if kept is None:
            return
        self._tables.backlog.track(record.id, kept.since, shadow=True)
        if self._tables.backlog.missing(record.id, shadow=True) is not None:
            _log.info("table %s: the shadow copy begins again, because staged changes are missing", record.name)
            self.discard_ranges(record.id)

    def discard_ranges(self, table: TableId) -> None:
        """Forget the finished ranges of a shadow copy, and release the segments that are kept for it."""
        store_kept_copy(self._store, table, None)
        self._tables.backlog.forget(table, shadow=True)

    def is_requested(self, table: TableId) -> bool:
        """Return True if a resync was requested and has not ended, perhaps by an earlier process."""
        return self._store.get_replication_progress(resync_worker(table)) is not None

    def abandon(self, record: TableRecord) -> None:
        """Abandon the table's shadow copy, if it has one. The resync stage removes it."""
        if not record.resync.has_copy or record.resync.abandoned:
            return
        record.resync.abandon()
        self.discard_ranges(record.id)
        self.forget(record.id)

    def forget(self, table: TableId) -> None:
        """Delete the store's marker of a request that has ended."""
        self._store.delete_replication_progress(resync_worker(table))
