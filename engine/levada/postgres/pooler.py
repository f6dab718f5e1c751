"""Poolers such as PgBouncer between Levada and a server: how they are recognised.

A pooler carries no replication, and gives each transaction another session of the server, so that the settings of a
session are lost. Only transactions that make their own settings work through it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from levada.errors import NeedsOperator
from levada.postgres.server_names import ServerNames

REFUSED: Final = "unsupported startup parameter"
"""A part of PgBouncer's message about parameters that only a server knows, such as options and replication."""
HINT: Final = "set {host} to the address of {server} itself: a pooler keeps no session and carries no replication"

_SESSION: Final = "SELECT pg_catalog.pg_backend_pid()"
_LIMITED: Final = """
SELECT pid, CASE pid WHEN %s THEN pg_catalog.set_config('transaction_timeout', '0', false) END
FROM pg_catalog.pg_backend_pid() AS pid
"""
"""The same for a server that has transaction_timeout, which would end each copy that takes longer, at every attempt.

The setting cannot be among the connection's options, because a server that lacks it refuses the login.
"""


def refuses_options(error: psycopg.Error) -> bool:
    """Return True if a pooler has refused the options of the session."""
    return re.search(REFUSED, str(error)) is not None


def require_server(connection: psycopg.Connection[Any], where: str, names: ServerNames, *, limited: bool) -> None:
    """Raise NeedsOperator ``pooler_unsupported`` unless the connection leads to the server itself.

    A pooler reports another PID than that of the server's session. ``limited`` servers have transaction_timeout, from
    which the session is exempted.
    """
    reported = connection.info.backend_pid
    row = (connection.execute(_LIMITED, [reported]) if limited else connection.execute(_SESSION)).fetchone()
    if row is not None and row[0] != reported:
        message = f"{where} is the address of a pooler, which gives each transaction another session of the server"
        raise NeedsOperator("pooler_unsupported", message, hint=names.fill(HINT))
