"""The poller of all tables' storage at the source, which finds tables that were rewritten without streamed changes.

`levada.runtime.tables.storage_journal` evaluates the results.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from levada.errors import LevadaError
from levada.postgres.append_publication import read_state
from levada.postgres.catalog import describe_without_waiting
from levada.postgres.generated_columns import PUBLISHES_GENERATED, as_streamed, streamed_columns
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.storage import StorageSnapshot, read_storage
from levada.runtime.stages.messages import SegmentStaged, StorageRead
from levada.runtime.stages.stage import Stage, StageParts
from levada.runtime.tables.append_record import publication_names
from levada.runtime.tables.silent_columns import Columns, Unmarked, columns_of
from levada.runtime.verifications.messages import CatalogChanged
from levada.threads import MarkedPool
from levada.values import TableId

if TYPE_CHECKING:
    import psycopg

    from levada.capture.column_marks import ColumnMarks
    from levada.postgres.description import TableDescription

_log = logging.getLogger(__name__)

_POLL_S: Final = 10.0
_TABLE_S: Final = 0.04
"""Seconds by table between two polls. A poll takes about 40 µs of the source's CPU for a table: 0.1 % of one core."""


def poll_interval_s(tables: int) -> float:
    """Return the seconds between two polls of this number of tables."""
    return max(_POLL_S, tables * _TABLE_S)


class StoragePoller(Stage):
    """Reads the storage of all tables from the catalog every 10 seconds and after `soon`, in a thread of its own.

    The interval is longer with more than 250 tables. ``marks`` writes the marks of tables whose columns the stream does
    not show.
    """

    def __init__(self, parts: StageParts, marks: ColumnMarks) -> None:
        super().__init__(parts)
        self._next = 0.0
        self._marks = marks
        self._wanted: frozenset[TableId] = frozenset()
        self._refused: frozenset[TableId] = frozenset()
        """The tables whose last mark failed. They wait for the next poll that is due."""
        self._examined: Mapping[TableId, int | None] = {}
        """The partitions that the next poll examines, see `read_storage`."""
        self._soon = threading.Event()
        self._polling = False
        self._pool = MarkedPool(1, "levada-rewrites")
        parts.inbox.on(StorageRead, self._ended)
        parts.inbox.on(SegmentStaged, self._segment_staged)
        parts.inbox.on(CatalogChanged, lambda _: self.soon())

    def soon(self) -> None:
        """Poll as soon as no poll is under way. From any thread."""
        self._soon.set()

    def start(self, now: float) -> None:
        """Start a poll if one is due, then note what the next one shall read. ``now`` is in seconds, monotonic."""
        self._poll(now)
        storage = self._registry.storage
        storage.evaluate_snapshots(self._registry.tables.values(), self._registry.staged_lsn)
        self._mark(storage.columns.take_wanted())
        if examined := storage.take_examined():
            self._examined = {**self._examined, **examined}
            self.soon()

    def _poll(self, now: float) -> None:
        if self._polling or (now < self._next and not self._soon.is_set()):
            return
        self._soon.clear()
        tables = list(self._registry.tables)
        self._polling, self._next = True, now + poll_interval_s(len(tables))
        wanted, self._wanted = self._wanted, frozenset()
        examined, self._examined = self._examined, {}
        self._pool.submit(self._run, tables, wanted, examined)

    def _mark(self, tables: frozenset[TableId]) -> None:
        """Write a mark for each table before the next poll, which comes soon unless the last marks of all failed."""
        self._wanted |= tables
        if tables - self._refused:
            self.soon()

    def _segment_staged(self, report: SegmentStaged) -> None:
        if report.manifest.truncates:
            # A TRUNCATE gives every partition a new file. Read the new files before a rewrite changes them.
            self.soon()

    def _ended(self, report: StorageRead) -> None:
        self._polling, storage, tables = False, self._registry.storage, self._registry.tables
        for table in report.unmarked.keys() & tables.keys():
            storage.columns.refused(tables[table], report.unmarked[table])
        if report.snapshot is not None:
            storage.add_examined(report.snapshot, tables)
            storage.add_snapshot(report.snapshot, report.marked)
        else:
            # In the next poll that is due.
            self._examined = {**self._examined, **storage.still_examined}

    def close(self) -> None:
        """Wait for the poll that is under way."""
        self._pool.shutdown(cancel_futures=True)

    def _run(
        self, tables: list[TableId], wanted: frozenset[TableId], examined: Mapping[TableId, int | None]
    ) -> None:  # in a pool
        try:
            with SESSIONS.session(self._config_ref.current.source, "rewrites") as connection:
                marked, unmarked = self._write_marks(connection, wanted)
                self._refused = frozenset(unmarked)
                snapshot = self._with_streamed(connection, read_storage(connection, tables, examined))
                self._inbox.put(StorageRead(snapshot, marked, unmarked))
        except BaseException as error:
            _log.warning("the check for rewritten tables failed: %s", error)
            self._inbox.put(StorageRead(None))

    def _write_marks(
        self, connection: psycopg.Connection[Any], wanted: frozenset[TableId]
    ) -> tuple[dict[TableId, Columns], dict[TableId, Unmarked]]:
        marked: dict[TableId, Columns] = {}
        unmarked: dict[TableId, Unmarked] = {}
        for table in sorted(wanted):
            try:
                description = self._marks.write(connection, table)
            except LevadaError as error:
                unmarked[table] = Unmarked(error) if error.retried else self._unmarked(connection, table, error)
            else:
                if description is not None:
                    marked[table] = columns_of(self._streamed(connection, description).columns)
        return marked, unmarked

    def _with_streamed(self, connection: psycopg.Connection[Any], snapshot: StorageSnapshot) -> StorageSnapshot:
        """Return the snapshot with the generated columns that are streamed, which few tables have."""
        tables = [table for table, storage in snapshot.tables.items() if storage.generated]
        if not tables or connection.info.server_version < PUBLISHES_GENERATED:
            return snapshot
        names = publication_names(self._config_ref.current, self._store)
        members = read_state(connection, names, tables).members
        listed = {table: members[table].columns for table in tables if table in members}
        return replace(snapshot, streamed=streamed_columns(connection, names.main, listed))

    def _streamed(self, connection: psycopg.Connection[Any], description: TableDescription) -> TableDescription:
        """Return the definition with the generated columns that are streamed."""
        if not description.generated:
            return description
        names = publication_names(self._config_ref.current, self._store)
        found = read_state(connection, names, [description.id]).members.get(description.id)
        return as_streamed(connection, names.main, description, None if found is None else found.columns)

    def _unmarked(self, connection: psycopg.Connection[Any], table: TableId, error: LevadaError) -> Unmarked:
        """Return the columns of a table that the role may not lock. The catalog shows them to every role."""
        try:
            names = publication_names(self._config_ref.current, self._store)
            state = read_state(connection, names, [table])
            listed = None if table not in state.members else state.members[table].columns
            description = describe_without_waiting(connection, table)
            columns = as_streamed(connection, names.main, description, listed).columns
        except LevadaError:
            return Unmarked(error)
        published = (c for c in columns if listed is None or c.attnum in listed)
        return Unmarked(error, columns_of(columns), columns_of(published))
