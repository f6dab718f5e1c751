"""Upsert tables in Iceberg: what two independent readers see after each batch."""

from __future__ import annotations

from levada.schema import Kind
from levada.values import Durability, Lsn, Watermark
from tests.destinations.conftest import Lake
from tests.destinations.memory import MemoryRows, Stream, column, table

ORDERS = table(
    column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "n", Kind.DECIMAL, precision=12, scale=2)
)


def mark(lake: Lake, lsn: int, epoch: int = 1) -> Watermark:
    return Watermark(lake.context.pipeline, epoch, Lsn(lsn))


def test_copy_then_changes(lake: Lake) -> None:
    """A copy and a batch of changes leave the last state of each row, and the watermark of the batch."""
    destination = lake.destination()
    rows = MemoryRows(ORDERS, [{"id": 1, "item": "a"}, {"id": 2, "item": "b"}], [{"id": 3, "item": "c"}])
    assert destination.write_table_rows(ORDERS, rows, mark(lake, 1000)) is Durability.DURABLE
    assert destination.applied(ORDERS.id) == mark(lake, 1000)
    stream = Stream(ORDERS)
    stream.update(id=1, item="A")
    stream.delete(id=2)
    stream.insert(id=4, item="d")
    batch = stream.batch()
    destination.write_events(batch, mark(lake, batch.until))
    assert [(r["id"], r["item"]) for r in lake.rows()] == [(1, "A"), (3, "c"), (4, "d")]
    assert destination.applied(ORDERS.id) == mark(lake, batch.until)
    assert lake.destination().applied(ORDERS.id) == mark(lake, batch.until)
