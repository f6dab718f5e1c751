"""A table of orders in a lake, and the steps that many tests have in common."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from tests.destinations.memory import MemoryRows, Stream
from tests.rigs.lake import Lake

from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.retention import RetentionLimits
from levada.destinations.iceberg.table import IcebergTable
from levada.schema import Kind, ReplicatedTableSchema, TableTarget
from levada.testing import column, table
from levada.values import Durability, QualifiedTable, TableId, TableMode

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))


def copy(
    lake: Lake,
    destination: IcebergDestination,
    schema: ReplicatedTableSchema = ORDERS,
    n: int = 3,
    *,
    mode: TableMode = TableMode.UPSERT,
    name: QualifiedTable | None = None,
) -> Stream:
    """Copy rows 1 to n as of LSN 1000. The stream returned has the changes after that."""
    target = TableTarget.of(schema, mode, name)
    rows = [{"id": i, "item": f"item {i}", "note": "x" * 100} for i in range(1, n + 1)]
    destination.write_table_rows(target, MemoryRows(schema, rows[::2], rows[1::2]), lake.mark(1000))
    return Stream(schema, mode=mode)


def apply(lake: Lake, destination: IcebergDestination, stream: Stream, *, epoch: int = 1) -> None:
    """Apply what the stream has since the last batch."""
    batch = stream.batch()
    assert destination.write_events(batch, lake.mark(batch.until, epoch)) is Durability.DURABLE


def items(lake: Lake) -> dict[int, Any]:
    """Return the items that both readers see, by id."""
    return {r["id"]: r["item"] for r in lake.rows()}


CURRENT_SNAPSHOT_ONLY = RetentionLimits(newest=1, together=1, intervals=(), longest=0)
"""Let maintenance expire all snapshots that it may."""


TWIN = replace(ORDERS, id=TableId(17000), name=QualifiedTable("other", "orders"))


RECREATED = replace(ORDERS, id=TableId(17001))


@dataclass
class Source:
    """A source with these tables."""

    identity: str = "7301/5"
    tables: tuple[ReplicatedTableSchema, ...] = (ORDERS, TWIN, RECREATED)
    former: tuple[str, ...] = ()
    machine_ahead_s: float = 0
    """The seconds by which the machine's clock is ahead of the source's."""

    def __str__(self) -> str:
        return self.identity

    def is_former(self, identity: str) -> bool:
        return identity in self.former

    def clock(self) -> float:
        return time.time() - self.machine_ahead_s

    def has_table(self, table: TableId) -> bool:
        return self.table_name(table) is not None

    def table_name(self, table: TableId) -> QualifiedTable | None:
        return next((schema.name for schema in self.tables if schema.id == table), None)


def the_table(destination: IcebergDestination) -> IcebergTable:
    """Return the table with its newest metadata."""
    found = destination._known.states[ORDERS.id].table
    assert found is not None
    found.refresh()
    return found
