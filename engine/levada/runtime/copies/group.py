"""The first copies of several small tables from one snapshot that describes all of them.

A table that is not small, or that is locked, is postponed, so that it keeps neither its neighbours nor the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from levada import codes
from levada.errors import LevadaError, StatementRefused, Transient
from levada.postgres.table_locks import read_table_locks
from levada.runtime.copies.outcomes import BegunCopy, CopyReports, Outcome, Postponed
from levada.runtime.copies.small_tables import SmallTables
from levada.runtime.copies.source_table import WantedTable

if TYPE_CHECKING:
    from levada.postgres.slots import ExportedSnapshot
    from levada.runtime.copies.source_table import SourceTable
    from levada.runtime.copies.table_copy import TableCopy
    from levada.values import TableId

SMALL_BYTES: Final = 1 << 20
"""The largest table that shares a snapshot, in bytes at the source, with TOAST and without indexes."""

_REPORT_EVERY_S: Final = 0.5
"""Seconds from one report of ended copies to the next. The ends of one report are stored in one step."""
_LATER: Final = frozenset({codes.LOCK_TIMEOUT, codes.TABLE_CHANGED})
_WAIT_S: Final = 0.5
"""The longest wait for a lock in seconds, during which the neighbours of the locked table wait too."""


class CopyGroup:
    """Copies of tables that the destination does not have yet."""

    def __init__(self, copier: TableCopy, copies: Sequence[BegunCopy], reports: CopyReports) -> None:
        self._copier = copier
        self._reports = reports
        self._waiting = {one.table: one for one in copies}
        self._ended: dict[TableId, Outcome] = {}
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
            writer, together = self._copier.destination.group_writer(), None
            cancelled = [one.cancelled for one in self._waiting.values()]
            with self._copier.snapshot(first.table, first.name, cancelled, metadata=self._has_metadata()) as snapshot:
                ends_at = time.monotonic() + self._copier.config_ref.current.limits.shared_snapshot_s
                small = self._describe(snapshot)
                if writer is None:
                    self._copy_all(snapshot, small, ends_at)
                elif small:
                    together = SmallTables(self._copier, writer, snapshot, self._reports)
                    self._end_all(together.read(small, ends_at, _WAIT_S))
            if together is not None:
                # The source may remove dead rows again meanwhile.
                self._end_all(together.write())

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

    def _describe(self, snapshot: ExportedSnapshot) -> list[tuple[BegunCopy, SourceTable]]:
        """Return the small tables in the snapshot."""
        wanted = [WantedTable(one.table, one.name, one.plan.settings) for one in self._waiting.values()]
        try:
            found = self._copier.source.read_all(snapshot, wanted, _WAIT_S)
        except (Transient, StatementRefused) as error:
            if isinstance(error, Transient) and error.code != codes.LOCK_TIMEOUT:
                raise
            # It does not say which table is locked, or has a name that the server cannot convert to UTF-8.
            self._end_all(dict.fromkeys(self._waiting, Postponed(alone=True)))
            return []
        small = []
        for one in list(self._waiting.values()):
            read = found[one.table]
            if isinstance(read, LevadaError):
                self._end(one.table, read)
            elif read.published.bytes > SMALL_BYTES:
                self._end(one.table, Postponed(alone=True))
            else:
                small.append((one, read))
        return small

    def _copy_all(
        self, snapshot: ExportedSnapshot, small: Sequence[tuple[BegunCopy, SourceTable]], ends_at: float
    ) -> None:
        """Copy the tables one after the other."""
        made = 0
        for one, read in small:
            if not made or time.monotonic() < ends_at:
                self._end(one.table, self._copy(snapshot, one, read))
                made += 1
            else:
                self._end(one.table, Postponed(alone=False, made=made))

    def _copy(self, snapshot: ExportedSnapshot, one: BegunCopy, read: SourceTable) -> Outcome:
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
        except BaseException as error:
            # By itself it sees its present state, or says what is wrong with it. The wait for its turn is no attempt.
            later = isinstance(error, Transient) and error.code in _LATER
            return Postponed(alone=True) if later else error

    def _end_all(self, outcomes: Mapping[TableId, Outcome]) -> None:
        for table, outcome in outcomes.items():
            self._end(table, outcome)

    def _end(self, table: TableId, outcome: Outcome) -> None:
        del self._waiting[table]
        self._ended[table] = outcome
        if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._report()

    def _report(self) -> None:
        ended, self._ended = self._ended, {}
        if ended:
            self._reports.ended(ended)
        self._reported_at = time.monotonic()
