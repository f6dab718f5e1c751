"""Changes of columns and names at the source."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from levada import codes
from levada.errors import NeedsOperator
from levada.schema import Kind
from levada.testing.destinations.steps import (
    ORDERS,
    OpenDestination,
    apply,
    apply_or_skip,
    check,
    check_error,
    copied,
    copy,
    order_rows,
    write,
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

    def test_another_key(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Rows that were written under one key are found under another one, also by a process that knew the first.

        The columns of both exchange their names, and the former key goes afterwards.
        """
        two = table(column(1, "id", Kind.INT4), column(2, "new_id", Kind.INT8), column(3, "note", Kind.TEXT))
        destination, part = start(), source.add(two)
        rows: list[Row] = [{"id": i, "new_id": i << 33, "note": f"row {i}"} for i in range(1, 7)]
        copy(destination, source, part, ArrowRows.of(two, rows[:3], rows[3:]))
        part.update(**{**rows[0], "note": "before"})
        part.delete(id=2)
        apply(destination, source, part)
        other = start()
        other.applied(part.schema.id)
        before = place.rows(part.target)
        names = replace(two.columns[0], name="old_id"), replace(two.columns[1], name="id"), two.columns[2]
        part.alter(replace(part.schema, columns=names, key=(2,), identity_attnums=(2,)))
        part.update(old_id=3, id=3 << 33, note="after")
        part.delete(id=4 << 33)
        part.insert(old_id=3, id=9, note="the former key of another row")
        apply_or_skip(place, destination, source, part, before)
        expected: list[Row] = [
            {"old_id": 1, "id": 1 << 33, "note": "before"},
            {"old_id": 3, "id": 3 << 33, "note": "after"},
            {"old_id": 5, "id": 5 << 33, "note": "row 5"},
            {"old_id": 6, "id": 6 << 33, "note": "row 6"},
            {"old_id": 3, "id": 9, "note": "the former key of another row"},
        ]
        check(place, part, expected)
        part.insert(old_id=None, id=10, note="no former key")
        part.alter(replace(part.schema, columns=names[1:]))
        part.update(id=5 << 33, note="found")
        part.delete(id=9)
        apply(other, source, part)
        left: list[Row] = [
            {"id": 1 << 33, "note": "before"},
            {"id": 3 << 33, "note": "after"},
            {"id": 5 << 33, "note": "found"},
        ]
        check(place, part, [*left, {"id": 6 << 33, "note": "row 6"}, {"id": 10, "note": "no former key"}])

    @pytest.mark.parametrize("later", [None, 1])
    def test_another_key_that_does_not_fit(
        self, place: DestinationPlace, start: OpenDestination, source: Source, later: int | None
    ) -> None:
        """A key that is NULL in a row, or the same in two rows, raises ``key_changed``, and the rows stay."""
        two = table(column(1, "id", Kind.INT4), column(2, "other", Kind.INT4))
        destination, part = start(), source.add(two)
        copy(destination, source, part, ArrowRows.of(two, [{"id": 1, "other": 1}, {"id": 2, "other": later}]))
        before, former = place.rows(part.target), part.target
        part.alter(replace(part.schema, key=(2,), identity_attnums=(2,)))
        part.insert(id=3, other=3)
        if destination.effective_mode(part.target) is not TableMode.UPSERT:
            pytest.skip("a changelog has no key")
        batch = part.batch()
        for each in (destination, destination, start()):
            with pytest.raises(NeedsOperator) as raised:
                write(each, source, batch)
            assert raised.value.code == codes.KEY_CHANGED
            check_error(raised.value)
        assert place.rows(former) == before

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
