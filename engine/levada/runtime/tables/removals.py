"""The partitions whose rows have left a table and are still at the destination.

Each one is in the store before the storage without it is the table's baseline. So a removal is never forgotten. One
that was applied has a watermark of the table above it, also if the engine ends before the store knows.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence

from levada.destinations import Destination, Ordering
from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.pipeline_tables import PipelineTables
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import table_target
from levada.schema import ReplicatedTableSchema
from levada.schema.partitions import Removal
from levada.stores.interface import PipelineStore
from levada.values import Lsn, TableId, TableMode

_log = logging.getLogger(__name__)


def removals_subject(table: TableId) -> str:
    """Return the store's key of a table's removals."""
    return f"removals_{int(table)}"


class Removals:
    """Keeps the removals of all tables in the store and in the backlog. For the supervisor's thread."""

    def __init__(
        self, config_ref: ConfigRef, store: PipelineStore, destination: Destination, tables: PipelineTables
    ) -> None:
        self._config_ref = config_ref
        self._store = store
        self._destination = destination
        self._tables = tables

    def load(self, table: TableId) -> None:
        """Read a table's removals from the store."""
        self._tables.backlog.set_removals(table, self._stored(table))

    def can_remove(self, schema: ReplicatedTableSchema) -> bool:
        """Return True if the destination can remove the rows of partitions from a table."""
        capabilities = self._destination.capabilities
        if not capabilities.finds_rows or capabilities.ordering is not Ordering.TABLE:
            return False
        target = table_target(self._store, self._config_ref.current, schema)
        return self._destination.effective_mode(target) is TableMode.UPSERT

    def add(self, record: TableRecord, removal: Removal) -> None:
        """Remove the rows of a region from the table. The same removal may be added again."""
        known = self._stored(record.id)
        if removal in known:
            return
        self._keep(record.id, sorted((*known, removal), key=lambda r: (r.at, r.ordinal)))
        record.apply.changes_wait(time.monotonic())
        if record.resync.has_copy and not record.resync.abandoned:
            # Its snapshot may be older, and no removal is applied to it.
            record.resync.restart()
        _log.info("table %s: the rows of a partition that is gone at %s are removed", record.name, removal.at)

    def is_pending(self, table: TableId) -> bool:
        """Return True if rows of a partition that is gone are still in the table."""
        return self._tables.backlog.removal(table) is not None

    @property
    def can_hold(self) -> bool:
        """Whether a table can wait while the others go on."""
        return self._destination.capabilities.ordering is Ordering.TABLE

    def hold(self, table: TableId) -> None:
        """Let the table apply nothing beyond what is staged now, until `release`."""
        self._tables.backlog.hold(table, self._tables.staged_lsn)

    def release(self, table: TableId) -> None:
        """Let the table apply all changes again."""
        self._tables.backlog.hold(table, None)

    def applied(self, table: TableId, position: Lsn) -> None:
        """Forget the removals below a table's watermark, or below the snapshot of its copy."""
        if self._tables.backlog.removal(table) is not None:
            known = self._stored(table)
            left = [removal for removal in known if removal.at >= position]
            if len(left) < len(known):
                self._keep(table, left)

    def forget(self, table: TableId) -> None:
        """Forget the removals of a table that is copied again or is no longer replicated."""
        if self._stored(table):
            self._keep(table, ())

    def _stored(self, table: TableId) -> list[Removal]:
        text = self._store.get_fingerprint(removals_subject(table))
        return [] if text is None else [Removal.from_json(data) for data in json.loads(text)]

    def _keep(self, table: TableId, removals: Sequence[Removal]) -> None:
        if removals:
            self._store.store_fingerprint(removals_subject(table), json.dumps([r.to_json() for r in removals]))
        else:
            self._store.delete_fingerprint(removals_subject(table))
        self._tables.backlog.set_removals(table, removals)
