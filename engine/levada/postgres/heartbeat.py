"""A sign of life in the WAL of a quiet database, so that its slot can advance."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from levada.postgres.failures import source_errors
from levada.values import Lsn

HEARTBEAT_PREFIX: Final = "levada_heartbeat"


@source_errors("writing a heartbeat")
def emit_heartbeat(conn: psycopg.Connection[Any]) -> Lsn | None:
    """Write a logical message outside any transaction and return its position; on a standby do nothing."""
    # CASE keeps a standby from even trying: the message is WAL, which a standby cannot write.
    row = conn.execute(
        "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_logical_emit_message(false, %s, '') END",
        [HEARTBEAT_PREFIX],
    ).fetchone()
    assert row is not None
    return None if row[0] is None else Lsn.parse(row[0])
