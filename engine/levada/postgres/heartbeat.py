"""A logical message on a timer, so that the slot of a quiet database can advance."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from levada.postgres.failures import source_errors
from levada.values import Lsn

HEARTBEAT_PREFIX: Final = "levada_heartbeat"


@source_errors("writing a heartbeat")
def emit_heartbeat(conn: psycopg.Connection[Any]) -> Lsn | None:
    """Write a non-transactional logical message and return its LSN.

    Return None on a standby, which cannot write WAL.
    """
    # Without CASE a standby would call the function, which fails there.
    row = conn.execute(
        "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_logical_emit_message(false, %s, '') END",
        [HEARTBEAT_PREFIX],
    ).fetchone()
    assert row is not None
    return None if row[0] is None else Lsn.parse(row[0])
