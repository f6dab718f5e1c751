"""Sessions that play steps, and what came of each step."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from tests.histories.draw import OF_ROWS
from tests.histories.history import BEGIN_HISTORY, PUBLICATION, Step, rendered
from tests.rigs.database import Database

SESSIONS = 3
_ARRAY_DEFAULT = re.compile(r"ADD COLUMN .*\[\].* DEFAULT")
_DEFAULT = re.compile(r"ADD COLUMN .* DEFAULT")
_TWIN_LOCK = "150ms"
_LOCK = "2500ms"
_ATTACHED = re.compile(r"ATTACH PARTITION (\S+)")
_KEPT_PUBLISHED = "without a replica identity out of publication"
_CHANGED = b"""
WITH RECURSIVE heirs(relid) AS (
    SELECT to_regclass(%s)::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN heirs ON heirs.relid = i.inhparent)
SELECT DISTINCT a.relid::int FROM (
    SELECT pg_partition_root(to_regclass(%s))::oid AS relid UNION SELECT relid FROM heirs) a
WHERE a.relid IS NOT NULL
"""

_NUMBERS = b"""
SELECT a.attrelid::int, a.attname, a.attnum::int FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname LIKE %s AND a.attnum > 0 AND NOT a.attisdropped
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The SQLSTATE of a step, empty if it succeeded, with the message and the time that it took."""

    state: str
    message: str
    seconds: float


@dataclass
class Player:
    """Plays the steps of one history in a database.

    Sessions of one history may wait for each other: a step that waits fails soon on the twin, and is given as long on
    the other database only if it failed there.
    """

    db: Database
    schema: str
    publication: str = ""
    """That of the pipeline. The twin has none, and there a statement on it does nothing."""
    oids: dict[int, set[str]] = field(default_factory=dict)
    """The kinds of the statements that changed a table, by the table's OID at that time."""
    numbers: dict[int, dict[str, set[int]]] = field(default_factory=dict)
    """The attnums that had each column's name, by the table's OID."""
    kept_published: bool = False
    """True once the event trigger could not take a table out of the publication, which another session had locked."""
    _trouble: str = ""
    _open: dict[int, psycopg.Connection[Any]] = field(default_factory=dict)

    def connection(self, session: int) -> psycopg.Connection[Any]:
        if session not in self._open:
            self._open[session] = self.db.connect(application_name=f"history {self.schema} {session}")
            self._open[session].add_notice_handler(self._notice)
            self._open[session].execute(f"SET lock_timeout = '{_TWIN_LOCK}'".encode())
        return self._open[session]

    def play(self, step: Step, expected: Outcome | None = None) -> Outcome:
        """Run a step. ``expected`` is what came of it on the twin."""
        if PUBLICATION in step.sql and not self.publication:
            return Outcome("", "", 0.0)
        connection = self.connection(step.session)
        if expected is not None and not expected.state:
            self._aside(connection, f"SET lock_timeout = '{_LOCK}'".encode())
        self._remember(connection, step)
        text = rendered(step.sql, self.schema, self.publication)
        sql, _, rows = text.partition("\n") if step.kind == "copy" else (text, "", "")  # fmt: skip
        begun = time.monotonic()
        try:
            if step.kind == "copy":
                with connection.cursor().copy(sql.encode()) as copy:
                    copy.write(rows)
            else:
                connection.execute(sql.encode())
        except psycopg.Error as error:
            return Outcome(error.sqlstate or "?", f"{error} {self._trouble}", time.monotonic() - begun)
        took = time.monotonic() - begun
        if self.publication and step.kind not in OF_ROWS:
            for oid, name, number in self._aside(connection, _NUMBERS, f"%{self.schema}%"):
                self.numbers.setdefault(oid, {}).setdefault(name, set()).add(number)
        return Outcome("", "", took)

    def tried(self, step: Step, *, together: bool) -> Outcome:
        """Run a step. If it fails, let its transaction be as if it had not been there."""
        if not together:
            return self.play(step)
        connection = self.connection(step.session)
        connection.execute("SAVEPOINT tried")
        outcome = self.play(step)
        if outcome.state:
            connection.execute("ROLLBACK TO SAVEPOINT tried")
        connection.execute("RELEASE SAVEPOINT tried")
        return outcome

    def has_rows(self, session: int, table: str) -> bool:
        """Return True if a session finds rows in a table, False also if another session has locked it."""
        query = f"SELECT EXISTS (SELECT FROM {rendered(table, self.schema)})"
        return self._aside(self.connection(session), query.encode()) == [(True,)]

    def end_phase(self) -> None:
        """Roll back whatever is open, so that no session waits for another one of the next phase."""
        for connection in self._open.values():
            with suppress(psycopg.Error):
                connection.rollback()
        with self.db.connect() as connection:
            for (gid,) in connection.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE %s",
                [f"{self.schema}%"],
            ).fetchall():
                connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def kinds(self, oid: int) -> set[str]:
        """Return the kinds of the statements that changed a table or all of them."""
        return self.oids.get(oid, set()) | self.oids.get(0, set())

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        self.kept_published |= _KEPT_PUBLISHED in (notice.message_primary or "")

    def _remember(self, connection: psycopg.Connection[Any], step: Step) -> None:
        """Note what is about to change a table, those that inherit from it, and its root if it is a partition."""
        if step.kind == BEGIN_HISTORY:
            return  # its types would explain whatever types can cause
        kinds = {step.kind} | ({"domain"} if ".positive" in step.sql else set())
        kinds |= {"array default"} if _ARRAY_DEFAULT.search(step.sql) else set()
        kinds |= {"column default"} if _DEFAULT.search(step.sql) else set()
        if not step.table:
            self.oids.setdefault(0, set()).update(kinds)
            return
        for table in (step.table, *_ATTACHED.findall(step.sql)):
            name = rendered(table, self.schema)
            for (oid,) in self._aside(connection, _CHANGED, name, name):
                self.oids.setdefault(oid, set()).update(kinds)

    def _aside(self, connection: psycopg.Connection[Any], sql: bytes, *parameters: str) -> list[tuple[Any, ...]]:
        """Run a statement that is no part of the history, in the transaction of the session."""
        try:
            cursor = connection.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if not isinstance(error, psycopg.errors.InFailedSqlTransaction):
                self._trouble = f"(after {sql!r}: {error})"
            return []


@contextmanager
def playing(db: Database, schema: str, publication: str = "") -> Iterator[Player]:
    """A player whose sessions end with the block."""
    player = Player(db, schema, publication)
    try:
        yield player
    finally:
        player.close()
