"""Locks on several small tables while their rows are read, so that the copy of each shows a single state of it.

`levada.copy.guard` says why. Here one session has the locks of all, and one query compares all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.copy.guard import (
    READERS,
    LockLimits,
    end_readers,
    find_waiting,
    is_same,
    locking_statement,
    read_leaf_names,
    table_changed,
    yielded,
)
from levada.errors import LevadaError
from levada.postgres.catalog import PublishedTable
from levada.postgres.connection import clamp_application_name
from levada.postgres.description import TableDescription
from levada.postgres.failures import source_errors
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.storage import read_stored_tables
from levada.schema import ReplicatedTableSchema
from levada.threads import marked_thread
from levada.values import TableId

_POLL_S: Final = 0.25
_DOING: Final = "reading small tables"


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table in the snapshot of its copy."""

    published: PublishedTable
    description: TableDescription
    schema: ReplicatedTableSchema


class GroupGuard:
    """Holds the locks of tables until `release`, or until they block another statement for too long. Thread-safe."""

    def __init__(
        self, connection: psycopg.Connection[Any], tables: Sequence[HeldTable], limits: LockLimits, readers: str
    ) -> None:
        self._connection = connection
        self._tables = {its.description.id: its for its in tables}
        self._roots = {leaf.id: its.description.id for its in tables for leaf in its.published.leaves}
        self._limits = limits
        self._readers = readers
        self._yielded: tuple[TableId, LevadaError] | None = None
        self._lost: LevadaError | None = None
        self._stop = threading.Event()
        self._thread = marked_thread(self._watch, "levada-copy-guard")

    def start(self) -> Mapping[TableId, LevadaError]:
        """Lock the tables, and watch the lock queue from then on. Return the errors of those that have changed.

        Raise Transient ``lock_timeout`` if a lock is not granted in time, and the errors of a table that is gone.
        """
        locking = [
            locking_statement(leaf.name, its.schema) for its in self._tables.values() for leaf in its.published.leaves
        ]
        begin = f"BEGIN READ ONLY; SET LOCAL lock_timeout = '{int(self._limits.wait_s * 1000)}ms'"
        with source_errors("locking tables"):
            self._connection.execute(sql.SQL("; ").join([sql.SQL(begin), *locking]), prepare=False)
        self._thread.start()
        return self._compare(self._tables)

    @property
    def lost(self) -> bool:
        """True once the locks are no longer held."""
        return self._yielded is not None or self._lost is not None

    @property
    def gave_way(self) -> TableId | None:
        """The table for whose sake all locks were given up, because a statement waited for one of it."""
        return None if self._yielded is None else self._yielded[0]

    def release(self, tables: Collection[TableId]) -> Mapping[TableId, LevadaError]:
        """Release the locks after the last row was read. Return the errors of those of ``tables`` that have changed.

        If the locks were given up before, all have the error of the table for whose sake that was. If the session was
        lost, that is their error.
        """
        found = self._compare(tables)
        self.close()
        lost = self._lost if self._yielded is None else self._yielded[1]
        return found if lost is None else dict.fromkeys(tables, lost)

    def close(self) -> None:
        """Stop watching the lock queue, and release the locks."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        try:
            # ROLLBACK would make psycopg forget the prepared statements.
            self._connection.commit()
        except psycopg.Error:
            self._connection.close()

    def _compare(self, tables: Collection[TableId]) -> Mapping[TableId, LevadaError]:
        try:
            with source_errors("comparing tables with their copies"):
                stored = read_stored_tables(self._connection, tables)
                leaves = [int(leaf.id) for table in tables for leaf in self._tables[table].published.leaves]
                names = read_leaf_names(self._connection, leaves)
        except LevadaError as error:
            self._lost = self._lost or error
            return {}
        changed: dict[TableId, LevadaError] = {}
        of_table: dict[TableId, list[tuple[TableId, str, str]]] = {}
        for leaf, schema, name in names:
            of_table.setdefault(self._roots[TableId(leaf)], []).append((TableId(leaf), schema, name))
        for table in tables:
            its, found = self._tables[table], stored.get(table)
            before = its.description.storage
            if found is None or not is_same(its.published, its.description, found, before, of_table.get(table, [])):
                changed[table] = table_changed(its.published.name)
        return changed

    def _watch(self) -> None:  # runs in the watcher thread
        leaves = [int(leaf) for leaf in self._roots]
        while not self._stop.wait(_POLL_S):
            try:
                with source_errors("watching the locks on tables"):
                    waiting = find_waiting(self._connection, leaves, self._limits.blocked_s, self._readers)
            except LevadaError as error:
                self._lost = self._lost or error
                return
            if waiting is not None and not self._stop.is_set():
                table = self._roots[waiting.relation]
                self._yielded = (table, yielded(self._tables[table].published.name, waiting))
                end_readers(self._connection, self._readers, leaves, _DOING)
                return


@contextmanager
def hold_tables(guards: IdleReaders, tables: Sequence[HeldTable], limits: LockLimits) -> Iterator[GroupGuard]:
    """Yield what holds ACCESS SHARE locks on every relation with rows of the tables, from its start on.

    ``guards`` are sessions for such locks.
    """
    readers = clamp_application_name(guards.server.application_name, READERS)
    with guards.held() as conn:
        guard = GroupGuard(conn, tables, limits, readers)
        try:
            yield guard
        finally:
            guard.close()
