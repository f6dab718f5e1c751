"""The first copies of several small tables, read into memory one after the other and written as a group.

The snapshot and the locks at the source end once the rows are read. A table that the group cannot take is postponed,
so that it is copied by itself, which reports what is wrong with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from levada.copy.group_guard import GroupGuard, HeldTable, hold_tables
from levada.copy.read_rows import ReadRows, SnapshotReader, snapshot_reader
from levada.copy.stored_rows import stored_rows
from levada.destinations.groups import NewTable
from levada.errors import LevadaError, NeedsOperator, Permanent, Transient
from levada.postgres.catalog import read_table_names
from levada.postgres.table_locks import read_table_locks
from levada.runtime.copies.copied_rows import rows_to_copy
from levada.runtime.copies.outcomes import BegunCopy, Copied, CopyReports, Outcome, Postponed
from levada.schema.metadata import ReadMoment
from levada.values import Watermark

if TYPE_CHECKING:
    from levada.destinations.groups import GroupWriter
    from levada.postgres.slots import ExportedSnapshot
    from levada.runtime.copies.source_table import SourceTable
    from levada.runtime.copies.table_copy import TableCopy
    from levada.schema import TableTarget
    from levada.values import TableId

_log = logging.getLogger(__name__)

_FEWEST: Final = 8
"""The tables that are read in any case. On a loaded machine the description of a group takes most of the time, and one
by one they would cost the machine several times as much.
"""
_MOST_BYTES: Final = 32 << 20
"""The memory of the rows of a group in bytes, after which it takes no further table."""
_TABLE_BYTES: Final = 8 << 20
"""The most memory of the rows of one table in bytes. Those of 1 MiB at the source may be compressed there."""


@dataclass(frozen=True, slots=True)
class SmallTable:
    """A copy that has begun, and its table in the snapshot."""

    begun: BegunCopy
    read: SourceTable
    target: TableTarget

    @property
    def id(self) -> TableId:
        """The OID of the table."""
        return self.begun.table

    @property
    def held(self) -> HeldTable:
        """The table for its locks."""
        return HeldTable(self.read.published, self.read.description, self.read.schema)


class SmallTables:
    """The tables of one group. `read` is called in the snapshot, and `write` after it."""

    def __init__(
        self, copier: TableCopy, writer: GroupWriter, snapshot: ExportedSnapshot, reports: CopyReports
    ) -> None:
        self._copier = copier
        self._writer = writer
        self._snapshot = snapshot
        self._reports = reports
        self._rows: dict[TableId, ReadRows] = {}
        self._tables: dict[TableId, SmallTable] = {}
        self._moment = ReadMoment(snapshot.lsn, snapshot.began or datetime.now(UTC))

    def read(self, tables: Sequence[tuple[BegunCopy, SourceTable]], ends_at: float, wait_s: float) -> _Ends:
        """Read the rows until the monotonic time ``ends_at``. Return the outcomes of the tables that are left out.

        ``wait_s`` is the longest wait for a lock, in seconds.
        """
        config = self._copier.config_ref.current
        found = [SmallTable(begun, read, begun.plan.settings.target(read.schema, config)) for begun, read in tables]
        free = frozenset(self._writer.free([its.target for its in found]))
        ends: _Ends = {its.id: Postponed(alone=True) for its in found if its.id not in free}
        wanted = [its for its in found if its.id in free]
        read = self._read_held(wanted, ends_at, wait_s)
        if read is None and (others := self._without_obstacles(wanted)) is not None:
            ends |= {its.id: Postponed(alone=True) for its in wanted if its not in others}
            wanted = others
            read = self._read_held(wanted, ends_at, wait_s)
        return ends | (dict.fromkeys((its.id for its in wanted), Postponed(alone=True)) if read is None else read)

    def _read_held(self, tables: Sequence[SmallTable], ends_at: float, wait_s: float) -> _Ends | None:
        """Read the rows of tables under locks. Return None if not all can be locked."""
        locks = self._copier.config_ref.current.limits.locks
        limits = replace(locks, wait_s=min(wait_s, locks.wait_s))
        with hold_tables(self._copier.sessions, [its.held for its in tables], limits) as guard:
            try:
                changed = guard.start()
            except (Transient, NeedsOperator) as error:
                # PostgreSQL does not say which table is locked or gone.
                _log.info("a group of small tables: %s", error.message)
                return None
            ends: _Ends = dict.fromkeys(changed, Postponed(alone=True))
            left = [its for its in tables if its.id not in changed]
            ends |= self._read_all(guard, left, ends_at, wait_s)
            # While the tables are locked. The stream then has the version to which a later ALTER TABLE is compared.
            self._copier.begin_new([(its.read.schema, its.target, its.begun.plan) for its in self._tables.values()])
            return ends | self._released(guard)

    def _without_obstacles(self, tables: Sequence[SmallTable]) -> list[SmallTable] | None:
        """Return the tables without those that are locked, renamed or gone. Return None if there is none of these."""
        with self._copier.sessions.session() as connection:
            locked = {lock.root for lock in read_table_locks(connection) if lock.exclusive}
            names = read_table_names(connection, [its.id for its in tables])
        left = [its for its in tables if its.begun.name not in locked and names.get(its.id) == its.read.published.name]
        return left if len(left) < len(tables) else None

    def _read_all(self, guard: GroupGuard, tables: Sequence[SmallTable], ends_at: float, wait_s: float) -> _Ends:
        config = self._copier.config_ref.current
        reading = SnapshotReader(
            config.source, self._snapshot, wait_s, _TABLE_BYTES, config.on_unrepresentable, config.mask_keys
        )
        ends: _Ends = {}
        held = 0
        with snapshot_reader(reading) as reader:
            for its in tables:
                if guard.lost:
                    ends[its.id] = Postponed(alone=False)
                elif held > _MOST_BYTES or (len(self._rows) >= _FEWEST and time.monotonic() >= ends_at):
                    ends[its.id] = Postponed(alone=False, made=len(self._rows))
                elif its.begun.cancelled.is_set():
                    ends[its.id] = _cancelled(its)
                else:
                    rows = self._read_one(reader, guard, its)
                    if isinstance(rows, ReadRows):
                        self._rows[its.id], self._tables[its.id] = rows, its
                        self._reports.started(its.id, rows)
                        held += rows.bytes
                    else:
                        ends[its.id] = rows
        return ends

    def _read_one(self, reader: SnapshotReader, guard: GroupGuard, its: SmallTable) -> ReadRows | Outcome:
        try:
            rows = reader.read(rows_to_copy(its.read.published, its.begun.plan.settings), its.read.schema)
        except LevadaError as error:
            if guard.lost:
                # The guard has ended the session.
                return Postponed(alone=False)
            # By itself it sees its present state, or says what is wrong with it.
            return Postponed(alone=True) if isinstance(error, Transient) else error
        return Postponed(alone=True) if rows is None else rows

    def _released(self, guard: GroupGuard) -> _Ends:
        ends: _Ends = {}
        for table, error in guard.release(list(self._rows)).items():
            if guard.gave_way is not None:
                ends[table] = error if table == guard.gave_way else Postponed(alone=False)
            else:
                ends[table] = Postponed(alone=True)
            del self._rows[table]
        return ends

    def write(self) -> _Ends:
        """Write what was read. Return the outcomes."""
        ends: _Ends = {}
        for its in list(self._tables.values()):
            if its.id in self._rows and its.begun.cancelled.is_set():
                ends[its.id] = _cancelled(its)
                del self._rows[its.id]
        tables = [its for its in self._tables.values() if its.id in self._rows]
        if not tables:
            return ends
        mark = Watermark(self._copier.config_ref.current.name, self._copier.epoch, self._snapshot.lsn)
        written: frozenset[TableId] = frozenset()
        try:
            written = frozenset(self._writer.write([self._new(its) for its in tables], mark))
        except LevadaError as error:
            if isinstance(error, Permanent):
                raise
            _log.info("%d small tables are copied one by one: %s", len(tables), error.message)
        with self._copier.store.together():
            for its in tables:
                if its.id in written:
                    self._copier.marks.complete(its.id)
        for its in tables:
            copied = Copied(its.read.schema, self._snapshot.lsn, its.read.description.storage)
            ends[its.id] = copied if its.id in written else Postponed(alone=True)
        return ends

    def _new(self, its: SmallTable) -> NewTable:
        return NewTable(its.target, stored_rows(self._rows[its.id], its.target, self._moment))


def _cancelled(its: SmallTable) -> Transient:
    return Transient("copy_cancelled", f"the copy of {its.begun.name} was cancelled")


_Ends = dict["TableId", Outcome]
