"""Kills in the middle of a write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from levada.destinations import Ordering
from levada.testing.destinations.child import AFTER, RETURNED, Applying, Copying, kill_in_child
from levada.testing.destinations.steps import (
    LONG,
    ORDERS,
    OpenDestination,
    check,
    copied,
    copy,
    in_child,
    order_rows,
    write,
)
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows
from levada.testing.source import COPIED, Source
from levada.values import QualifiedTable, TableId


class Crashes:
    """A process that is killed leaves all of a write, or nothing."""

    @pytest.mark.parametrize("at", [0, 1, AFTER], ids=["first", "second", "read"])
    def test_a_copy_that_is_killed(
        self, place: DestinationPlace, start: OpenDestination, source: Source, at: int
    ) -> None:
        """After a kill at any point of a copy there is no watermark, and the copy is written again."""
        orders = source.add(ORDERS)
        rows = ArrowRows.of(ORDERS, order_rows(2), order_rows(3)[2:])
        kill_in_child(in_child(place), Copying(orders.target, rows, source.mark(int(COPIED)), at))
        destination = start()
        assert destination.applied(ORDERS.id) is None
        destination.drop_table_for_copy(orders.target, 1)
        copy(destination, source, orders, rows)
        check(place, orders, order_rows(3))

    @pytest.mark.parametrize("at", [0, 2, AFTER, RETURNED], ids=["first", "third", "read", "returned"])
    def test_a_batch_that_is_killed(
        self, place: DestinationPlace, start: OpenDestination, source: Source, at: int
    ) -> None:
        """After a kill at any point of a batch the table has all or nothing of it, and the batch comes again."""
        child = in_child(place)
        orders = copied(start(), source)
        orders.update(old={"id": 1}, id=10, item="moved", note=None, unchanged=[3])
        orders.delete(id=2)
        orders.insert(id=1, item="again", note=None)
        orders.update(id=3, item="three", note=None, unchanged=[3])
        batch = orders.batch()
        mark = source.mark(int(batch.until))
        kill_in_child(child, Applying(batch, mark, at))
        destination = start()
        done: list[Row] = [
            {"id": 1, "item": "again"},
            {"id": 3, "item": "three", "note": LONG},
            {"id": 10, "item": "moved", "note": LONG},
        ]
        if destination.capabilities.watermark:
            applied = destination.applied(ORDERS.id)
            assert applied in ((mark,) if at == RETURNED else (mark, source.mark(int(COPIED))))
            check(place, orders, done if applied == mark else order_rows(3))
        write(destination, source, batch)
        check(place, orders, done)

    @pytest.mark.parametrize("at", [0, 2, AFTER, RETURNED], ids=["first", "third", "read", "returned"])
    def test_a_batch_of_several_tables_that_is_killed(
        self, place: DestinationPlace, start: OpenDestination, source: Source, at: int
    ) -> None:
        """With Ordering.PIPELINE, all tables have the transactions of a killed batch, or none has any of them."""
        child, destination = in_child(place), start()
        if destination.capabilities.ordering is not Ordering.PIPELINE or not destination.capabilities.watermark:
            pytest.skip("the destination does not write several tables in one commit")
        parts = [
            source.add(replace(ORDERS, id=TableId(17300 + n), name=QualifiedTable("public", f"part_{n}")))
            for n in range(3)
        ]
        for part in parts:
            copy(destination, source, part, ArrowRows.of(part.schema, order_rows(2)))
        for turn in range(3):
            with source.transaction():
                for part in parts:
                    part.insert(id=10 + turn, item="in each", note=None)
                    part.update(id=1, item=f"turn {turn}", note=None, unchanged=[3])
        batch = source.batch(*parts)
        mark = source.mark(int(batch.until))
        kill_in_child(child, Applying(batch, mark, at))
        added: list[Row] = [{"id": 10 + turn, "item": "in each"} for turn in range(3)]
        done: list[Row] = [{"id": 1, "item": "turn 2", "note": LONG}, order_rows(2)[1], *added]
        again = start()
        applied = {again.applied(part.schema.id) for part in parts}
        assert applied in ({mark}, {source.mark(int(COPIED))})
        for part in parts:
            check(place, part, done if applied == {mark} else order_rows(2))
        write(again, source, batch)
        for part in parts:
            check(place, part, done)
