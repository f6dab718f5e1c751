"""The first copies of several small tables, made one after the other from one snapshot that describes all of them.

A table that is not small, or that is locked, is postponed, so that it keeps neither its neighbours nor the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from levada import codes
from levada.errors import LevadaError, Transient
from levada.postgres.table_locks import read_table_locks
from levada.runtime.copies.source_table import WantedTable

if TYPE_CHECKING:
    import threading

    from levada.copy.progress import RunningCopy
    from levada.postgres.slots import ExportedSnapshot
    from levada.runtime.copies.source_table import SourceTable
    from levada.runtime.copies.table_copy import Copied, TableCopy
    from levada.runtime.tables.copy_plan import Recreate, ReplaceInPlace
    from levada.values import Lsn, QualifiedTable, TableId

SMALL_BYTES: Final = 1 << 20
"""The largest table that shares a snapshot, in bytes at the source, with TOAST and without indexes."""

_REPORT_EVERY_S: Final = 0.5
"""Seconds from one report of ended copies to the next. The ends of one report are stored in one step."""
_LATER: Final = frozenset({codes.LOCK_TIMEOUT, codes.TABLE_CHANGED})
_WAIT_S: Final = 0.5
"""The longest wait for a lock in seconds, during which the neighbours of the locked table wait too."""


@dataclass(frozen=True, slots=True)
class BegunCopy:
    """A copy that the supervisor has begun. ``since`` is that of `TableCopy.run`.

    With ``elsewhere``, another process makes it.
    """

    table: TableId
    name: QualifiedTable
    plan: Recreate | ReplaceInPlace
    cancelled: threading.Event
    since: Lsn | None
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Postponed:
    """A copy that begins again. ``alone`` is True if it must have a snapshot of its own then.

    Otherwise there was no time for it, and ``made`` is the number of copies that were made from the snapshot.
    """

    alone: bool
    made: int = 0


class CopyReports(Protocol):
    """Receives what becomes of the copies of a group."""

    def started(self, table: TableId, rows: RunningCopy) -> None:
        """Record that the rows of a table are read from now on."""

    def ended(self, outcomes: Mapping[TableId, Copied | Postponed | BaseException]) -> None:
        """Record the ends of copies."""


class CopyGroup:
    """Copies of tables that the destination does not have yet."""

    def __init__(self, copier: TableCopy, copies: Sequence[BegunCopy], reports: CopyReports) -> None:
        self._copier = copier
        self._reports = reports
        self._waiting = {one.table: one for one in copies}
        self._ended: dict[TableId, Copied | Postponed | BaseException] = {}
        self._reported_at = time.monotonic()

    def run(self) -> None:  # in a pool
        """Make the copies, and report the ends of all of them. An error of one does not end the others."""
        try:
            self._run()
        except BaseException as error:
            for table in list(self._waiting):
                self._end(table, error)
        finally:
            self._report()

    def _run(self) -> None:
        self._postpone_locked()
        if self._waiting:
            self._make_room()
            first = next(iter(self._waiting.values()))
            with self._copier.snapshot(first.table, metadata=self._has_metadata()) as snapshot:
                self._copy_all(snapshot)

    def _postpone_locked(self) -> None:
        with self._copier.sessions.session() as connection:
            locked = {lock.root for lock in read_table_locks(connection) if lock.exclusive}
        for one in list(self._waiting.values()):
            if one.name in locked:
                self._end(one.table, Postponed(alone=True))

    def _make_room(self) -> None:
        with self._copier.store.together():
            for one in self._waiting.values():
                self._copier.make_room(one.table, one.name, one.plan)

    def _has_metadata(self) -> bool:
        return any(one.plan.settings.metadata for one in self._waiting.values())

    def _copy_all(self, snapshot: ExportedSnapshot) -> None:
        ends_at = time.monotonic() + self._copier.config_ref.current.limits.shared_snapshot_s
        wanted = [WantedTable(one.table, one.name, one.plan.settings) for one in self._waiting.values()]
        try:
            found = self._copier.source.read_all(snapshot, wanted, _WAIT_S)
        except Transient as error:
            if error.code != codes.LOCK_TIMEOUT:
                raise
            # It does not say which table is locked.
            for table in list(self._waiting):
                self._end(table, Postponed(alone=True))
            return
        made = 0
        for one in list(self._waiting.values()):
            read = found[one.table]
            if isinstance(read, LevadaError):
                self._end(one.table, read)
            elif read.published.bytes > SMALL_BYTES:
                self._end(one.table, Postponed(alone=True))
            elif not made or time.monotonic() < ends_at:
                self._end(one.table, self._copy(snapshot, one, read))
                made += 1
            else:
                self._end(one.table, Postponed(alone=False, made=made))

    def _copy(
        self, snapshot: ExportedSnapshot, one: BegunCopy, read: SourceTable
    ) -> Copied | Postponed | BaseException:
        if one.cancelled.is_set():
            return Transient("copy_cancelled", f"the copy of {one.name} was cancelled")
        try:
            return self._copier.copy_at(
                snapshot,
                one.table,
                one.name,
                one.plan,
                None,
                one.cancelled,
                lambda rows: self._reports.started(one.table, rows),
                one.since,
                read=read,
                wait_s=_WAIT_S,
            )
        except Exception as error:
            # By itself it sees its present state, or says what is wrong with it. The wait for its turn is no attempt.
            later = isinstance(error, Transient) and error.code in _LATER
            return Postponed(alone=True) if later else error

    def _end(self, table: TableId, outcome: Copied | Postponed | BaseException) -> None:
        del self._waiting[table]
        self._ended[table] = outcome
        if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._report()

    def _report(self) -> None:
        ended, self._ended = self._ended, {}
        if ended:
            self._reports.ended(ended)
        self._reported_at = time.monotonic()
