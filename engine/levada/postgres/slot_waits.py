"""The reasons for which the creation of a slot waits: open transactions that have written, or a standby's primary."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from levada.errors import Transient
from levada.postgres.failures import source_errors
from levada.printable import counted

_SHORT_S: Final = 10.0
"""Age in seconds of a transaction that is likely to end by itself."""
_LOOK_S: Final = 1.0
"""Seconds between two looks at transactions whose age the role may not read."""

# Every role may read the locks, but only pg_read_all_stats shows since when others' transactions are open.
_HOLDERS: Final = """
SELECT DISTINCT ON (virtualxid) * FROM (
    SELECT l.virtualtransaction, format('PID %s of %s%s in database %s', a.pid,
        coalesce('role ' || a.usename, a.backend_type), ', application ' || nullif(a.application_name, ''), a.datname),
        format('SELECT pg_terminate_backend(%s)', a.pid),
        extract(epoch FROM clock_timestamp() - a.xact_start)::float8, age(l.transactionid)
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND a.pid <> pg_backend_pid()
    UNION ALL
    SELECT gid, format('prepared transaction %s of role %s in database %s', gid, owner, database),
        format('in database %I: ROLLBACK PREPARED %L', database, gid),
        extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
    FROM pg_prepared_xacts
) holder (virtualxid, name, remedy, seconds, age) ORDER BY virtualxid, age DESC
"""
_STANDBY: Final = "SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_stat_wal_receiver)"
_ON_THE_PRIMARY: Final = "on the primary: SELECT pg_log_standby_snapshot()"


@dataclass(frozen=True, slots=True)
class Holder:
    """An open transaction that has written. ``seconds`` is its age, or None if the role may not read it."""

    id: str
    name: str
    remedy: str
    seconds: float | None


def waiting_error(conn: psycopg.Connection[Any], slot: str) -> Transient | None:
    """Return what the creation of the slot waits for, as an error with the holder and a remedy, or None."""
    found = _reason(conn)
    return None if found is None else _error(slot, *found)


def wait_reason(conn: psycopg.Connection[Any]) -> str | None:
    """Return what the creation of a slot waits for, with the remedy, or None."""
    found = _reason(conn)
    return None if found is None else f"{found[0]} ({found[1]})"


def expected_wait(conn: psycopg.Connection[Any], slot: str) -> Transient | None:
    """Return what the creation of the slot would wait for, or None if that ends by itself."""
    if (standby := _standby_reason(conn)) is not None:
        return _error(slot, *standby) if standby[1] != _ON_THE_PRIMARY else None
    found = _holders(conn)
    long = [h for h in found if h.seconds is not None and h.seconds >= _SHORT_S]
    if unknown := {h.id for h in found if h.seconds is None}:
        time.sleep(_LOOK_S)
        long += [h for h in _holders(conn) if h.id in unknown]
    reason = _of_holders(long)
    return None if reason is None else _error(slot, *reason)


def _reason(conn: psycopg.Connection[Any]) -> tuple[str, str] | None:
    """Return what the creation of a slot waits for, and the remedy."""
    return _standby_reason(conn) or _of_holders(_holders(conn))


@source_errors("reading the open transactions")
def _holders(conn: psycopg.Connection[Any]) -> list[Holder]:
    rows = conn.execute(_HOLDERS).fetchall()
    return [Holder(*row[:4]) for row in sorted(rows, key=lambda row: -int(row[4]))]


@source_errors("reading the state of the standby")
def _standby_reason(conn: psycopg.Connection[Any]) -> tuple[str, str] | None:
    row = conn.execute(_STANDBY).fetchone()
    if row is None or not row[0]:
        return None
    if row[1]:
        return "a snapshot of the primary's transactions, which an idle primary does not write", _ON_THE_PRIMARY
    return (
        "WAL of the primary, and the standby receives none",
        "check primary_conninfo of the standby and the log of its server. Then " + _ON_THE_PRIMARY,
    )


def _of_holders(holders: list[Holder]) -> tuple[str, str] | None:
    if not holders:
        return None
    oldest = holders[0]
    age = "" if oldest.seconds is None else f", open for {oldest.seconds:,.0f} s"
    others = f", and {counted(len(holders) - 1, 'more transaction')}" if len(holders) > 1 else ""
    return f"{oldest.name}{age}{others}", f"end it, or wait for it: {oldest.remedy}"


def _error(slot: str, waits_for: str, hint: str) -> Transient:
    return Transient("slot_creation_waits", f"the creation of slot {slot} waits for {waits_for}", hint=hint)
