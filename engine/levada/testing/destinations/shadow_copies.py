"""Shadow copies next to a table that is served."""

from __future__ import annotations

import pytest

from levada.testing.destinations.steps import (
    LONG,
    ORDERS,
    OpenDestination,
    apply,
    check,
    copied,
    order_rows,
    replacing,
    write,
)
from levada.testing.place import DestinationPlace
from levada.testing.rows import ArrowRows, FailingRows
from levada.testing.source import COPIED, Source


class ShadowCopies:
    """Shadow copies that take the place of their table, or are dropped."""

    def test_a_shadow_copy(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """The table stays as it is until its shadow copy takes its place, with the changes of both."""
        destination = replacing(start)
        orders = source.add(ORDERS)
        unread = FailingRows(ArrowRows.of(ORDERS, order_rows(1)), 0, lambda: pytest.fail("the rows were read"))
        assert destination.copy_replacement(orders.target, unread, source.mark(int(COPIED))) is False
        orders = copied(destination, source)
        orders.insert(id=4, item="d", note=None)
        seen = orders.batch()
        write(destination, source, seen)
        mark = source.mark(int(seen.until))
        fresh = ArrowRows.of(ORDERS, [*order_rows(2), {"id": 4, "item": "D", "note": None}])
        assert destination.copy_replacement(orders.target, fresh, mark) is True
        check(place, orders, [*order_rows(3), {"id": 4, "item": "d"}])
        orders.update(id=2, item="both", note=None, unchanged=[3])
        batch = orders.batch()
        assert destination.write_replacement_events(batch, source.mark(int(batch.until))) is True
        assert destination.write_replacement_events(batch, source.mark(int(batch.until))) is True
        check(place, orders, [*order_rows(3), {"id": 4, "item": "d"}])
        write(destination, source, batch)
        assert destination.swap_replacement(ORDERS.id, source.mark(int(batch.until))) is True
        rows = [order_rows(1)[0], {"id": 2, "item": "both", "note": LONG}, {"id": 4, "item": "D"}]
        check(place, orders, rows)
        assert start().applied(ORDERS.id) == source.mark(int(batch.until))
        orders.delete(id=1)
        apply(start(), source, orders)
        check(place, orders, rows[1:])

    def test_a_dropped_shadow_copy(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A shadow copy is dropped any number of times without a change of its table, and cannot be used then."""
        destination = replacing(start)
        orders = copied(destination, source)
        destination.drop_replacement(ORDERS.id)
        assert destination.copy_replacement(orders.target, ArrowRows.of(ORDERS, []), source.mark(int(COPIED)))
        for _ in range(2):
            destination.drop_replacement(ORDERS.id)
        orders.insert(id=4, item="d", note=None)
        batch = orders.batch()
        mark = source.mark(int(batch.until))
        assert destination.write_replacement_events(batch, mark) is False
        assert destination.swap_replacement(ORDERS.id, mark) is False
        check(place, orders, order_rows(3))
