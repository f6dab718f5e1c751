"""Replays, watermarks, requests for durability and epochs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from levada.errors import StaleEpoch
from levada.segments.batch import DurabilityRequest
from levada.testing.destinations.steps import (
    ORDERS,
    OpenDestination,
    apply,
    check,
    copied,
    copy,
    order_rows,
    write,
)
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows
from levada.testing.source import COPIED, Source
from levada.values import TableId


class Watermarks:
    """Batches that come again, and older drivers."""

    def test_replay_of_every_prefix(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A batch comes again after each crash with more behind it. Each time the rows are those of the source."""
        orders = copied(start(), source)
        steps: list[Callable[[], None]] = [
            lambda: orders.insert(id=9, item="new", note=None),
            lambda: orders.update(id=9, item="newer", note="n"),
            lambda: orders.update(old={"id": 9}, id=10, item="moved", note="n"),
            lambda: orders.delete(id=1),
            lambda: orders.insert(id=1, item="again", note=None),
            lambda: orders.update(old={"id": 10}, id=9, item="back", note="n"),
            lambda: orders.delete(id=2),
        ]
        third = order_rows(3)[2]
        first_two = order_rows(2)
        n = "n"
        expected: list[list[Row]] = [
            [*first_two, third, {"id": 9, "item": "new"}],
            [*first_two, third, {"id": 9, "item": "newer", "note": n}],
            [*first_two, third, {"id": 10, "item": "moved", "note": n}],
            [first_two[1], third, {"id": 10, "item": "moved", "note": n}],
            [{"id": 1, "item": "again"}, first_two[1], third, {"id": 10, "item": "moved", "note": n}],
            [{"id": 1, "item": "again"}, first_two[1], third, {"id": 9, "item": "back", "note": n}],
            [{"id": 1, "item": "again"}, third, {"id": 9, "item": "back", "note": n}],
        ]
        for step, rows in zip(steps, expected, strict=True):
            step()
            destination = start()
            batch = orders.batch(since=int(COPIED))
            for _ in range(2):
                write(destination, source, batch)
                check(place, orders, rows)

    def test_watermarks(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """The watermark is that of the last commit, in a new object too, and a replay never moves it back."""
        destination = start()
        if not destination.capabilities.watermark:
            assert destination.applied(ORDERS.id) is None
            pytest.skip("the destination stores no watermarks")
        assert destination.applied(TableId(1)) is None
        orders = copied(destination, source)
        assert destination.applied(ORDERS.id) == source.mark(int(COPIED)) == start().applied(ORDERS.id)
        orders.insert(id=4, item="d", note=None)
        first = orders.batch()
        write(destination, source, first)
        orders.delete(id=4)
        apply(destination, source, orders)
        for each in (destination, start()):
            assert each.applied(ORDERS.id) == source.mark(orders.taken)
            write(each, source, first)
            assert each.applied(ORDERS.id) == source.mark(orders.taken)
        empty = orders.batch()
        write(start(), source, empty)
        assert start().applied(ORDERS.id) == source.mark(int(empty.until))
        check(place, orders, order_rows(3))

    def test_a_request_for_durability(self, start: OpenDestination, source: Source, place: DestinationPlace) -> None:
        """A batch that only asks changes nothing and is answered, in the end with DURABLE."""
        destination = start()
        orders = copied(destination, source)
        write(destination, source, DurabilityRequest([orders.target], COPIED))
        check(place, orders, order_rows(3))

    def test_a_stale_epoch(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Once a newer driver has committed, no write of an older one has any effect."""
        older, newer = start(), start()
        if not older.capabilities.watermark:
            pytest.skip("the destination stores no watermarks")
        orders = copied(older, source)
        orders.insert(id=4, item="newer", note=None)
        batch = orders.batch()
        newer.write_events(batch, source.mark(int(batch.until), epoch=2))
        orders.insert(id=5, item="older", note=None)
        batch = orders.batch()
        for destination in (older, start()):
            with pytest.raises(StaleEpoch):
                destination.write_events(batch, source.mark(int(batch.until), epoch=1))
            with pytest.raises(StaleEpoch):
                copy(destination, source, orders, ArrowRows.of(ORDERS, order_rows(1)))
            with pytest.raises(StaleEpoch):
                destination.drop_table_for_copy(orders.target, 1)
        check(place, orders, [*order_rows(3), {"id": 4, "item": "newer"}])
