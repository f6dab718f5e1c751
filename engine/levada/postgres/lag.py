"""The end of the server's WAL, and a slot's distance to it, measured out of band."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString

import psycopg

from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.slots import SlotStatus, inspect_slot, passing_standby, require_own_slot
from levada.values import Lsn

_PROBE_TIMEOUT_MS: Final = 10_000

_FLUSH_WAIT_S: Final = 2.0
"""Seconds to wait for a flush. The WAL writer flushes an asynchronous commit within three times ``wal_writer_delay``,
which is 200 ms by default and 10 s at most.
"""
_FLUSH_PREFIX: Final = "levada_flush"
_PAGE_HEADER: Final = 40
"""Bytes by which the insert position may be ahead at the end of a page: it is already past the next page's header."""

_HEAD: Final[LiteralString] = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"
)

_STANDBY: Final[LiteralString] = """
SELECT greatest(pg_last_wal_replay_lsn(), pg_last_wal_receive_lsn()),
  pg_size_bytes(current_setting('max_slot_wal_keep_size')), pg_size_bytes(current_setting('wal_keep_size')),
  pg_size_bytes(current_setting('wal_segment_size'))
WHERE pg_is_in_recovery()
"""

_INSERTED: Final[LiteralString] = "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() END"


@dataclass(frozen=True, slots=True)
class LagSample:
    """Distances in bytes to the end of the server's WAL, never negative.

    On a standby, the lag is the distance to the replayed position. A distance is None if the slot has no such position,
    as a lost slot may not.
    """

    lag_bytes: int | None
    """WAL that the slot has not confirmed."""
    retained_bytes: int | None
    """WAL that the server retains on disk for the slot."""
    status: SlotStatus


def sample_lag(connection: PostgresConnection, slot: str) -> LagSample | None:
    """Return the slot's lag, or None if the slot does not exist.

    Raise Transient after at most 10 seconds, and ``source_standby`` for a standby without a slot that can be read.
    Raise NeedsOperator ``slot_foreign`` for a slot of another database.
    """
    measuring = source_errors(f"measuring the lag of slot {slot}")
    with SESSIONS.session(connection, "lag") as conn, measuring, conn.transaction():
        conn.execute("SELECT set_config('statement_timeout', %s, true)", [str(_PROBE_TIMEOUT_MS)])
        status = inspect_slot(conn, slot)
        head = _position(conn, _HEAD)
        standby = conn.execute(_STANDBY).fetchone()
    if standby is not None and (status is None or status.synced):
        raise passing_standby(slot)
    if status is None:
        return None
    require_own_slot(status, connection.database)
    end = head
    if standby is not None:
        end = None if standby[0] is None else Lsn.parse(standby[0])
        safe = standby_safe_wal(end, status.restart_lsn, *standby[1:])
        status = replace(status, safe_wal_size=safe)
    return LagSample(_distance(head, status.confirmed_flush_lsn), _distance(end, status.restart_lsn), status)


def standby_safe_wal(
    end: Lsn | None, restart: Lsn | None, slot_keeps: int, server_keeps: int, segment: int
) -> int | None:
    """Return the bytes of WAL that a standby can receive before a slot at ``restart`` may be lost, None for no limit.

    The standby's own column ``safe_wal_size`` never falls, because a server in recovery has no position of its own
    writes. ``slot_keeps`` and ``server_keeps`` are ``max_slot_wal_keep_size``, negative for no limit, and
    ``wal_keep_size``. All sizes are in bytes.
    """
    if end is None or restart is None or slot_keeps < 0:
        return None
    kept_segments = max(slot_keeps, server_keeps) // segment
    return (restart // segment + kept_segments + 1) * segment - end


@source_errors("reading the end of the WAL")
def current_wal_lsn(conn: psycopg.Connection[Any]) -> Lsn:
    """Return an LSN that is above everything committed so far, and that a stream can reach.

    Wait until the server has flushed asynchronous commits. If that takes long, commit an empty logical message, which
    flushes them. On a standby, return the replayed position.
    """
    deadline = time.monotonic() + _FLUSH_WAIT_S
    insert = _position(conn, _INSERTED)
    if insert is None:
        return _position(conn, _HEAD) or Lsn(0)
    while True:
        flushed = _position(conn, "SELECT pg_current_wal_flush_lsn()") or Lsn(0)
        if flushed >= insert - _PAGE_HEADER:
            return flushed
        if time.monotonic() >= deadline:
            _flush(conn)
            return _position(conn, "SELECT pg_current_wal_flush_lsn()") or Lsn(0)
        time.sleep(0.02)


@source_errors("reading the end of the WAL")
def inserted_wal_lsn(conn: psycopg.Connection[Any]) -> Lsn:
    """Return the LSN up to which the server has generated WAL, flushed or not. On a standby, the replayed position."""
    return _position(conn, _INSERTED) or _position(conn, _HEAD) or Lsn(0)


def _flush(conn: psycopg.Connection[Any]) -> None:
    """Flush the WAL by a synchronous commit. A transactional message gives the transaction an ID, without which its
    commit would flush nothing.
    """
    with conn.transaction():
        conn.execute("SET LOCAL synchronous_commit = local")
        conn.execute("SELECT pg_logical_emit_message(true, %s, '')", [_FLUSH_PREFIX])


def _position(conn: psycopg.Connection[Any], query: LiteralString) -> Lsn | None:
    row = conn.execute(query).fetchone()
    return Lsn.parse(row[0]) if row and row[0] else None


def _distance(head: Lsn | None, position: Lsn | None) -> int | None:
    return None if head is None or position is None else max(0, head - position)
