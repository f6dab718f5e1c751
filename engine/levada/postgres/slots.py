"""Replication slots: their names, what the server says of them, and their life from creation to drop."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from levada.errors import NeedsOperator, SlotLost, Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.replication import execute_replication
from levada.values import MAX_PIPELINE_NAME, Lsn, TableId, quote_identifier, source_object_name

_log = logging.getLogger(__name__)

PLUGIN: Final = "pgoutput"

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_OID_DIGITS: Final = 7
"""Digits of base 36 that hold every OID. The first one is 0 or 1."""
_ATTEMPT_DIGITS: Final = 3
_PIPELINE: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SLOT: Final = re.compile(r"levada_([a-z0-9_]+?)(?:_copy_([01][0-9a-z]{6})[0-9a-z]{3})?")

_FAILOVER_VERSION: Final = 170000

_DROP_WAIT_S: Final = 30.0
_DROP_RETRY_S: Final = 0.1


def copy_slot_name(pipeline: str, table_id: TableId) -> str:
    """Return a name for the temporary slot that one attempt to copy a table takes its snapshot from.

    The table's OID is in base 36, followed by random digits. The slot of an attempt that was cancelled a moment ago may
    still exist, so a name is never used twice.

    Raise NeedsOperator ``invalid_pipeline_name`` if the name could not be read back. The pipeline's name may have
    lower-case letters, digits and ``-``, at most 40 of them, and must not end like a copy slot's name.
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
            hint=f"use at most {MAX_PIPELINE_NAME} of a-z, 0-9 and '-', and no end like '-copy-00000a1b2c'",
        )
    attempt = secrets.randbelow(len(_DIGITS) ** _ATTEMPT_DIGITS)
    return f"{name}_copy_{_base36(table_id, _OID_DIGITS)}{_base36(attempt, _ATTEMPT_DIGITS)}"


def parse_slot_name(name: str) -> tuple[str, TableId | None] | None:
    """Return the pipeline, and the table for a copy slot; None for a name that is not one of Levada's."""
    match = _SLOT.fullmatch(name)
    if match is None:
        return None
    return match[1].replace("_", "-"), TableId(int(match[2], 36)) if match[2] else None


def _base36(number: int, digits: int) -> str:
    return "".join(_DIGITS[number // len(_DIGITS) ** place % len(_DIGITS)] for place in reversed(range(digits)))


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A row of ``pg_replication_slots``; None where the server's version has no such column or no value."""

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
    """Bytes of WAL that may be written before the slot is in danger; None: no limit is set."""
    invalidation_reason: str | None
    """From PostgreSQL 17 on; on 16 ``conflicting`` is told as ``recovery_conflict``."""
    failover: bool | None
    """From PostgreSQL 17 on."""

    @property
    def lost(self) -> bool:
        """The slot has been invalidated: changes are gone."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


@source_errors("reading the replication slot")
def inspect_slot(conn: psycopg.Connection[Any], name: str) -> SlotStatus | None:
    """Return what the server knows of the slot; None if there is none."""
    row = conn.execute("SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s", [name]).fetchone()
    if row is None:
        return None
    return slot_status(row[0])


def slot_status(slot: Mapping[str, Any]) -> SlotStatus:
    """Return a row of ``pg_replication_slots`` that was read as JSON."""
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
    )


@source_errors("creating the replication slot")
def create_slot(conn: psycopg.Connection[Any], name: str, failover: bool = False) -> Lsn:
    """Create a permanent pgoutput slot and return its consistent point; changes that commit after it are in its stream.

    Waits for the transactions that are running. Its publication must exist already. Raise NeedsOperator
    ``failover_unsupported`` if ``failover`` is asked of a server below 17.
    """
    if not failover:
        query = "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s)"
    elif conn.info.server_version >= _FAILOVER_VERSION:
        query = "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s, failover => true)"
    else:
        raise _failover_unsupported(name)
    # Running transactions are waited for like locks, and each attempt would begin to wait for all of them again.
    conn.execute("SET lock_timeout = 0")
    row = conn.execute(query, [name, PLUGIN]).fetchone()
    conn.execute("RESET lock_timeout")
    assert row is not None
    return Lsn.parse(row[0])


def enable_failover(connection: PostgresConnection, name: str) -> None:
    """Let PostgreSQL synchronise an existing slot to its standbys.

    Raise NeedsOperator ``failover_unsupported`` on a server below 17, and Transient ``slot_active`` while another
    process has the slot.
    """
    pg = connection.connect_replication(application="failover")
    try:
        if pg.server_version < _FAILOVER_VERSION:
            raise _failover_unsupported(name)
        command = f"ALTER_REPLICATION_SLOT {quote_identifier(name)} (FAILOVER true)"
        execute_replication(pg, command, f"making slot {name} a failover slot", connection.silence())
    finally:
        pg.finish()
    _log.info("slot %s is a failover slot now", name)


def _failover_unsupported(name: str) -> NeedsOperator:
    return NeedsOperator(
        "failover_unsupported",
        f"slot {name} cannot be a failover slot: PostgreSQL has them from version 17 on",
        hint="set spec.source.slot.failover to false",
    )


def validate_slot(status: SlotStatus, database: str) -> None:
    """Raise unless the slot can serve a pipeline of this database; it is left as it is.

    NeedsOperator ``slot_foreign``: another plugin, database or kind. SlotLost ``slot_lost``: invalidated.
    """
    if status.plugin != PLUGIN or status.database != database or status.temporary:
        kind = "temporary" if status.temporary else "logical" if status.plugin else "physical"
        raise NeedsOperator(
            "slot_foreign",
            f"slot {status.name} is a {kind} slot of plugin {status.plugin} in database {status.database},"
            f" not a permanent one of {PLUGIN} in {database}",
            hint="set spec.source.slot.name to another name",
        )
    if status.lost:
        reason = status.invalidation_reason or "wal_removed"
        raise SlotLost(
            "slot_lost",
            f"slot {status.name} has been invalidated ({reason}): changes since {status.confirmed_flush_lsn} are gone",
            hint=f"SELECT pg_drop_replication_slot('{status.name}'); and copy the tables again",
        )


def drop_slot(
    conn: psycopg.Connection[Any],
    name: str,
    *,
    wait_s: float = _DROP_WAIT_S,
    terminate: bool = False,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Drop the slot; return False if there is none.

    An active slot is waited for, for ``wait_s`` seconds at most, then Transient ``slot_active``. With ``terminate`` the
    backend that holds it is ended first. ``check`` is called before either, and raises to prevent it.
    """
    deadline = time.monotonic() + wait_s
    while True:
        status = inspect_slot(conn, name)
        if status is None:
            return False
        if not status.active:
            check()
            if _try_drop(conn, name):
                return True
        if terminate and status.active_pid is not None:
            check()
            with source_errors(f"ending the backend that holds slot {name}"):
                conn.execute("SELECT pg_terminate_backend(%s)", [status.active_pid])
        if time.monotonic() >= deadline:
            raise _in_use(status)
        time.sleep(_DROP_RETRY_S)


def wait_until_inactive(conn: psycopg.Connection[Any], name: str, wait_s: float) -> None:
    """Return once no process streams from the slot, also if there is no such slot.

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
        hint=f"SELECT pg_terminate_backend({status.active_pid})",
    )


def _try_drop(conn: psycopg.Connection[Any], name: str) -> bool:
    try:
        with source_errors(f"dropping slot {name}"):
            conn.execute("SELECT pg_drop_replication_slot(%s)", [name])
    except Transient as error:
        if error.code != "slot_active":
            raise
        return False
    except SlotLost as error:
        if error.code != "slot_missing":
            raise
    return True


@source_errors("listing replication slots")
def database_slots(conn: psycopg.Connection[Any]) -> frozenset[str]:
    """Return the names of the permanent slots of this database."""
    rows = conn.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
    ).fetchall()
    return frozenset(name for (name,) in rows)


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A snapshot that other sessions can take on: it holds exactly the commits whose final LSN is below ``lsn``."""

    name: str
    lsn: Lsn


@contextmanager
def export_snapshot(connection: PostgresConnection, slot_name: str) -> Iterator[ExportedSnapshot]:
    """Hold a snapshot open for as long as the context lasts, through a temporary slot that goes with it.

    Waits for the transactions that are running. `levada.postgres.slots.create_slot` of the main slot must come first.
    """
    pg = connection.connect_replication(application=slot_name)
    try:
        command = f"CREATE_REPLICATION_SLOT {quote_identifier(slot_name)} TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT"
        result = execute_replication(
            pg, command, f"exporting a snapshot through slot {slot_name}", connection.silence()
        )
        lsn, name = result.get_value(0, 1), result.get_value(0, 2)
        assert lsn is not None
        assert name is not None
        yield ExportedSnapshot(name.decode(), Lsn.parse(lsn.decode()))
    finally:
        pg.finish()


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)
