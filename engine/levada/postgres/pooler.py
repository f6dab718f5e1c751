"""Poolers such as PgBouncer between Levada and a server: how they are recognised.

A pooler carries no replication, and gives each transaction another session of the server, so that the settings of a
session are lost. Only transactions that make their own settings work through it.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

from levada.errors import LoginFailed
from levada.postgres.server_names import ServerNames
from levada.postgres.silence import WatchedConnection

REFUSED: Final = "unsupported startup parameter"
"""A part of PgBouncer's message about parameters that only a server knows, such as options and replication."""
HINT: Final = "set {host} to the address of {server} itself: a pooler keeps no session and carries no replication"

_SESSION: Final = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('search_path') = 'pg_catalog'"
_LIMITED: Final = """
SELECT pg_catalog.pg_backend_pid(), kept,
    CASE WHEN kept THEN pg_catalog.set_config('transaction_timeout', '0', false) END
FROM (SELECT pg_catalog.current_setting('search_path') = 'pg_catalog') AS session (kept)
"""
"""The same for a server that has transaction_timeout, which would end each copy that takes longer, at every attempt.

The setting cannot be among the connection's options, because a server that lacks it refuses the login.
"""


def refuses_options(error: psycopg.Error) -> bool:
    """Return True if a pooler has refused the options of the session."""
    return re.search(REFUSED, str(error)) is not None


def require_server(
    connection: WatchedConnection, where: str, names: ServerNames, *, limited: bool, pooled: bool
) -> None:
    """Raise LoginFailed ``pooler_unsupported`` if the session lacks its options, unless it may be ``pooled``.

    ``limited`` servers have transaction_timeout, from which the session is exempted. The PID that a proxy has reported
    may be another one than that of the session.
    """
    row = connection.execute(_LIMITED if limited else _SESSION).fetchone()
    assert row is not None
    if not row[1]:
        if pooled:
            return
        message = f"{where} is the address of a pooler, which ignores the settings of a session"
        raise LoginFailed("pooler_unsupported", message, hint=names.fill(HINT))
    connection.server_pid = row[0]
    connection.qualified = True
