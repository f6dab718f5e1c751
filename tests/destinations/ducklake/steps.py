"""A table of orders in DuckLake, and the steps that its tests share."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.servers.ducklake import DuckLake

from levada.destinations.ducklake import DuckLakeDestination
from levada.errors import DestinationChanged, LevadaError
from levada.schema import Kind, ReplicatedTableSchema, TableTarget
from levada.testing import column, table
from levada.values import Durability, TableMode

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))


def copy(
    lake: DuckLake,
    destination: DuckLakeDestination,
    schema: ReplicatedTableSchema = ORDERS,
    n: int = 3,
    *,
    mode: TableMode = TableMode.UPSERT,
    lsn: int = 1000,
) -> Stream:
    """Copy rows 1 to n. The stream returned has the changes after that."""
    rows = [{"id": i, "item": f"item {i}", "note": "x" * 100} for i in range(1, n + 1)]
    target = TableTarget.of(schema, mode)
    assert (
        destination.write_table_rows(target, MemoryRows(schema, rows[::2], rows[1::2]), lake.mark(lsn))
        is Durability.DURABLE
    )
    return Stream(schema, lsn=lsn, taken=lsn, mode=mode)


def apply(lake: DuckLake, destination: DuckLakeDestination, stream: Stream, *, epoch: int = 1) -> None:
    """Apply what the stream has since the last batch."""
    batch = stream.batch()
    assert destination.write_events(batch, lake.mark(batch.until, epoch)) is Durability.DURABLE


def check_filters(connection: duckdb.DuckDBPyConnection, name: str, without: str = "") -> None:
    """Check that filters and bounds give the same rows as on a copy of the table in memory, which has no statistics.

    ``without`` is a column that is not checked.
    """
    connection.execute(f"CREATE OR REPLACE TABLE memory.main.plain AS SELECT * FROM {name}")
    columns = [f'"{c}"' for (c, *_) in connection.execute(f"DESCRIBE {name}").fetchall() if c != without]
    wrong = []
    for c in columns:
        texts = [f"{c} IS NULL", f"{c} IS NOT NULL"]
        values = connection.execute(f"SELECT DISTINCT {c}::varchar, typeof({c}) FROM memory.main.plain").fetchall()
        for value, kind in values:
            if value is not None:
                quoted = "'" + value.replace("'", "''") + "'::" + kind
                texts += [f"{c} {op} {quoted}" for op in ("=", "<", ">=")]
        asked = [f"SELECT list(id ORDER BY id), count({c}) FROM TABLE_ WHERE {text}" for text in texts]
        asked += [f"SELECT count(*), min({c})::varchar, max({c})::varchar FROM TABLE_"]
        for query in asked:
            seen = connection.execute(query.replace("TABLE_", name)).fetchall()
            if seen != connection.execute(query.replace("TABLE_", "memory.main.plain")).fetchall():
                wrong.append((query, str(seen)[:100]))
    assert not wrong, "\n".join(map(str, wrong))


def changed(destination: DuckLakeDestination) -> str:
    """Return the code of the error that the check of the table raises."""
    with pytest.raises(DestinationChanged) as caught:
        destination.maintain(ORDERS.id)
    return caught.value.code


def code_of(run: Callable[[], object]) -> str:
    """Return the code of the error that the call raises."""
    with pytest.raises(LevadaError) as caught:
        run()
    return caught.value.code
