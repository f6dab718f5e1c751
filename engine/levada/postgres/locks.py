"""Advisory locks, which any role may hold."""

from __future__ import annotations

import logging
from typing import Any

import psycopg

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
