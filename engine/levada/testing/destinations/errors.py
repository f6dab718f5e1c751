"""Errors of reading, and values that cannot be stored."""

from __future__ import annotations

import pytest

from levada.errors import (
    AccessDenied,
    DestinationChanged,
    LevadaError,
    NeedsOperator,
    Permanent,
    Transient,
    Unrepresentable,
)
from levada.testing.destinations.child import AFTER
from levada.testing.destinations.steps import (
    ORDERS,
    OpenDestination,
    check,
    copied,
    copy,
    order_rows,
    write,
)
from levada.testing.failing import FailingBatch
from levada.testing.place import DestinationPlace
from levada.testing.rows import ArrowRows, FailingRows
from levada.testing.source import COPIED, Source
from levada.values import OnUnrepresentable


class Errors:
    """Errors keep their class, and a second attempt succeeds."""

    def test_an_unrepresentable_value(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A value that Arrow cannot hold raises Unrepresentable, and is NULL under the policy ``Null``."""
        destination = start()
        orders = copied(destination, source)
        orders.insert_unrepresentable(3, "too much", id=4, item="d", note=None)
        batch = orders.batch()
        with pytest.raises(Unrepresentable) as caught:
            destination.write_events(batch, source.mark(int(batch.until)))
        assert "too much" not in str(caught.value)
        if destination.capabilities.watermark:
            check(place, orders, order_rows(3))
            assert start().applied(ORDERS.id) == source.mark(int(COPIED))
        again = orders.batch(since=int(COPIED), policy=OnUnrepresentable.NULL)
        write(start(), source, again)
        check(place, orders, [*order_rows(3), {"id": 4, "item": "d"}])

    @pytest.mark.parametrize("kind", [Transient, NeedsOperator, AccessDenied, DestinationChanged, Permanent])
    def test_errors_keep_their_class(
        self, place: DestinationPlace, start: OpenDestination, source: Source, kind: type[LevadaError]
    ) -> None:
        """An error of reading passes through the destination, and a second attempt succeeds."""

        def fail() -> None:
            raise kind("made_up", "a made-up failure", hint="do nothing")

        destination, orders = start(), source.add(ORDERS)
        rows = ArrowRows.of(ORDERS, order_rows(2), order_rows(3)[2:])
        for at in (0, 1, 2):
            with pytest.raises(kind) as caught:
                copy(destination, source, orders, FailingRows(rows, at, fail))
            assert (type(caught.value), caught.value.code) == (kind, "made_up")
            destination.drop_table_for_copy(orders.target, 1)
        copy(destination, source, orders, rows)
        orders.insert(id=4, item="d", note=None)
        orders.delete(id=1)
        batch = orders.batch()
        for at in (0, 1, AFTER):
            with pytest.raises(kind) as caught:
                destination.write_events(FailingBatch(batch, at, fail), source.mark(int(batch.until)))
            assert (type(caught.value), caught.value.code) == (kind, "made_up")
        write(destination, source, batch)
        check(place, orders, [*order_rows(3)[1:], {"id": 4, "item": "d"}])
