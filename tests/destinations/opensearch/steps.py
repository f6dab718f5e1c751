"""A table of orders in OpenSearch, and the steps that its tests share."""

from __future__ import annotations

from tests.destinations.opensearch.place import Cluster

from levada.destinations.opensearch import OpenSearchDestination
from levada.schema import Kind
from levada.testing import ArrowRows, Source, SourceTable, column, table

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))


ROWS = [{"id": i, "item": f"item {i}", "note": None} for i in range(1, 4)]


def copied(cluster: Cluster, source: Source) -> SourceTable:
    """Copy three rows of the table of orders."""
    orders = source.add(ORDERS)
    cluster.started().write_table_rows(orders.target, ArrowRows.of(ORDERS, ROWS), source.mark(1000))
    return orders


def apply(destination: OpenSearchDestination, source: Source, part: SourceTable, epoch: int = 1) -> None:
    """Apply the changes since the last batch."""
    batch = part.batch()
    destination.write_events(batch, source.mark(int(batch.until), epoch))
