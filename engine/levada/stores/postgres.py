"""State in a PostgreSQL schema, usually in the source database, whose backups then include it."""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from tenacity import Retrying, retry_if_exception, wait_exponential_jitter

from levada import codes
from levada.errors import LevadaError, NeedsOperator, Permanent, StatementRefused, Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.lock_holders import LockHolder, lock_holder, name_holder
from levada.postgres.read_only import is_read_only, read_only_reason
from levada.stores.cached import CachedStore
from levada.stores.connection import StoreConnection, store_error
from levada.stores.migrations import MIGRATIONS, migrate, use_current
from levada.stores.patience import Patience
from levada.stores.rights import read_rights
from levada.stores.storage import (
    Change,
    Document,
    DocumentKind,
    Key,
    Storage,
    Versions,
    changes,
    document_text,
    require_current,
    state_lost,
)
from levada.values import TableId

_log = logging.getLogger(__name__)

_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 3.0
_FIRST_PATIENCE_S: Final = 2.0
_STATEMENT_TIMEOUT: Final = "60s"
_SESSION: Final = """
SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false),
    set_config('synchronous_commit', CASE WHEN s = 'off' THEN 'on' ELSE s END, false)
FROM current_setting('synchronous_commit') s
"""
"""The settings of each session. What the store has accepted must survive a crash of the server, whatever a role's
default is: the slot is acknowledged after it.
"""

_NO_ROW: Final = "it is not in table epochs"
_NO_TABLE: Final = 0
_KEYS: Final = "unnest(%(kinds)s::text[], %(tables)s::oid[], %(names)s::text[])"
_SCAN: Final = "SELECT table_id, name, content FROM documents WHERE pipeline = %s AND kind = %s"
_OF_KEY: Final = "pipeline = %(pipeline)s AND (kind, table_id, name) IN (SELECT * FROM " + _KEYS + ")"
_GET: Final = "SELECT content FROM documents WHERE " + _OF_KEY
_DELETE: Final = "DELETE FROM documents WHERE " + _OF_KEY
_CLEAR: Final = "DELETE FROM documents WHERE pipeline = %(pipeline)s AND NOT (" + _OF_KEY + ")"
_LOCK: Final = "SELECT epoch FROM epochs WHERE pipeline = %(pipeline)s FOR NO KEY UPDATE"
_SELECT: Final = (
    "SELECT d.kind, d.table_id, d.name, d.content FROM documents d JOIN " + _KEYS + " AS k (kind, table_id, name)"
    " ON d.kind = k.kind AND d.table_id = k.table_id AND k.name IN ('', d.name) WHERE d.pipeline = %(pipeline)s"
)
_PUT: Final = (
    "INSERT INTO documents (pipeline, kind, table_id, name, content)"
    " SELECT %(pipeline)s, kind, table_id, name, content::json"
    " FROM unnest(%(kinds)s::text[], %(tables)s::oid[], %(names)s::text[], %(contents)s::text[])"
    " AS new (kind, table_id, name, content)"
    " ON CONFLICT (pipeline, kind, table_id, name) DO UPDATE SET content = excluded.content, updated_at = now()"
)

_T = TypeVar("_T")
_Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class StoreWaits:
    """The longest waits, in seconds: for a lock, and for a server that has answered before.

    The second one is about the duration of a maintenance window, and shorter than ``health.progressDeadlineSeconds``.
    """

    lock_s: float = 10.0
    server_s: float = 600.0


class PostgresStorage(Storage):
    """One pipeline's rows in a schema's tables, over one connection that is opened again when it is lost.

    A statement whose connection was lost runs again, so each method has the same effect if it runs twice. Raise the
    last Transient after two seconds, or after ten minutes if the server has answered before and the pipeline does not
    stop. Raise NeedsOperator for errors that a retry cannot resolve. ``migrations`` are those of this release.
    """

    retries = True

    def __init__(
        self,
        connection: PostgresConnection,
        pipeline: str,
        schema: str,
        *,
        waits: StoreWaits | None = None,
        migrations: Sequence[LiteralString] = MIGRATIONS,
    ) -> None:
        self._source = connection
        self._pipeline = pipeline
        self._schema = schema
        self._waits = waits or StoreWaits()
        self._migrations = migrations
        self._connection: _Connection | None = None
        self._patience = Patience(_FIRST_PATIENCE_S, self._waits.server_s)
        self._closed = False

    def stop_waiting(self) -> None:
        self._patience.stop_waiting()

    # Connections

    def _run(self, work: Callable[[_Connection], _T]) -> _T:
        """Run ``work`` in a transaction, again if the connection is lost meanwhile."""
        if self._closed:
            raise Permanent("store_closed", f"the store of pipeline {self._pipeline} is closed")
        if self._patience.over and self.last_error is not None:
            # Another attempt could take as long as a connection to a server that does not answer.
            raise self.last_error
        retrying = Retrying(
            stop=self._patience.gives_up,
            wait=wait_exponential_jitter(multiplier=_FIRST_DELAY_S, max=_LONGEST_DELAY_S),
            sleep=self._patience.pause,
            retry=retry_if_exception(self._is_retryable),
            reraise=True,
        )
        done: _T = retrying(self.attempt, work)
        return done

    def attempt(self, work: Callable[[_Connection], _T]) -> _T:
        """Run ``work`` in one transaction, without another attempt."""
        doing = f"reading or writing the state of pipeline {self._pipeline} in {self._place}"
        try:
            with self._lost_tables(), _store_errors(doing, self._schema, self._source):
                connection = self._connected()
                with connection.transaction():
                    done = work(connection)
            if self.last_error is not None:
                _log.info("the store answers again")
            self.last_error = None
            return done
        except LevadaError as error:
            if self._is_retryable(error):
                # Once an outage. The status has the newest error.
                level = logging.WARNING if self.last_error is None else logging.DEBUG
                _log.log(level, "%s [%s]", error.message, error.code)
                self.last_error = error
                self._disconnect()
            raise

    def _is_retryable(self, error: BaseException) -> bool:
        # Each login reads the password again, and a person may restore a right.
        passes = self._patience.reached and isinstance(error, LevadaError) and error.passes
        return not self._closed and (passes or isinstance(error, Transient))

    def _connected(self) -> _Connection:
        if self._connection is None or self._connection.closed:
            connection = self._source.connect(application=f"store:{self._pipeline}")
            try:
                self._prepare(connection)
            except BaseException:
                # The next call must raise the same error, and must not use a schema that was never migrated.
                connection.close()
                raise
            self._connection, self._patience.reached = connection, True
        return self._connection

    def _prepare(self, connection: _Connection) -> None:
        connection.execute(_SESSION, [f"{self._waits.lock_s * 1000:.0f}ms", _STATEMENT_TIMEOUT])
        # Under a stricter default of the role or the database, a read after a wait for the lock would be older than it.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        if self._patience.reached:
            # Another hand has dropped the tables. With new ones in their place, this process would go on without state.
            if not use_current(connection, self._schema, self._migrations):
                raise self._lost("it has not all tables of a store")
            return
        migrate(connection, self._schema, self._migrations)
        # A server that is read-only can still be read.
        if not connection.execute("SELECT FROM epochs WHERE pipeline = %s", [self._pipeline]).fetchall():
            connection.execute("INSERT INTO epochs (pipeline) VALUES (%s) ON CONFLICT DO NOTHING", [self._pipeline])

    @property
    def _place(self) -> str:
        return f"schema {self._schema} at {self._source.where}"

    def _lost(self, why: str) -> StatementRefused:
        return state_lost(self._pipeline, self._place, why)

    @contextmanager
    def _lost_tables(self) -> Iterator[None]:
        """Raise `state_lost` for a table of the store that does not exist any more.

        Before the store was reached, it is another table: one that an application's event trigger looks for.
        """
        try:
            yield
        except StatementRefused as error:
            if error.code != codes.TABLE_MISSING or not self._patience.reached:
                raise
            raise self._lost(error.message.rpartition(": ")[2]) from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._closed = True
        self._disconnect()

    # Documents

    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        def work(c: _Connection) -> int:
            row = c.execute(
                "UPDATE epochs SET epoch = epoch + 1 WHERE pipeline = %s RETURNING epoch", [self._pipeline]
            ).fetchone()
            if row is None:
                raise self._lost(_NO_ROW)
            check(self._document(c, key))
            return int(row[0])

        return self._run(work)

    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        rows = self._run(lambda c: c.execute(_SCAN, [self._pipeline, kind.name]).fetchall())
        return {Key(kind, _table(table), name): content for table, name, content in rows}

    def get(self, key: Key[Any]) -> Document | None:
        return self._run(lambda c: self._document(c, key))

    def _document(self, c: _Connection, key: Key[Any]) -> Document | None:
        row = c.execute(_GET, self._columns([key])).fetchone()
        return None if row is None else row[0]

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        done: dict[Key[Any], Versions] = {}

        def work(c: _Connection) -> None:
            found = self._locked(c, epoch, keys)
            # After a lost connection: these are the documents that the first attempt has committed.
            if not done or found != {key: after for key, (_, after) in done.items() if after is not None}:
                new = changes(keys, found, change)
                self._write(c, new)
                # An earlier attempt may have deleted documents that this one does not find any more.
                done.update(new)

        self._run(work)
        return done

    def clear(self, epoch: int, kept: Key[Any]) -> None:
        def work(c: _Connection) -> None:
            self._locked(c, epoch, ())
            c.execute(_CLEAR, self._columns([kept]))

        self._run(work)

    def _locked(self, c: _Connection, epoch: int | None, keys: Collection[Key[Any]]) -> dict[Key[Any], Document]:
        """Lock the pipeline, require the epoch and return the documents that ``keys`` select, in one round trip.

        The lock makes another driver's `next_epoch` wait until this transaction ends.
        """
        # A client cursor, because an extended query has one statement only. Each statement has a snapshot of its own,
        # so the second one sees what was committed while the first one waited for the lock.
        cursor = psycopg.ClientCursor(c)
        cursor.execute(_LOCK + ";" + _SELECT if keys else _LOCK, self._columns(keys))
        row = cursor.fetchone()
        if row is None:
            raise self._lost(_NO_ROW)
        require_current(epoch, row[0], self._pipeline, self._place)
        if not keys:
            return {}
        cursor.nextset()
        kinds = {key.kind.name: key.kind for key in keys}
        return {Key(kinds[kind], _table(table), name): content for kind, table, name, content in cursor}

    def _write(self, c: _Connection, new: Mapping[Key[Any], Versions]) -> None:
        deleted = [key for key, (before, after) in new.items() if after is None and before is not None]
        put = {key: after for key, (before, after) in new.items() if after is not None and after != before}
        if deleted:
            c.execute(_DELETE, self._columns(deleted))
        if put:
            c.execute(_PUT, {**self._columns(put), "contents": list(map(document_text, put.values()))})

    def _columns(self, keys: Collection[Key[Any]]) -> dict[str, Any]:
        return {
            "pipeline": self._pipeline,
            "kinds": [key.kind.name for key in keys],
            "tables": [int(key.table or _NO_TABLE) for key in keys],
            "names": [key.name for key in keys],
        }


class PostgresStore(CachedStore):
    """A store in a schema of a PostgreSQL database. Several pipelines may share the schema."""

    def __init__(
        self,
        connection: PostgresConnection,
        pipeline: str,
        schema: str = "levada",
        *,
        waits: StoreWaits | None = None,
    ) -> None:
        super().__init__(pipeline, PostgresStorage(connection, pipeline, schema, waits=waits))


def _table(oid: int) -> TableId | None:
    return None if oid == _NO_TABLE else TableId(oid)


def _of_server(error: LevadaError, connection: PostgresConnection) -> LevadaError:
    return store_error(error) if isinstance(connection, StoreConnection) else error


def _missing_grants(connection: PostgresConnection, schema: str) -> str:
    """Return the statements that give the role the privileges that it lacks, empty if they cannot be read."""
    try:
        with connection.connect(application="store") as conn:
            return read_rights(conn, schema).grants
    except LevadaError as error:
        _log.debug("the privileges of the store's role cannot be read: %s", error)
        return ""


def _read_only_reason(connection: PostgresConnection) -> tuple[str, str]:
    """Return why the server refuses to write, and how that ends. Both are empty if that cannot be read."""
    try:
        with connection.connect(application="store") as conn:
            return read_only_reason(conn)
    except LevadaError as error:
        _log.debug("the reason why the store is read-only cannot be read: %s", error)
        return "", ""


def _lock_holder(connection: PostgresConnection, schema: str) -> LockHolder | None:
    """Return the session that holds a lock on a table of the store. None if it has ended, or cannot be read."""
    try:
        with connection.connect(application="store") as conn, source_errors("looking for the holders of locks"):
            return lock_holder(conn, schema=schema)
    except LevadaError as error:
        _log.debug("the session that has the store's lock cannot be read: %s", error)
        return None


@contextmanager
def _store_errors(doing: str, schema: str, connection: PostgresConnection) -> Iterator[None]:
    """Raise psycopg's errors from the block as Levada's, with hints about a store."""
    try:
        with source_errors(doing, connection.names):
            yield
    except Transient as error:
        if is_read_only(error):
            reason, hint = _read_only_reason(connection)
            message = f"{error.message}: {reason}" if reason else error.message
            raise Transient("store_read_only", message, hint=hint or error.hint) from error
        if error.code != codes.LOCK_TIMEOUT:
            raise _of_server(error, connection) from error
        locked = Transient(codes.STORE_LOCKED, error.message, hint="another session has a table of the store locked")
        name_holder(locked, _lock_holder(connection, schema), "store")
        raise locked from error
    except NeedsOperator as error:
        if error.code == codes.INSUFFICIENT_PRIVILEGE:
            hint = _missing_grants(connection, schema) or error.hint
            raise StatementRefused("store_privilege_missing", error.message, hint=hint) from error
        raise _of_server(error, connection) from error
