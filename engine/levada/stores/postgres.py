"""State in a PostgreSQL schema, usually in the source database, whose backups then include it."""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from levada.errors import LevadaError, LoginFailed, NeedsOperator, Permanent, StaleEpoch, Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.schema import ReplicatedTableSchema
from levada.stores.cached import CachedStore
from levada.stores.interface import CopyOrder, OwnerRecord, TableAction, TableControls
from levada.stores.migrations import migrate
from levada.stores.phases import TableReplicationPhase, phase_from_json, phase_to_json
from levada.stores.storage import HISTORY, Storage, require_owner, table_worker
from levada.values import Lsn, PipelineOwner, SnapshotId, TableId

_log = logging.getLogger(__name__)

_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 3.0
_FIRST_PATIENCE_S: Final = 2.0
_PATIENCE_S: Final = 120.0
"""Seconds to wait for a server that has answered before. It is about the duration of a restart or a password change."""

_LOCK_TIMEOUT: Final = "10s"
_STATEMENT_TIMEOUT: Final = "60s"
_LIMITS: Final = "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false)"
_OWNER: Final = "SELECT owner_uid, owner_name, slot, publication, former_names FROM pipelines WHERE name = %s"

_T = TypeVar("_T")
_Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresStorage(Storage):
    """One pipeline's rows in a schema's tables, over one connection that is opened again when it is lost.

    A statement whose connection was lost runs again, so each method has the same effect if it runs twice. Raise the
    last Transient after two seconds, or after two minutes if the server has answered before. Raise NeedsOperator for
    errors that a retry cannot resolve.
    """

    def __init__(self, connection: PostgresConnection, pipeline: str, schema: str) -> None:
        self._source = connection
        self._pipeline = pipeline
        self._schema = schema
        self._connection: _Connection | None = None
        self._reached = False
        self._closed = False

    # Connections

    def _run(self, work: Callable[[_Connection], _T]) -> _T:
        """Run ``work`` in a transaction, again if the connection is lost meanwhile."""
        if self._closed:
            raise Permanent("store_closed", f"the store of pipeline {self._pipeline} is closed")
        retrying = Retrying(
            stop=stop_after_delay(_PATIENCE_S if self._reached else _FIRST_PATIENCE_S),
            wait=wait_exponential_jitter(multiplier=_FIRST_DELAY_S, max=_LONGEST_DELAY_S),
            retry=retry_if_exception(self._is_retryable),
            reraise=True,
        )
        done: _T = retrying(self._attempt, work)
        return done

    def _attempt(self, work: Callable[[_Connection], _T]) -> _T:
        doing = f"writing state of pipeline {self._pipeline} to schema {self._schema} at {self._source.where}"
        try:
            with _store_errors(doing, self._schema):
                connection = self._connected()
                with connection.transaction():
                    done = work(connection)
            self.last_error = None
            return done
        except LevadaError as error:
            if self._is_retryable(error):
                self.last_error = error
                _log.warning("%s", error.message)
                self._disconnect()
            raise

    def _is_retryable(self, error: BaseException) -> bool:
        # Each login reads the password anew.
        login = self._reached and isinstance(error, LoginFailed)
        return not self._closed and (login or isinstance(error, Transient))

    def _connected(self) -> _Connection:
        if self._connection is None or self._connection.closed:
            connection = self._source.connect(application=f"store:{self._pipeline}")
            try:
                self._prepare(connection)
            except BaseException:
                # The next call must raise the same error, and must not use a schema that was never migrated.
                connection.close()
                raise
            self._connection, self._reached = connection, True
        return self._connection

    def _prepare(self, connection: _Connection) -> None:
        connection.execute(_LIMITS, [_LOCK_TIMEOUT, _STATEMENT_TIMEOUT])
        migrate(connection, self._schema)
        connection.execute(
            "INSERT INTO pipelines (name) SELECT %(p)s WHERE NOT EXISTS (SELECT FROM pipelines WHERE name = %(p)s)"
            " ON CONFLICT DO NOTHING",
            {"p": self._pipeline},
        )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._closed = True
        self._disconnect()

    # Epochs

    def _write(self, epoch: int, work: Callable[[_Connection], _T]) -> _T:
        def fenced(connection: _Connection) -> _T:
            # The row's lock makes another driver's next_epoch wait until this write is committed.
            current = _one(
                connection, "SELECT epoch FROM pipelines WHERE name = %s FOR NO KEY UPDATE", [self._pipeline]
            )
            if current > epoch:
                raise StaleEpoch(epoch, current)
            return work(connection)

        return self._run(fenced)

    def next_epoch(self, owner: PipelineOwner | None = None) -> int:
        raising = "UPDATE pipelines SET epoch = epoch + 1 WHERE name = %s RETURNING epoch"

        def work(c: _Connection) -> int:
            require_owner(self._locked_owner(c), owner)
            return int(_one(c, raising, [self._pipeline]))

        return self._run(work)

    def require_epoch(self, epoch: int) -> None:
        self._write(epoch, lambda c: None)

    # The owner

    def load_owner(self) -> OwnerRecord | None:
        return self._run(lambda c: _owner_record(c.execute(_OWNER, [self._pipeline]).fetchone()))

    def change_owner(self, expected: OwnerRecord | None, now: OwnerRecord | None) -> bool:
        def change(c: _Connection) -> bool:
            if self._locked_owner(c) not in (expected, now):
                return False
            owner = None if now is None else now.owner
            c.execute(
                "UPDATE pipelines SET owner_uid = %s, owner_name = %s, slot = %s, publication = %s, former_names = %s"
                " WHERE name = %s",
                [
                    *((None, None) if owner is None else (owner.uid, owner.name)),
                    *((None, None, []) if now is None else (now.slot, now.publication, list(now.former))),
                    self._pipeline,
                ],
            )
            return True

        return self._run(change)

    def _locked_owner(self, c: _Connection) -> OwnerRecord | None:
        return _owner_record(c.execute(_OWNER + " FOR NO KEY UPDATE", [self._pipeline]).fetchone())

    # Requests

    def put_action(self, table: TableId, action: TableAction) -> None:
        self._run(
            lambda c: c.execute(
                "INSERT INTO table_actions (pipeline, table_id, action) VALUES (%s, %s, %s)"
                " ON CONFLICT (pipeline, table_id) DO UPDATE SET action = excluded.action, requested_at = now()",
                [self._pipeline, int(table), action.value],
            )
        )

    def take_actions(self, epoch: int) -> dict[TableId, TableAction]:
        # Kept across attempts: the first may have been committed before its connection was lost.
        taken: dict[TableId, TableAction] = {}

        def take(c: _Connection) -> None:
            taking = "DELETE FROM table_actions WHERE pipeline = %s RETURNING table_id, action"
            taken.update({TableId(table): TableAction(action) for table, action in c.execute(taking, [self._pipeline])})

        self._write(epoch, take)
        return taken

    # Phases

    def load_phases(self) -> dict[TableId, TableReplicationPhase]:
        rows = self._run(
            lambda c: c.execute(
                "SELECT table_id, phase FROM table_phases WHERE pipeline = %s AND is_current", [self._pipeline]
            ).fetchall()
        )
        return {TableId(table): phase_from_json(phase) for table, phase in rows}

    def push_phases(self, epoch: int, phases: Mapping[TableId, TableReplicationPhase]) -> None:
        def push(c: _Connection) -> None:
            tables = [int(table) for table in phases]
            current = {
                table: (row, phase_from_json(phase))
                for table, row, phase in c.execute(
                    "SELECT table_id, id, phase FROM table_phases"
                    " WHERE pipeline = %s AND table_id = ANY (%s::oid[]) AND is_current",
                    [self._pipeline, tables],
                )
            }
            new = {t: phase for t, phase in phases.items() if t not in current or current[t][1] != phase}
            previous = [current[t][0] if t in current else None for t in new]
            c.execute("UPDATE table_phases SET is_current = false WHERE id = ANY (%s::bigint[])", [previous])
            c.execute(
                "INSERT INTO table_phases (pipeline, epoch, table_id, phase, previous_id)"
                " SELECT %s, %s, t, p::json, i FROM unnest(%s::oid[], %s::text[], %s::bigint[]) AS new (t, p, i)",
                [self._pipeline, epoch, [int(t) for t in new], list(map(_phase_text, new.values())), previous],
            )
            c.execute(
                "DELETE FROM table_phases p USING unnest(%s::oid[]) AS t (id)"
                " WHERE p.pipeline = %s AND p.table_id = t.id AND p.id <= ("
                "  SELECT h.id FROM table_phases h WHERE h.pipeline = p.pipeline AND h.table_id = t.id"
                "  ORDER BY h.id DESC OFFSET %s LIMIT 1)",
                [[int(t) for t in new], self._pipeline, HISTORY],
            )

        self._write(epoch, push)

    def pop_phase(self, epoch: int, table: TableId) -> TableReplicationPhase | None:
        of_table = [self._pipeline, int(table)]
        popped: int | None = None

        def pop(c: _Connection) -> TableReplicationPhase | None:
            nonlocal popped
            chain = c.execute(
                "SELECT id, previous_id FROM table_phases WHERE pipeline = %s AND table_id = %s AND is_current",
                of_table,
            ).fetchone()
            # A second run finds another current row if the first run was committed before its connection was lost.
            if chain is not None and popped in (None, chain[0]):
                current, previous = chain
                if previous is None:
                    return None
                popped = current
                c.execute("DELETE FROM table_phases WHERE id = %s", [current])
                c.execute("UPDATE table_phases SET is_current = true WHERE id = %s", [previous])
            row = c.execute(
                "SELECT phase FROM table_phases WHERE pipeline = %s AND table_id = %s AND is_current", of_table
            ).fetchone()
            return None if row is None else phase_from_json(row[0])

        return self._write(epoch, pop)

    # Schema versions

    def load_schemas(self) -> list[ReplicatedTableSchema]:
        rows = self._run(
            lambda c: c.execute("SELECT definition FROM table_schemas WHERE pipeline = %s", [self._pipeline]).fetchall()
        )
        return [ReplicatedTableSchema.from_json(definition) for (definition,) in rows]

    def put_schema(self, epoch: int, schema: ReplicatedTableSchema) -> None:
        self._write(
            epoch,
            lambda c: c.execute(
                "INSERT INTO table_schemas (pipeline, table_id, snapshot_id, definition) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (pipeline, table_id, snapshot_id) DO UPDATE SET definition = excluded.definition",
                [self._pipeline, int(schema.id), str(schema.snapshot_id), Jsonb(schema.to_json())],
            ),
        )

    def prune_schemas(self, epoch: int, retentions: Mapping[TableId, SnapshotId]) -> int:
        done = self._write(
            epoch,
            lambda c: c.execute(
                "DELETE FROM table_schemas s USING unnest(%s::oid[], %s::pg_lsn[]) AS r (table_id, retention)"
                " WHERE s.pipeline = %s AND s.table_id = r.table_id AND s.snapshot_id < ("
                "  SELECT max(k.snapshot_id) FROM table_schemas k"
                "  WHERE k.pipeline = s.pipeline AND k.table_id = s.table_id AND k.snapshot_id <= r.retention)",
                [[int(t) for t in retentions], [str(r) for r in retentions.values()], self._pipeline],
            ),
        )
        return done.rowcount

    # Progress

    def load_progress(self) -> dict[str, Lsn]:
        rows = self._run(
            lambda c: c.execute("SELECT worker, lsn FROM progress WHERE pipeline = %s", [self._pipeline]).fetchall()
        )
        return {worker: Lsn.parse(lsn) for worker, lsn in rows}

    def raise_progress(self, epoch: int, worker: str, lsn: Lsn) -> Lsn:
        raising = (
            "INSERT INTO progress (pipeline, worker, lsn) VALUES (%s, %s, %s) ON CONFLICT (pipeline, worker)"
            " DO UPDATE SET lsn = greatest(progress.lsn, excluded.lsn), updated_at = now() RETURNING lsn"
        )
        return Lsn.parse(self._write(epoch, lambda c: _one(c, raising, [self._pipeline, worker, str(lsn)])))

    def delete_progress(self, epoch: int, worker: str) -> None:
        deleting = "DELETE FROM progress WHERE pipeline = %s AND worker = %s"
        self._write(epoch, lambda c: c.execute(deleting, [self._pipeline, worker]))

    # Controls

    def load_controls(self) -> dict[TableId, TableControls]:
        rows = self._run(
            lambda c: c.execute(
                "SELECT table_id, retry_nonce, resync_nonce, made_as FROM table_controls WHERE pipeline = %s",
                [self._pipeline],
            ).fetchall()
        )
        return {TableId(table): TableControls(retry, resync, made) for table, retry, resync, made in rows}

    def put_controls(self, epoch: int, table: TableId, controls: TableControls) -> None:
        self._write(
            epoch,
            lambda c: c.execute(
                "INSERT INTO table_controls (pipeline, table_id, retry_nonce, resync_nonce, made_as)"
                " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (pipeline, table_id) DO UPDATE"
                " SET retry_nonce = excluded.retry_nonce, resync_nonce = excluded.resync_nonce,"
                " made_as = excluded.made_as",
                [self._pipeline, int(table), controls.retry_nonce, controls.resync_nonce, controls.made_as],
            ),
        )

    # Fingerprints

    def load_fingerprints(self) -> dict[str, str]:
        rows = self._run(
            lambda c: c.execute(
                "SELECT subject, fingerprint FROM fingerprints WHERE pipeline = %s", [self._pipeline]
            ).fetchall()
        )
        return dict(rows)

    def put_fingerprint(self, epoch: int, subject: str, fingerprint: str) -> None:
        self._write(
            epoch,
            lambda c: c.execute(
                "INSERT INTO fingerprints (pipeline, subject, fingerprint) VALUES (%s, %s, %s)"
                " ON CONFLICT (pipeline, subject) DO UPDATE SET fingerprint = excluded.fingerprint",
                [self._pipeline, subject, fingerprint],
            ),
        )

    def delete_fingerprint(self, epoch: int, subject: str) -> None:
        deleting = "DELETE FROM fingerprints WHERE pipeline = %s AND subject = %s"
        self._write(epoch, lambda c: c.execute(deleting, [self._pipeline, subject]))

    # Orders

    def load_order(self, table: TableId) -> CopyOrder | None:
        return self._run(lambda c: self._order(c, table))

    def _order(self, c: _Connection, table: TableId) -> CopyOrder | None:
        row = c.execute(
            "SELECT token, epoch, worker, answer FROM copy_orders WHERE pipeline = %s AND table_id = %s",
            [self._pipeline, int(table)],
        ).fetchone()
        return None if row is None else CopyOrder(*row)

    def put_order(self, epoch: int, table: TableId, order: CopyOrder | None) -> None:
        def put(c: _Connection) -> None:
            of_table = [self._pipeline, int(table)]
            c.execute("DELETE FROM copy_orders WHERE pipeline = %s AND table_id = %s", of_table)
            if order is not None:
                c.execute(
                    "INSERT INTO copy_orders (pipeline, table_id, token, epoch, worker, answer)"
                    " VALUES (%s, %s, %s, %s, %s, %s)",
                    [*of_table, order.token, order.epoch, order.worker, order.answer],
                )

        self._write(epoch, put)

    def change_order(self, epoch: int, table: TableId, expected: CopyOrder, now: CopyOrder) -> bool:
        def change(c: _Connection) -> bool:
            # The lock on the pipeline's row excludes other writers in between.
            if self._order(c, table) not in (expected, now):
                return False
            c.execute(
                "UPDATE copy_orders SET token = %s, epoch = %s, worker = %s, answer = %s"
                " WHERE pipeline = %s AND table_id = %s",
                [now.token, now.epoch, now.worker, now.answer, self._pipeline, int(table)],
            )
            return True

        return self._write(epoch, change)

    # Lifecycle

    def delete_table(self, epoch: int, table: TableId, *, keep_phases: bool) -> None:
        def delete(c: _Connection) -> None:
            of_table = [self._pipeline, int(table)]
            c.execute("DELETE FROM table_schemas WHERE pipeline = %s AND table_id = %s", of_table)
            of_worker = [self._pipeline, table_worker(table)]
            c.execute("DELETE FROM progress WHERE pipeline = %s AND worker = %s", of_worker)
            c.execute("DELETE FROM fingerprints WHERE pipeline = %s AND subject = %s", of_worker)
            if not keep_phases:
                c.execute("DELETE FROM table_phases WHERE pipeline = %s AND table_id = %s", of_table)
                c.execute("DELETE FROM table_actions WHERE pipeline = %s AND table_id = %s", of_table)
                c.execute("DELETE FROM table_controls WHERE pipeline = %s AND table_id = %s", of_table)
                c.execute("DELETE FROM copy_orders WHERE pipeline = %s AND table_id = %s", of_table)

        self._write(epoch, delete)

    def delete_all(self, epoch: int) -> None:
        def delete(c: _Connection) -> None:
            c.execute("DELETE FROM table_phases WHERE pipeline = %s", [self._pipeline])
            c.execute("DELETE FROM table_schemas WHERE pipeline = %s", [self._pipeline])
            c.execute("DELETE FROM progress WHERE pipeline = %s", [self._pipeline])
            c.execute("DELETE FROM table_actions WHERE pipeline = %s", [self._pipeline])
            c.execute("DELETE FROM table_controls WHERE pipeline = %s", [self._pipeline])
            c.execute("DELETE FROM copy_orders WHERE pipeline = %s", [self._pipeline])
            c.execute("DELETE FROM fingerprints WHERE pipeline = %s", [self._pipeline])

        self._write(epoch, delete)


class PostgresStore(CachedStore):
    """A store in a schema of a PostgreSQL database. Several pipelines may share the schema."""

    def __init__(self, connection: PostgresConnection, pipeline: str, schema: str = "levada") -> None:
        super().__init__(pipeline, PostgresStorage(connection, pipeline, schema))


def _one(connection: _Connection, statement: LiteralString, parameters: list[Any]) -> Any:
    row = connection.execute(statement, parameters).fetchone()
    assert row is not None
    return row[0]


def _owner_record(row: tuple[Any, ...] | None) -> OwnerRecord | None:
    if row is None or row[2] is None:
        return None
    uid, name, slot, publication, former = row
    return OwnerRecord(PipelineOwner(uid, name) if uid else None, slot, publication, tuple(former))


def _phase_text(phase: TableReplicationPhase) -> str:
    return json.dumps(phase_to_json(phase))


@contextmanager
def _store_errors(doing: str, schema: str) -> Iterator[None]:
    """Raise psycopg's errors from the block as Levada's, with hints about a store."""
    try:
        with source_errors(doing):
            yield
    except Transient as error:
        if error.code != "lock_timeout":
            raise
        name = sql.Literal(schema).as_string(None)
        holders = (
            "SELECT pid, query FROM pg_stat_activity JOIN pg_locks USING (pid) JOIN pg_class c ON c.oid = relation"
            f" WHERE granted AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = {name})"
        )
        hint = f"another session holds a lock on a table of the store, find it: {holders}"
        raise Transient("store_locked", error.message, hint=hint) from error
    except NeedsOperator as error:
        match error.code:
            case "insufficient_privilege":
                hint = f'CREATE SCHEMA IF NOT EXISTS "{schema}" AUTHORIZATION <role>;'
                raise NeedsOperator("store_privilege_missing", error.message, hint=hint) from error
            case "source_read_only":
                hint = "choose another kind of store in spec.store"
                raise NeedsOperator("store_read_only", error.message, hint=hint) from error
        raise
