"""Retention of staged segments and schema versions until no table needs them."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from levada.capture.history import Witnessed
from levada.capture.position import CapturePosition
from levada.errors import LevadaError
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.phases import STREAMING
from levada.runtime.tables.registry import TableRegistry
from levada.schema import ReplicatedTableSchema
from levada.segments.ledger import Ledger
from levada.segments.log import SegmentLog
from levada.segments.manifest import Manifest
from levada.stores.interface import SchemaStore
from levada.values import Lsn, SnapshotId, TableId

_log = logging.getLogger(__name__)

_EVERY_S: Final = 2.0


class Retention:
    """Removes segments and schema versions that no table needs.

    ``release`` is called with the LSN below which every table has applied its changes. Without durable staging capture
    acknowledges that LSN. ``save_ledger`` stores the ledger before the newest manifest, which carries it, is removed.
    ``resends_from`` returns the LSN below which the slot sends nothing again, whatever happens, or None if unknown.
    """

    def __init__(
        self,
        registry: TableRegistry,
        log: SegmentLog,
        store: SchemaStore,
        record: SourceRecord,
        release: Callable[[Lsn], None],
        save_ledger: Callable[[Ledger], None] = lambda ledger: None,
        resends_from: Callable[[], Lsn | None] = lambda: None,
    ) -> None:
        self._registry = registry
        self._log = log
        self._store = store
        self._record = record
        self._release = release
        self._save_ledger = save_ledger
        self._resends_from = resends_from
        self._next = 0.0
        self._unneeded: deque[Manifest] = deque()
        """Segments that no table needs and that are not removed yet."""

    def soon(self) -> None:
        """Let the next `remove` not wait."""
        self._next = 0.0

    def remove(self, now: float, position: CapturePosition) -> None:
        """Remove segments and schema versions that no table needs, at most every two seconds.

        The acknowledged position is stored first, because the removed segments were the evidence of it. Segments that
        the staging area fails to remove are tried again. ``now`` is in seconds, monotonic. The backlog has every
        segment up to the ``position`` of capture.
        """
        if now < self._next:
            return
        self._next = now + _EVERY_S
        self._unneeded += self._registry.backlog.pop_unneeded()
        applied = self._registry.backlog.min_applied_lsn(self._registry.staged_lsn)
        newest = max(self._unneeded, key=lambda m: m.end_lsn, default=None)
        if not self._log.staging.durable:
            self._record.save_scratch_position(applied, self._released(applied, newest, position))
        elif newest is not None:
            if newest.end_lsn > self._registry.backlog.end:
                # After the removal no manifest carries the ledger.
                self._save_ledger(self._registry.backlog.ledger)
            self._record.save_position(newest.end_lsn, newest.last)
        try:
            self._remove_segments()
        except LevadaError as error:
            if not error.passes:
                raise
            _log.warning("%d segments cannot be removed yet: %s", len(self._unneeded), error.message)
        self._release(applied)
        self._remove_versions()

    def _released(self, applied: Lsn, newest: Manifest | None, position: CapturePosition) -> Witnessed | None:
        """Return the highest LSN up to which no table needs a change and the last transaction is known.

        ``newest`` is the newest segment that no table needs.
        """
        known = self._record.state.released
        if newest is not None and (known is None or newest.end_lsn > known.end):
            known = Witnessed(newest.end_lsn, newest.last)
        # A copied table begins past the last segment, and with no change of its own it never has another one.
        return known if known is None or applied < position.staged_lsn else known.extended_to(position)

    def _remove_segments(self) -> None:
        while self._unneeded:
            self._log.remove(self._unneeded[0])
            self._unneeded.popleft()

    def _remove_versions(self) -> None:
        """Remove the schema versions older than the one in effect where the table and the stream may resume.

        A table that is being copied, or whose position is unknown, keeps all versions. On scratch staging, and after
        it, a restart may stream changes again that every table has, from wherever the slot's file says.
        """
        backlog, resumes = self._registry.backlog, self._resumes()
        if resumes is None:
            return
        reached = {
            record.id: min(backlog.applied_lsn(record.id), resumes)
            for record in self._registry.tables.values()
            if record.phase.name in STREAMING and not record.resync.has_copy
        }
        retentions = outdated_versions(self._store.get_table_schemas(), reached)
        if not retentions:
            return
        try:
            removed = self._store.prune_table_schemas(retentions)
        except LevadaError as error:
            if not error.passes:
                raise
            _log.warning("schema versions of %d tables cannot be removed yet: %s", len(retentions), error.message)
        else:
            _log.info("removed %d schema versions of %d tables that no change needs", removed, len(retentions))

    def _resumes(self) -> Lsn | None:
        """Return the lowest LSN from which a restart may stream, None if it is unknown."""
        if self._log.staging.durable and not self._record.state.unwitnessed:
            # Or the end of a segment that still exists, which is higher.
            return self._record.state.position
        return self._resends_from()


def outdated_versions(
    versions: Iterable[ReplicatedTableSchema], reached: Mapping[TableId, Lsn]
) -> dict[TableId, SnapshotId]:
    """Return the newest version to keep of each table that has older ones.

    A transaction that commits at the table's LSN in ``reached`` or later needs the newest version below that LSN, and
    never an older one.
    """
    before = Counter(version.id for version in versions if version.snapshot_id < reached.get(version.id, 0))
    return {table: SnapshotId(reached[table] - 1) for table, count in before.items() if count > 1}
