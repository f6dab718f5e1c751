"""Erases keys from a table in PostgreSQL: by DELETE, and by a VACUUM that removes the dead rows.

See `levada.postgres.vacuum`.
"""

from __future__ import annotations

from typing import Final

from levada.destinations.erasure import Erased, Erasure, Remaining
from levada.destinations.postgres.state import TableRow
from levada.destinations.postgres.upsert import delete_keys
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable

_STANDBYS: Final = Remaining("the WAL, standbys and backups of the destination's server", "they are removed there")


def delete_rows(connection: WatchedConnection, row: TableRow, schema: ReplicatedTableSchema, wanted: Erasure) -> Erased:
    """Delete the rows in the transaction of the caller, or count them."""
    rows = delete_keys(connection, row.place, row.layout, schema, wanted.keys, counted=wanted.dry_run)
    return Erased(rows)


def places(place: QualifiedTable) -> list[Remaining]:
    """Return what may still have the rows at the server. VACUUM overwrites no bytes in the free space of a page."""
    where = f"the free space in pages of {place}, and its dead rows and statistics if it could not be vacuumed"
    return [Remaining(where, f"VACUUM (FULL, ANALYZE) {place.sql}"), _STANDBYS]
