"""The partitions whose rows have left or entered a table, and which the destination has or lacks still.

Each one is in the store before the storage after it is the table's baseline. So a move is never forgotten. One that was
applied has a watermark of the table above it, also if the engine ends before the store knows.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from levada.destinations import Ordering
from levada.runtime.tables.kept_regions import add_kept_region, lost_region
from levada.runtime.tables.part import Part
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import table_target
from levada.schema import ReplicatedTableSchema
from levada.schema.partitions import Arrival, Move, Region, Removal, move_from_json
from levada.schema.storage import TableStorage
from levada.values import Lsn, SnapshotId, TableId, TableMode

_log = logging.getLogger(__name__)

_NEWEST: Final = SnapshotId(2**64 - 1)


def moves_subject(table: TableId) -> str:
    """Return the store's key of a table's moves."""
    return f"removals_{int(table)}"


class PartitionMoves(Part):
    """Keeps the moves of all tables in the store and in the backlog. For the supervisor's thread."""

    def load(self, table: TableId) -> None:
        """Read a table's moves from the store."""
        self._tables.backlog.set_moves(table, self._stored(table))

    def remove(
        self, record: TableRecord, before: TableStorage, gone: Collection[TableId], at: Lsn, ordinal: int
    ) -> bool:
        """Remove the rows of leaves that are gone. Return False if their bounds do not show them exactly.

        The same removal may be added again. A leaf that has not arrived yet arrives no more: only what the stream has
        of it is at the destination. A table that keeps the rows of partitions has no removal, whatever the bounds are.
        """
        version = self._version(record)
        if version is not None and self.keeps(record):
            self._keep_rows(record, lost_region(before, gone, version), frozenset(gone), at)
            return True
        region = None if version is None else lost_region(before, gone, version)
        if region is None:
            return False
        known, removal = self._stored(record.id), Removal(at, ordinal, region)
        if removal not in known:
            left = frozenset(gone)
            self._add(record, removal, [m.without(left, at) if isinstance(m, Arrival) else m for m in known])
            _log.info("table %s: the rows of a partition that is gone at %s are removed", record.name, at)
        return True

    def arrive(self, record: TableRecord, leaves: frozenset[TableId], at: Lsn, ordinal: int) -> bool:
        """Copy the rows of leaves into the table that were attached. Return False if that is not possible.

        The same arrival may be added again.
        """
        if self._version(record) is None:
            return False
        known, arrival = self._stored(record.id), Arrival(at, ordinal, leaves)
        if arrival not in known:
            self._add(record, arrival, known)
            _log.info("table %s: the rows of a partition that was attached at %s are copied", record.name, at)
        return True

    def bring(self, record: TableRecord, before: TableStorage, now: TableStorage, leaves: frozenset[TableId]) -> bool:
        """Copy the rows of leaves that were attached before what is staged now. Return False if that is not possible.

        Without the place of the statement in the stream, the table may already have rows of these leaves, and some of
        them may have left while a leaf was detached. So the rows within their bounds are removed first, unless the
        table keeps the rows of partitions. Leaves that were in the table before must have the same bounds as before,
        because other partitions may have rows within the former ones.
        """
        version, at = self._version(record), self._tables.staged_lsn
        if version is None:
            return False
        back = leaves & before.leaves.keys()
        if self.keeps(record):
            if back:
                self._keep_rows(record, lost_region(before, sorted(back), version), back, at)
        else:
            region = lost_region(now, sorted(leaves), version)
            if region is None or _rows_of(before, back, version) != _rows_of(now, back, version):
                return False
            known = [m.without(back, at) if isinstance(m, Arrival) else m for m in self._stored(record.id)]
            self._add(record, Removal(at, 0, region), known)
        self._add(record, Arrival(at, 0, leaves), self._stored(record.id))
        _log.info("table %s: the rows of a partition that was attached before %s are copied", record.name, at)
        return True

    def keeps(self, record: TableRecord) -> bool:
        """Return True if the rows of a partition that is gone stay at the destination without a mark."""
        version = self._version(record)
        config = self._config_ref.current
        return version is not None and table_target(self._store, config, version).keeps_unmarked

    def _keep_rows(self, record: TableRecord, region: Region | None, gone: frozenset[TableId], at: Lsn) -> None:
        known = self._stored(record.id)
        left = [m.without(gone, at) if isinstance(m, Arrival) else m for m in known]
        with self._store.together():
            add_kept_region(self._store, record.id, region)
            if left != known:
                self._keep(record.id, left)
        _log.info("table %s: the rows of a partition that is gone at %s are kept", record.name, at)

    def _version(self, record: TableRecord) -> ReplicatedTableSchema | None:
        """Return the newest version of a table whose rows can move at the destination, None if they cannot."""
        capabilities = self._destination.capabilities
        version = self._store.get_table_schema(record.id, _NEWEST)
        if version is None or not capabilities.finds_rows or capabilities.ordering is not Ordering.TABLE:
            return None
        target = table_target(self._store, self._config_ref.current, version)
        return version if self._destination.effective_mode(target) is TableMode.UPSERT else None

    def _add(self, record: TableRecord, move: Move, known: Iterable[Move]) -> None:
        self._keep(record.id, sorted((*known, move), key=lambda m: (m.at, m.ordinal)))
        record.apply.changes_wait(time.monotonic())
        if record.resync.has_copy and not record.resync.abandoned:
            # Its snapshot may be older, and no move is applied to it.
            record.resync.restart()

    def is_pending(self, table: TableId) -> bool:
        """Return True if a move of the table is not at the destination yet."""
        return self._tables.backlog.move(table) is not None

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
        """Forget the moves below a table's watermark, or below the snapshot of its copy."""
        if self._tables.backlog.move(table) is not None:
            known = self._stored(table)
            left = [move for move in known if move.at >= position]
            if len(left) < len(known):
                self._keep(table, left)

    def forget(self, table: TableId) -> None:
        """Forget the moves of a table that is copied again or is no longer replicated."""
        if self._stored(table):
            self._keep(table, ())

    def _stored(self, table: TableId) -> list[Move]:
        text = self._store.get_fingerprint(moves_subject(table))
        return [] if text is None else [move_from_json(data) for data in json.loads(text)]

    def _keep(self, table: TableId, moves: Sequence[Move]) -> None:
        if moves:
            self._store.store_fingerprint(moves_subject(table), json.dumps([m.to_json() for m in moves]))
        else:
            self._store.delete_fingerprint(moves_subject(table))
        self._tables.backlog.set_moves(table, moves)


def _rows_of(storage: TableStorage, leaves: Collection[TableId], version: ReplicatedTableSchema) -> object:
    """Return the rows of leaves in a form that is equal for the same bounds, in whatever order."""
    region = lost_region(storage, sorted(leaves), version) if leaves else None
    return None if region is None else frozenset(region.parts)
