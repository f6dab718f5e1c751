"""The repair of a table: the rows that differ from the source are written again, in one transaction of the caller.

The engine applies no change of the table meanwhile. Until the whole table was compared again, its watermark stays as it
was: the changes from there on lead to the same rows, whether or not they were repaired.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from levada.destinations.checksum_sql import at_places, joined_places
from levada.destinations.postgres.columns import Layout
from levada.destinations.postgres.fixed_table import PostgresVersion
from levada.destinations.postgres.intact import check_intact, is_guarded, read_storage
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.state import State, TableRow
from levada.destinations.postgres.types import equal_is_identical
from levada.destinations.postgres.upsert import replace_rows
from levada.destinations.verification import KEY_HASH, PLACE, Comparison, Repair, is_kept
from levada.errors import Transient
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable

_STEP: Final = 20_000
"""The rows that one statement deletes."""


def repair_rows(
    connection: WatchedConnection,
    place: QualifiedTable,
    layout: Layout,
    schema: ReplicatedTableSchema,
    fixed: PostgresVersion,
    repair: Repair,
    rows: Iterable[pa.RecordBatch],
) -> None:
    """Delete the rows that the source does not have, and write ``rows``.

    A row that gets other values is updated, so that foreign keys to it hold. Raise Transient ``commit_conflict`` if
    another session changed a row since it was compared.
    """
    back = pc.is_in(repair.gone[KEY_HASH], repair.written)
    extra = repair.gone.filter(pc.invert(back))
    if not all(equal_is_identical(c.type) for c in layout.columns if c.attnum in schema.key):
        # A key such as 1.00 has another hash than 1.0, and its row is one that gets other values.
        replace_rows(connection, place, layout, schema, rows)
        _delete(connection, place, fixed, repair.comparison, extra)
        return
    # Deleted first, so that no unique value of theirs is in the way.
    if _delete(connection, place, fixed, repair.comparison, extra) != extra.num_rows:
        raise Transient("commit_conflict", f"another session changed {place}")
    replace_rows(connection, place, layout, schema, rows)


def _delete(
    connection: WatchedConnection, place: QualifiedTable, fixed: PostgresVersion, comparison: Comparison, rows: pa.Table
) -> int:
    """Delete those of the rows that are still at their places. Return their number."""
    deleted = 0
    fixed.set_formats(connection)
    # The planner expects each row in a page that has to be read by itself.
    connection.execute("SET LOCAL enable_seqscan = off")
    for first in range(0, rows.num_rows, _STEP):
        some = rows.slice(first, _STEP)
        # A place may have another row by now.
        same = fixed.statements(comparison).of_keys(some[KEY_HASH].to_pylist())
        condition = f"{at_places(joined_places(some[PLACE]))} AND {same}"
        statement = sql.SQL("DELETE FROM {} WHERE {}").format(identifier(place), sql.SQL(condition))
        deleted += connection.execute(statement).rowcount
    connection.execute("SET LOCAL enable_seqscan = on")
    return deleted


def guard(connection: WatchedConnection, state: State, row: TableRow, repair: Repair) -> None:
    """Guard the table. If another session may have changed it, it stays changed until its repair is accepted."""
    if is_kept(partial(check_intact, connection, row), repair):
        return
    if not is_guarded(connection, row):
        state.guard(connection, row.place)
    known = row.storage or read_storage(connection, row)
    state.save(connection, row, replace(row, storage=known.unaccepted()))
