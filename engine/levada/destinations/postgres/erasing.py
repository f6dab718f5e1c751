"""Erases keys from a table in PostgreSQL: by DELETE, and by a VACUUM that removes the dead rows.

The server keeps a dead row after DELETE until VACUUM, and common values of columns in its statistics until ANALYZE.
"""

from __future__ import annotations

import logging
from typing import Final

from psycopg import sql

from levada.destinations.erasure import Erased, Erasure, Remaining
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.state import TableRow
from levada.destinations.postgres.upsert import delete_keys
from levada.errors import LevadaError
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)

_STANDBYS: Final = Remaining("the WAL, standbys and backups of the destination's server", "they are removed there")


def delete_rows(connection: WatchedConnection, row: TableRow, schema: ReplicatedTableSchema, wanted: Erasure) -> Erased:
    """Delete the rows in the transaction of the caller, or count them."""
    rows = delete_keys(connection, row.place, row.layout, schema, wanted.keys, counted=wanted.dry_run)
    return Erased(rows)


def places(place: QualifiedTable) -> list[Remaining]:
    """Return what may still have the rows at the server. VACUUM overwrites no bytes in the free space of a page."""
    where = f"the free space in pages of {place}, and its dead rows and statistics if it could not be vacuumed"
    return [Remaining(where, f"VACUUM (FULL, ANALYZE) {place.sql}"), _STANDBYS]


def vacuum(server: PostgresConnection, place: QualifiedTable) -> None:
    """Remove the dead rows of a table, and compute its statistics again. A failure is logged and changes nothing."""
    doing = f"vacuuming {place}"
    try:
        with source_errors(doing), server.connect(application="erase") as connection:
            connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(identifier(place)))
    except LevadaError as error:
        _log.warning("%s failed, so dead rows stay: %s", doing, error.message)
