"""The table of the suite, and the steps that its tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from levada import codes
from levada.destinations import Destination, TableTarget
from levada.errors import LevadaError, NeedsOperator
from levada.schema import Kind
from levada.segments.batch import DurabilityRequest, EventBatch
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows
from levada.testing.source import COPIED, Source, SourceTable, column, table
from levada.values import Durability, Watermark

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
LONG = "x" * 3000

OpenDestination = Callable[[], Destination]


def order_rows(n: int) -> list[Row]:
    """Return the rows 1 to ``n`` of the table of orders."""
    return [{"id": i, "item": f"item {i}", "note": LONG} for i in range(1, n + 1)]


def copy(destination: Destination, source: Source, part: SourceTable, rows: ArrowRows) -> None:
    """Copy the rows as of the LSN ``COPIED``, and wait until they are durable."""
    mark = source.mark(int(COPIED))
    durability = destination.write_table_rows(part.target, rows, mark)
    _await_durable(destination, durability, part.target, mark)


def copied(destination: Destination, source: Source, n: int = 3) -> SourceTable:
    """Copy rows 1 to ``n`` of the table of orders, in two partitions."""
    orders = source.add(ORDERS)
    copy(destination, source, orders, ArrowRows.of(ORDERS, order_rows(n)[::2], order_rows(n)[1::2]))
    return orders


def apply(destination: Destination, source: Source, part: SourceTable) -> None:
    """Apply the table's changes since its last batch."""
    write(destination, source, part.batch())


def write(destination: Destination, source: Source, batch: EventBatch) -> None:
    """Write the batch, and wait until it is durable."""
    mark = source.mark(int(batch.until))
    targets = [batch.changes(t).target for t in batch.tables]
    durability = destination.write_events(batch, mark)
    for target in targets:
        _await_durable(destination, durability, target, mark)


def _await_durable(destination: Destination, durability: Durability, target: TableTarget, mark: Watermark) -> None:
    for _ in range(1000):
        assert isinstance(durability, Durability)
        if durability is Durability.DURABLE:
            return
        durability = destination.write_events(DurabilityRequest([target], mark.lsn), mark)
    raise AssertionError("an accepted write did not become durable within 1000 requests")


def check(place: DestinationPlace, part: SourceTable, rows: list[Row]) -> None:
    """Check that the table has these rows and no others."""
    assert place.rows(part.target) == place.expected(part.schema, rows)


def check_error(error: LevadaError) -> None:
    """Check that the error has a code and a hint."""
    assert error.code
    assert error.hint, "an error that needs a person has a hint"


def in_child(place: DestinationPlace) -> Callable[[], Destination]:
    """Return the place's way to open a destination in another process. Skip the test if it has none."""
    if place.in_child is None:
        pytest.skip("the place has no `in_child`")
    return place.in_child


def replacing(start: OpenDestination) -> Destination:
    """Return a destination. Skip the test if it writes no shadow copies."""
    destination = start()
    if not destination.capabilities.replacement:
        pytest.skip("the destination writes no shadow copies")
    return destination


def apply_or_skip(
    place: DestinationPlace,
    destination: Destination,
    source: Source,
    part: SourceTable,
    before: list[dict[str, Any]],
) -> None:
    """Apply the table's changes. Skip the test if the destination refuses them without having written anything.

    It may refuse a change of columns, and another key.
    """
    former = TableTarget.of(part.versions[0][1], part.mode, part.name)
    try:
        apply(destination, source, part)
    except NeedsOperator as error:
        if error.code not in (codes.SCHEMA_CHANGE_UNSUPPORTED, codes.KEY_CHANGED):
            raise
        check_error(error)
        assert place.rows(former) == before
        pytest.skip(f"the destination refuses the change: {error.message}")
