"""How far a slot trails its server, measured out of band on a connection of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.slots import SlotStatus, inspect_slot
from levada.values import Lsn

_PROBE_TIMEOUT_MS: Final = 10_000

_HEAD: Final = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"


@dataclass(frozen=True, slots=True)
class LagSample:
    """Distances to the end of the server's WAL (on a standby: of what it has replayed), in bytes, never negative.

    None where the slot has no such position, as a lost one may have none.
    """

    lag_bytes: int | None
    """Not yet confirmed by the slot."""
    retained_bytes: int | None
    """Kept on the server's disk for the slot."""
    status: SlotStatus


def sample_lag(connection: PostgresConnection, slot: str) -> LagSample | None:
    """Return the slot's lag; None if there is no such slot. Raise Transient after 10 s at most."""
    with connection.connect(application="lag") as conn, source_errors(f"measuring the lag of slot {slot}"):
        conn.execute("SELECT set_config('statement_timeout', %s, false)", [str(_PROBE_TIMEOUT_MS)])
        status = inspect_slot(conn, slot)
        head = current_wal_lsn(conn)
    if status is None:
        return None
    return LagSample(_distance(head, status.confirmed_flush_lsn), _distance(head, status.restart_lsn), status)


def current_wal_lsn(conn: psycopg.Connection[Any]) -> Lsn:
    """Return the end of the server's WAL: every commit that was answered is below it; on a standby what is replayed."""
    with source_errors("reading the server's position"):
        row = conn.execute(_HEAD).fetchone()
    return Lsn.parse(row[0]) if row and row[0] else Lsn(0)


def _distance(head: Lsn, position: Lsn | None) -> int | None:
    return None if position is None else max(0, head - position)
