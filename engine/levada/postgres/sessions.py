"""Sessions that Levada ends: those of processes that were stopped or killed, and those that hold a slot."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg


def end_sessions(conn: psycopg.Connection[Any], pids: Collection[int]) -> None:
    """End the sessions of these PIDs.

    Where a setting makes sessions continue as another role than the login, either may be the one that is permitted.
    """
    for pid in pids:
        try:
            with conn.transaction():
                _end(conn, pid)
        except psycopg.errors.InsufficientPrivilege:
            with conn.transaction():
                role = conn.execute("SELECT current_setting('role')").fetchall()[0][0]
                conn.execute("SET LOCAL ROLE NONE")
                _end(conn, pid)
                # In a savepoint the setting would last until the end of the transaction.
                conn.execute("SELECT set_config('role', %s, true)", [role])


def _end(conn: psycopg.Connection[Any], pid: int) -> None:
    conn.execute("SELECT pg_terminate_backend(%s)", [pid])
