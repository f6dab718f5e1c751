"""Staged segments and schema versions until nothing needs them, and the position that capture may acknowledge."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

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
    """Removes segments and schema versions. ``release`` is called with the LSN up to which every table has applied.

    ``keep_ledger`` makes the ledger durable before the newest manifest is removed.
    """

    def __init__(
        self,
        registry: TableRegistry,
        log: SegmentLog,
        store: SchemaStore,
        record: SourceRecord,
        release: Callable[[Lsn], None],
        keep_ledger: Callable[[Ledger], None] = lambda ledger: None,
    ) -> None:
        self._registry = registry
        self._log = log
        self._store = store
        self._record = record
        self._release = release
        self._keep_ledger = keep_ledger
        self._next = 0.0
        self._gone: deque[Manifest] = deque()
        """Those that nobody needs and that are not removed yet."""

    def remove(self, now: float) -> None:
        """Give up what nobody needs; before nothing shows it any more, remember how far the slot may have been told.

        Does so every two seconds at most; ``now`` is of the monotonic clock. What the staging area does not remove now
        is tried again.
        """
        if now < self._next:
            return
        self._next = now + _EVERY_S
        self._gone += self._registry.backlog.pop_unneeded()
        everywhere = self._registry.backlog.min_applied_lsn(self._registry.staged_lsn)
        if not self._log.staging.durable:
            self._record.save_position(everywhere, None)
        elif self._gone:
            newest = max(self._gone, key=lambda m: m.end_lsn)
            if newest.end_lsn > self._registry.backlog.end:
                # No manifest has the ledger any more once these are removed.
                self._keep_ledger(self._registry.backlog.ledger)
            self._record.save_position(newest.end_lsn, newest.last)
        try:
            self._remove_segments()
        except LevadaError as error:
            if not error.retried:
                raise
            _log.warning("%d segments wait to be removed: %s", len(self._gone), error.message)
        self._release(everywhere)
        self._remove_versions()

    def _remove_segments(self) -> None:
        while self._gone:
            self._log.remove(self._gone[0])
            self._gone.popleft()

    def _remove_versions(self) -> None:
        """Remove the schema versions before the one that holds where the table and the stream may resume.

        A table that is copied, or whose position is unknown, keeps all of them. On scratch staging every table does,
        because a restart may stream changes again from any earlier position.
        """
        if not self._log.staging.durable:
            return
        # A restart streams from the recorded position on, or from the end of a segment that is still there.
        backlog, resumes = self._registry.backlog, self._record.position
        reached = {
            record.id: min(backlog.applied_lsn(record.id), resumes)
            for record in self._registry.tables.values()
            if record.phase.name in STREAMING and record.resync is None
        }
        retentions = outdated_versions(self._store.get_table_schemas(), reached)
        if not retentions:
            return
        try:
            removed = self._store.prune_table_schemas(retentions)
        except LevadaError as error:
            if not error.retried:
                raise
            _log.warning("schema versions of %d tables wait to be removed: %s", len(retentions), error.message)
        else:
            _log.info("%d schema versions of %d tables are removed: nothing needs them", removed, len(retentions))


def outdated_versions(
    versions: Iterable[ReplicatedTableSchema], reached: Mapping[TableId, Lsn]
) -> dict[TableId, SnapshotId]:
    """Return the retention of each table that has outdated versions.

    A transaction that commits at ``reached`` or later needs the newest version below its LSN, and never an older one.
    """
    before = Counter(version.id for version in versions if version.snapshot_id < reached.get(version.id, 0))
    return {table: SnapshotId(reached[table] - 1) for table, count in before.items() if count > 1}
