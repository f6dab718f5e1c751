"""The requests for shadow copies, each with a marker in the store that makes the next process resume it."""

from __future__ import annotations

from levada.runtime.tables.pipeline_tables import PipelineTables
from levada.runtime.tables.record import TableRecord
from levada.stores.interface import PipelineStore
from levada.stores.workers import resync_worker
from levada.values import TableId


class ShadowCopies:
    """Requests shadow copies from the resync stage, and abandons them."""

    def __init__(self, store: PipelineStore, tables: PipelineTables) -> None:
        self._store = store
        self._tables = tables

    def request(self, record: TableRecord) -> None:
        """Request a shadow copy of the table. One that was requested before is discarded and begins again."""
        self._store.upsert_replication_progress(resync_worker(record.id), self._tables.staged_lsn)
        record.resync.request()

    def is_requested(self, table: TableId) -> bool:
        """Return True if a resync was requested and has not ended, perhaps by an earlier process."""
        return self._store.get_replication_progress(resync_worker(table)) is not None

    def abandon(self, record: TableRecord) -> None:
        """Abandon the table's shadow copy, if it has one. The resync stage removes it."""
        if not record.resync.has_copy or record.resync.abandoned:
            return
        record.resync.abandon()
        self._tables.backlog.forget(record.id, shadow=True)
        self.forget(record.id)

    def forget(self, table: TableId) -> None:
        """Delete the store's marker of a request that has ended."""
        self._store.delete_replication_progress(resync_worker(table))
