"""Copies of whole tables."""

from __future__ import annotations

from dataclasses import replace

from levada.testing.destinations.steps import (
    ORDERS,
    OpenDestination,
    apply,
    check,
    copied,
    copy,
    order_rows,
)
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows
from levada.testing.source import Source
from levada.values import QualifiedTable, TableId


class Copies:
    """Copies, repeated copies and drops."""

    def test_an_empty_table_exists(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A copy without rows, with and without partitions, makes the table. Changes follow."""
        cases: tuple[tuple[list[Row], ...], ...] = ((), ([],))
        for number, partitions in enumerate(cases):
            orders = source.add(
                replace(ORDERS, id=TableId(17000 + number), name=QualifiedTable("public", f"t{number}"))
            )
            destination = start()
            destination.drop_table_for_copy(orders.target, 1)
            copy(destination, source, orders, ArrowRows.of(orders.schema, *partitions))
            assert place.rows(orders.target) == []
            orders.insert(id=1, item="a", note=None)
            apply(start(), source, orders)
            check(place, orders, [{"id": 1, "item": "a"}])

    def test_a_copy_and_its_changes(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Inserts, updates and deletes after a copy give the source's rows, also from a new object."""
        orders = copied(start(), source)
        orders.update(id=1, item="A", note="n")
        orders.delete(id=2)
        orders.insert(id=4, item="d", note=None)
        apply(start(), source, orders)
        orders.update(id=4, item=None, note="")
        apply(start(), source, orders)
        check(place, orders, [{"id": 1, "item": "A", "note": "n"}, order_rows(3)[2], {"id": 4, "note": ""}])

    def test_dropping_twice(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A table that is not there is dropped without an error, and a copy after a drop has its own rows only."""
        destination = start()
        orders = source.add(ORDERS)
        destination.drop_table_for_copy(orders.target, 1)
        copy(destination, source, orders, ArrowRows.of(ORDERS, order_rows(3)))
        for _ in range(2):
            destination.drop_table_for_copy(orders.target, 1)
        assert destination.applied(ORDERS.id) is None
        destination.drop_table_for_copy(orders.target)
        copy(start(), source, orders, ArrowRows.of(ORDERS, order_rows(1)))
        check(place, orders, order_rows(1))

    def test_a_copy_again_replaces_the_rows(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """After a crash a copy is dropped and written again, in more and other partitions."""
        orders = copied(start(), source, n=3)
        destination = start()
        destination.drop_table_for_copy(orders.target, 1)
        copy(destination, source, orders, ArrowRows.of(ORDERS, order_rows(2)[1:], [], order_rows(1)))
        orders.update(id=2, item="two", note="n")
        apply(destination, source, orders)
        check(place, orders, [order_rows(1)[0], {"id": 2, "item": "two", "note": "n"}])
