"""Changes of columns and names at the source."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from levada.schema import Kind
from levada.testing.destinations.steps import (
    ORDERS,
    OpenDestination,
    apply,
    apply_or_skip,
    check,
    copied,
    copy,
    order_rows,
)
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows
from levada.testing.source import Source, column, table
from levada.values import QualifiedTable, TableMode


class SchemaChanges:
    """Columns that come, go, swap names and widen."""

    def test_columns_come_and_go(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Columns are added, renamed, dropped and reordered between the rows of one batch. Old rows keep values."""
        destination = start()
        orders = copied(destination, source)
        before = place.rows(orders.target)
        orders.insert(id=4, item="before", note="dropped later")
        added = column(4, "price", Kind.DECIMAL, precision=10, scale=2)
        orders.alter(replace(orders.schema, columns=(*ORDERS.columns, added)))
        orders.insert(id=5, item="with price", note="dropped later", price=Decimal("1.50"))
        orders.alter(
            replace(orders.schema, columns=(ORDERS.columns[0], added, replace(ORDERS.columns[1], name="name")))
        )
        orders.insert(id=6, price=None, name="renamed")
        apply_or_skip(place, destination, source, orders, before)
        rows: list[Row] = [{"id": i, "name": f"item {i}"} for i in (1, 2, 3)]
        rows += [{"id": 4, "name": "before"}, {"id": 5, "price": Decimal("1.50"), "name": "with price"}]
        rows.append({"id": 6, "name": "renamed"})
        check(place, orders, rows)
        orders.update(id=1, price=Decimal("0.01"), name=None, unchanged=[2])
        apply(start(), source, orders)
        check(place, orders, [{"id": 1, "price": Decimal("0.01"), "name": "item 1"}, *rows[1:]])

    def test_names_that_change_places(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Two columns swap their names, and a new column takes the name of a dropped one."""
        destination = start()
        orders = copied(destination, source)
        before = place.rows(orders.target)
        swapped = (ORDERS.columns[0], replace(ORDERS.columns[1], name="note"), replace(ORDERS.columns[2], name="item"))
        orders.alter(replace(orders.schema, columns=swapped))
        orders.insert(id=4, note="was item", item="was note")
        orders.alter(replace(orders.schema, columns=(*swapped[:2], column(4, "item", Kind.INT8))))
        orders.insert(id=5, note="five", item=5)
        apply_or_skip(place, destination, source, orders, before)
        rows: list[Row] = [{"id": i, "note": f"item {i}"} for i in (1, 2, 3)]
        check(place, orders, [*rows, {"id": 4, "note": "was item"}, {"id": 5, "note": "five", "item": 5}])

    def test_an_added_constant(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """After ADD COLUMN with a constant, rows from before have it, and later NULLs stay NULL."""
        destination = start()
        orders = copied(destination, source)
        before = place.rows(orders.target)
        orders.alter(replace(ORDERS, columns=(*ORDERS.columns, column(4, "n", Kind.INT4, missing_value="7"))))
        orders.insert(id=4, item="d", note=None, n=None)
        orders.delete(id=1)
        apply_or_skip(place, destination, source, orders, before)
        if destination.effective_mode(orders.target) is not TableMode.UPSERT:
            pytest.skip("a changelog has rows as they were written")
        check(place, orders, [*({**r, "n": 7} for r in order_rows(3)[1:]), {"id": 4, "item": "d"}])

    def test_widened_types(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A wider integer, float and numeric keep the values from before, and take the new ones."""
        narrow = table(
            column(1, "id", Kind.INT4),
            column(2, "f", Kind.FLOAT4),
            column(3, "d", Kind.DECIMAL, precision=10, scale=2),
        )
        wide = replace(
            narrow,
            columns=(
                column(1, "id", Kind.INT8),
                column(2, "f", Kind.FLOAT8),
                column(3, "d", Kind.DECIMAL, precision=14, scale=2),
            ),
        )
        destination, part = start(), source.add(narrow)
        first = {"id": 1, "f": 1.5, "d": Decimal("12345678.90")}
        copy(destination, source, part, ArrowRows.of(narrow, [first]))
        before = place.rows(part.target)
        part.insert(id=2, f=-0.25, d=Decimal("1.00"))
        part.alter(wide)
        last = {"id": 1 << 40, "f": 0.1, "d": Decimal("123456789012.34")}
        part.insert(**last)
        apply_or_skip(place, destination, source, part, before)
        check(place, part, [first, {"id": 2, "f": -0.25, "d": Decimal("1.00")}, last])

    def test_a_table_renamed_at_the_source(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """The destination knows a table by its OID, and keeps it under the name of the target."""
        orders = copied(start(), source)
        orders.name = ORDERS.name
        orders.alter(replace(ORDERS, name=QualifiedTable("public", "bills")))
        orders.insert(id=4, item="d", note=None)
        apply(start(), source, orders)
        check(place, orders, [*order_rows(3), {"id": 4, "item": "d"}])
