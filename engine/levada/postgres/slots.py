"""Replication slots: their names, their status, their creation and removal."""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import pq

from levada import codes
from levada.errors import LevadaError, NeedsOperator, SlotLost, Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import RESYNC_ALL, source_errors
from levada.postgres.idle_connections import IdleWalsenders
from levada.postgres.replication import execute_replication
from levada.postgres.sessions import end_sessions
from levada.postgres.silence import Interrupt
from levada.postgres.slot_waits import waiting_error
from levada.values import MAX_PIPELINE_NAME, Lsn, TableId, quote_identifier, source_object_name

_log = logging.getLogger(__name__)

PLUGIN: Final = "pgoutput"

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_OID_DIGITS: Final = 7
"""Digits of base 36 for an OID. The first digit is 0 or 1."""
_ATTEMPT_DIGITS: Final = 3
_PIPELINE: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SLOT: Final = re.compile(r"levada_([a-z0-9_]+?)(?:_copy_([01][0-9a-z]{6})[0-9a-z]{3})?")

_FAILOVER_VERSION: Final = 170000

_CRASHES: Final = 180_000
"""The first version whose server crashes if the creation of a slot runs out of memory for decoding.

That forgets the changes of a subtransaction which was rolled back, takes them for sent, and calls pgoutput's
stream_abort, which needs what pgoutput has only in a stream (18.4).
"""
_ENOUGH_MEMORY: Final = """
SELECT pg_catalog.set_config(w.name, greatest(w.setting::bigint, least(b.setting::bigint * 8, 1048576))::text, false)
FROM pg_catalog.pg_settings w, pg_catalog.pg_settings b
WHERE w.name = 'logical_decoding_work_mem' AND b.name = 'shared_buffers'
"""
"""Lets the creation of a slot have as much as the server's shared_buffers (pages of 8 kB), at most 1 GiB.

It takes what open transactions write meanwhile, which a small server may not have.
"""

_DROP_WAIT_S: Final = 30.0
_DROP_RETRY_S: Final = 0.1
_LOOK_S: Final = 5.0


def copy_slot_name(pipeline: str, table_id: TableId) -> str:
    """Return a new name for the temporary slot of one attempt to copy a table.

    The name has the table's OID in base 36, followed by random digits. The slot of an attempt that was just cancelled
    may still exist, so each attempt has a different name.

    Raise NeedsOperator ``invalid_pipeline_name`` if the pipeline could not be derived from the slot's name. A
    pipeline's name has at most 40 lower-case letters, digits and ``-``, and must not end like a copy slot's name.
    """
    name = source_object_name(pipeline)
    if (
        len(pipeline) > MAX_PIPELINE_NAME
        or not _PIPELINE.fullmatch(pipeline)
        or parse_slot_name(name) != (pipeline, None)
    ):
        raise NeedsOperator(
            "invalid_pipeline_name",
            f"the pipeline's name {pipeline!r} cannot be part of a slot's name",
            hint=f"use at most {MAX_PIPELINE_NAME} of a-z, 0-9 and '-', and no ending such as '-copy-00000a1b2c'",
        )
    attempt = secrets.randbelow(len(_DIGITS) ** _ATTEMPT_DIGITS)
    return f"{name}_copy_{_base36(table_id, _OID_DIGITS)}{_base36(attempt, _ATTEMPT_DIGITS)}"


def parse_slot_name(name: str) -> tuple[str, TableId | None] | None:
    """Return the pipeline of a slot's name, and the table of a copy slot. Return None for names of other programs."""
    match = _SLOT.fullmatch(name)
    if match is None:
        return None
    return match[1].replace("_", "-"), TableId(int(match[2], 36)) if match[2] else None


def _base36(number: int, digits: int) -> str:
    return "".join(_DIGITS[number // len(_DIGITS) ** place % len(_DIGITS)] for place in reversed(range(digits)))


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A row of ``pg_replication_slots``. A field is None if the server's version has no such column, or no value."""

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    active: bool
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    """``reserved``, ``extended``, ``unreserved`` or ``lost``."""
    safe_wal_size: int | None
    """Bytes of WAL that can be written before the slot may be lost. None: the server sets no limit."""
    invalidation_reason: str | None
    """Since PostgreSQL 17. On 16, ``conflicting`` is reported as ``recovery_conflict``."""
    failover: bool | None
    """Since PostgreSQL 17."""
    synced: bool
    """True on a standby that copies the slot from its primary, since PostgreSQL 17. Only the primary's can be read."""

    @property
    def lost(self) -> bool:
        """Return True if the slot is invalidated, so that changes are lost."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


@source_errors("reading the replication slot")
def inspect_slot(conn: psycopg.Connection[Any], name: str) -> SlotStatus | None:
    """Return the slot's status, or None if it does not exist."""
    query = "SELECT to_jsonb(s), pg_is_in_recovery() FROM pg_replication_slots s WHERE slot_name = %s"
    row = conn.execute(query, [name]).fetchone()
    if row is None:
        return None
    return slot_status(row[0], in_recovery=row[1])


def slot_status(slot: Mapping[str, Any], *, in_recovery: bool) -> SlotStatus:
    """Return the status of a ``pg_replication_slots`` row that was read as JSON."""
    return SlotStatus(
        name=slot["slot_name"],
        plugin=slot["plugin"],
        database=slot["database"],
        temporary=slot["temporary"],
        active=slot["active"],
        active_pid=slot["active_pid"],
        restart_lsn=_lsn(slot["restart_lsn"]),
        confirmed_flush_lsn=_lsn(slot["confirmed_flush_lsn"]),
        wal_status=slot["wal_status"],
        safe_wal_size=slot["safe_wal_size"],
        invalidation_reason=slot.get("invalidation_reason")
        or ("recovery_conflict" if slot.get("conflicting") else None),
        failover=slot.get("failover"),
        # The column keeps its value when the standby is promoted, and has no meaning from then on.
        synced=in_recovery and bool(slot.get("synced")),
    )


@source_errors("creating the replication slot")
def create_slot(conn: psycopg.Connection[Any], name: str, failover: bool = False) -> Lsn:
    """Create a permanent pgoutput slot and return its consistent point. Its stream has the changes committed after it.

    Wait for running transactions. The publication must exist already. Raise NeedsOperator ``failover_unsupported`` if
    ``failover`` is True and the server is older than version 17.
    """
    if not failover:
        query = "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s)"
    elif conn.info.server_version >= _FAILOVER_VERSION:
        query = "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s, failover => true)"
    else:
        raise _failover_unsupported(name)
        # Waiting for running transactions takes locks, and each attempt would wait for all of them again.
    conn.execute("SET lock_timeout = 0")
    if conn.info.server_version >= _CRASHES:
        conn.execute(_ENOUGH_MEMORY)
    try:
        row = conn.execute(query, [name, PLUGIN]).fetchone()
    finally:
        with suppress(psycopg.OperationalError):
            conn.execute("RESET lock_timeout")
            conn.execute("RESET logical_decoding_work_mem")
    assert row is not None
    return Lsn.parse(row[0])


def enable_failover(connection: PostgresConnection, name: str) -> None:
    """Let PostgreSQL synchronise an existing slot to its standbys.

    Raise NeedsOperator ``failover_unsupported`` if the server is older than version 17, and Transient ``slot_active``
    while another process uses the slot.
    """
    pg = connection.connect_replication(application="failover")
    try:
        if pg.server_version < _FAILOVER_VERSION:
            raise _failover_unsupported(name)
        command = f"ALTER_REPLICATION_SLOT {quote_identifier(name)} (FAILOVER true)"
        execute_replication(pg, command, f"making slot {name} a failover slot", connection.silence())
    finally:
        pg.finish()
    _log.info("slot %s is now a failover slot", name)


def _failover_unsupported(name: str) -> NeedsOperator:
    return NeedsOperator(
        "failover_unsupported",
        f"slot {name} cannot be a failover slot: PostgreSQL has them since version 17",
        hint="set spec.source.slot.failover to false",
    )


def passing_standby(name: str) -> Transient:
    """Return the error of a standby without the slot, which an address leads to during a failover."""
    return Transient(
        "source_standby",
        f"the source is a standby, on which there is no slot {name} that can be read. Changes are read again once the"
        " standby is promoted, or once the address leads to the primary",
        hint="nothing if a failover is under way. Otherwise set spec.source.host to the primary. To replicate from this"
        f" standby from now on: {RESYNC_ALL}",
    )


def awaits_primary(status: SlotStatus | None) -> bool:
    """Return True if a standby with this slot, or without one, is met for a moment in a failover.

    PostgreSQL copies a failover slot to standbys, where it cannot be read. The slot of a former primary may be lost
    there. A standby that the stream has read from since its start is no such standby.
    """
    return status is None or status.synced or status.lost


def is_foreign(status: SlotStatus, database: str) -> bool:
    """Return True if no pipeline of this database can have created the slot. All databases of a server share names."""
    return status.plugin != PLUGIN or status.database != database or status.temporary


def require_own_slot(status: SlotStatus, database: str) -> None:
    """Raise NeedsOperator ``slot_foreign`` if the slot has another plugin, database or kind."""
    if not is_foreign(status, database):
        return
    found = "a physical slot"
    if status.plugin is not None:
        kind = "temporary" if status.temporary else "logical"
        found = f"a {kind} slot of plugin {status.plugin} in database {status.database}"
    raise NeedsOperator(
        "slot_foreign",
        f"slot {status.name} is {found}, not a permanent one of {PLUGIN} in database {database}",
        hint="set spec.source.slot.name to another name",
    )


def validate_slot(status: SlotStatus, database: str) -> None:
    """Raise an error unless the slot can serve a pipeline of this database. The slot is not changed.

    NeedsOperator ``slot_foreign`` means another plugin, database or kind. SlotLost ``slot_lost`` means invalidated.
    """
    require_own_slot(status, database)
    if status.lost:
        reason = status.invalidation_reason or "wal_removed"
        raise SlotLost(
            "slot_lost",
            f"slot {status.name} has been invalidated ({reason}): changes since {status.confirmed_flush_lsn} are lost",
            hint=f"SELECT pg_drop_replication_slot('{status.name}'); then {RESYNC_ALL}",
        )


def drop_slot(
    conn: psycopg.Connection[Any],
    name: str,
    *,
    wait_s: float = _DROP_WAIT_S,
    terminate: bool = False,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Drop the slot. Return False if it does not exist.

    Wait for an active slot for at most ``wait_s`` seconds, then raise Transient ``slot_active``. With ``terminate``,
    the backend that uses the slot is terminated first. ``check`` is called before each step, and raises an error to
    prevent it. Raise NeedsOperator ``slot_foreign`` for a slot of another database, which PostgreSQL would drop.
    """
    deadline = time.monotonic() + wait_s
    while True:
        status = inspect_slot(conn, name)
        if status is None:
            return False
        require_own_slot(status, conn.info.dbname)
        if not status.active:
            check()
            if _try_drop(conn, name):
                return True
        if terminate and status.active_pid is not None:
            check()
            with source_errors(f"ending the backend that holds slot {name}"):
                end_sessions(conn, [status.active_pid])
        if time.monotonic() >= deadline:
            raise _in_use(status)
        time.sleep(_DROP_RETRY_S)


def wait_until_inactive(conn: psycopg.Connection[Any], name: str, wait_s: float) -> None:
    """Wait until no process streams from the slot. Return immediately if the slot does not exist.

    Raise Transient ``slot_active`` after ``wait_s`` seconds.
    """
    deadline = time.monotonic() + wait_s
    while (status := inspect_slot(conn, name)) is not None and status.active:
        if time.monotonic() >= deadline:
            raise _in_use(status)
        time.sleep(_DROP_RETRY_S)


def _in_use(status: SlotStatus) -> Transient:
    return Transient(
        "slot_active",
        f"slot {status.name} is in use by PID {status.active_pid}",
        hint="stop the engine that uses it, else it connects again: end its levada run, or set spec.suspend of its"
        f" Pipeline to true. If its machine is gone: SELECT pg_terminate_backend({status.active_pid});",
    )


def _try_drop(conn: psycopg.Connection[Any], name: str) -> bool:
    try:
        with source_errors(f"dropping slot {name}"):
            conn.execute("SELECT pg_drop_replication_slot(%s)", [name])
    except Transient as error:
        if error.code != codes.SLOT_ACTIVE:
            raise
        return False
    except SlotLost as error:
        if error.code != codes.SLOT_MISSING:
            raise
    return True


@source_errors("listing replication slots")
def database_slots(conn: psycopg.Connection[Any]) -> frozenset[str]:
    """Return the names of the permanent slots of this database."""
    rows = conn.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
    ).fetchall()
    return frozenset(name for (name,) in rows)


def end_abandoned_slots(conn: psycopg.Connection[Any], pipeline: str) -> None:
    """End the sessions that still create temporary slots for a process of the pipeline that was killed.

    The server notices that a client is gone only when it has waited for all transactions that were open. Until then the
    slot keeps WAL, and one of ``max_replication_slots`` is in use. A copy by another pipeline of that name is retried.
    """
    with source_errors("reading the temporary slots"):
        rows = conn.execute(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = current_database() AND temporary"
            " AND active_pid IS NOT NULL AND confirmed_flush_lsn IS NULL"
        ).fetchall()
    for name, pid in rows:
        found = parse_slot_name(name)
        if found is None or found[0] != pipeline or found[1] is None:
            continue
        try:
            with source_errors(f"ending the session that creates slot {name}"):
                end_sessions(conn, [pid])
        except LevadaError as error:
            _log.warning("slot %s of a process that has ended stays until open transactions end: %s", name, error)
        else:
            _log.info("ended the session that created slot %s for a process that has ended", name)


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A snapshot that other sessions can import. It contains exactly the commits with an LSN below ``lsn``."""

    name: str
    lsn: Lsn
    began: datetime | None = None
    """A time of the server that is not after the snapshot, None if it was not asked for."""


@contextmanager
def export_snapshot(
    connection: PostgresConnection,
    slot_name: str,
    interrupt: Interrupt | None = None,
    idle: IdleWalsenders | None = None,
) -> Iterator[ExportedSnapshot]:
    """Export a snapshot for the duration of the block, through a temporary slot.

    Wait for running transactions, and log which after some seconds. ``interrupt`` is called meanwhile, and raises to
    end the wait. The main slot must be created before. A connection is taken from ``idle``, and kept there afterwards.
    """
    pg = connection.connect_replication(application=slot_name) if idle is None else idle.take(slot_name)
    try:
        command = f"CREATE_REPLICATION_SLOT {quote_identifier(slot_name)} TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT"
        doing = f"exporting a snapshot through slot {slot_name}"
        try:
            waiting = _Waiting(connection, slot_name, interrupt)
            if pg.server_version >= _CRASHES:
                execute_replication(pg, _ENOUGH_MEMORY, doing, connection.silence())
            result = execute_replication(pg, command, doing, connection.silence(waiting.check))
        except LevadaError:
            # The server notices a closed connection only when it has waited for all transactions.
            _cancel(pg)
            raise
        lsn, name = result.get_value(0, 1), result.get_value(0, 2)
        assert lsn is not None
        assert name is not None
        yield ExportedSnapshot(name.decode(), Lsn.parse(lsn.decode()))
        if idle is not None:
            # It also ends the snapshot.
            drop = f"DROP_REPLICATION_SLOT {quote_identifier(slot_name)}"
            execute_replication(pg, drop, f"dropping slot {slot_name}", connection.silence())
            idle.put_back(pg)
            return
    except BaseException:
        pg.finish()
        raise
    pg.finish()


@dataclass(slots=True)
class _Waiting:
    """A wait for running transactions, whose reason is logged once."""

    connection: PostgresConnection
    slot: str
    interrupt: Interrupt | None
    look_at: float = field(default_factory=lambda: time.monotonic() + _LOOK_S)

    def check(self) -> None:
        """Call the interrupt, and look for the reason when it is due."""
        if self.interrupt is not None:
            self.interrupt()
        if time.monotonic() < self.look_at:
            return
        self.look_at = math.inf
        try:
            with self.connection.connect(application="wait") as look:
                found = waiting_error(look, self.slot)
        except LevadaError as error:
            _log.debug("the reason of the wait for slot %s cannot be read: %s", self.slot, error.message)
        else:
            if found is not None:
                _log.warning("%s", found)


def _cancel(pg: pq.abc.PGconn) -> None:
    with suppress(psycopg.Error):
        pg.get_cancel().cancel()


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)
