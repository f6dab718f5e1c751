"""Advisory locks that any role may hold."""

from __future__ import annotations

import logging
from typing import Any

import psycopg

_log = logging.getLogger(__name__)


def courtesy_lock(conn: psycopg.Connection[Any], key: str) -> None:
    """Take an advisory lock for the rest of the transaction, or go on without it after a few seconds.

    It keeps processes that start at the same time from failing on each other. It protects nothing, as every role may
    take it and hold it for ever.
    """
    try:
        with conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '5s'")
            conn.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, 0))", [key])
    except psycopg.errors.LockNotAvailable:
        _log.warning("another session holds the advisory lock %r: going on without it", key)
