"""Sessions that Levada ends, because their processes were stopped or they hold a slot, and those it waits for."""

from __future__ import annotations

import logging
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


_log = logging.getLogger(__name__)


def courtesy_lock(conn: psycopg.Connection[Any], key: str) -> None:
    """Take an advisory lock for the rest of the transaction, or continue without it after five seconds.

    The lock keeps processes that start simultaneously from failing on each other. Correctness never depends on it,
    because every role may take it and hold it forever.
    """
    try:
        with conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '5s'")
            conn.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, 0))", [key])
    except psycopg.errors.LockNotAvailable:
        _log.warning("another session holds the advisory lock %r: continuing without it", key)
