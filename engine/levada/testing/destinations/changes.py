"""Batches of changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from levada.destinations import Ordering
from levada.errors import NeedsOperator
from levada.schema.partitions import Box, Condition, End, Region
from levada.testing.destinations.steps import (
    LONG,
    ORDERS,
    OpenDestination,
    apply,
    check,
    check_error,
    copied,
    copy,
    order_rows,
    write,
)
from levada.testing.place import DestinationPlace
from levada.testing.rows import ArrowRows
from levada.testing.source import COPIED, Source
from levada.values import QualifiedTable, TableId, TableMode


class Changes:
    """Truncates, changed keys, unchanged values, large batches and several threads."""

    def test_truncate(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A TRUNCATE removes what was before it, in the batch and in the table, and nothing that came after it."""
        destination = start()
        orders = copied(destination, source)
        with source.transaction():
            orders.insert(id=5, item="gone", note=None)
            orders.truncate()
            orders.insert(id=1, item="after", note=None)
        orders.insert(id=6, item="six", note=None)
        batch = orders.batch()
        for each in (destination, start()):
            write(each, source, batch)
            check(place, orders, [{"id": 1, "item": "after"}, {"id": 6, "item": "six"}])
        orders.truncate()
        orders.truncate()
        apply(destination, source, orders)
        assert place.rows(orders.target) == []
        orders.insert(id=1, item="again", note=None)
        apply(start(), source, orders)
        check(place, orders, [{"id": 1, "item": "again"}])

    def test_rows_of_partitions(self, start: OpenDestination, source: Source) -> None:
        """The keys of a partition's rows are found by its bounds, after rows were changed, added and deleted."""
        destination = start()
        orders = copied(destination, source)
        if not destination.capabilities.finds_rows:
            pytest.skip("the destination does not find the rows of partitions")
        orders.update(id=1, item="other", note="one")
        orders.delete(id=3)
        orders.insert(id=4, item="item 4", note="n")
        orders.insert(id=5, item=None, note="n")
        apply(destination, source, orders)
        numbers = Condition((1,), (Box(("2",), ("5",)),))
        named = Condition((2,), (Box(values=("item 2", "other", None)),))
        unnamed = replace(named, negated=True)
        below = Condition((1,), (Box((End.LOWEST,), ("2",)), Box(("5",), (End.HIGHEST,))))
        found = {
            ((numbers,),): [2, 4],
            ((named,),): [1, 2, 5],
            ((unnamed,),): [4],
            ((numbers, named), (below, unnamed)): [2],
            ((below,),): [1, 5],
        }
        for parts, expected in found.items():
            for each in (destination, start()):
                keys = list(each.keys_in(orders.target, Region(parts)))
                assert sorted(key for batch in keys for key in batch.column("id").to_pylist()) == expected

    def test_keys_that_change(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A row that moves to another key leaves the old one. Keys are swapped and taken again, within a batch."""
        destination = start()
        orders = copied(destination, source)
        with source.transaction():
            orders.update(old={"id": 1}, id=10, item="item 1", note="one")
            orders.update(old={"id": 2}, id=1, item="item 2", note="two")
            orders.update(old={"id": 10}, id=2, item="item 1", note="one")
        orders.delete(id=3)
        orders.insert(id=3, item="three again", note="n")
        apply(destination, source, orders)
        swapped = [{"id": 1, "item": "item 2", "note": "two"}, {"id": 2, "item": "item 1", "note": "one"}]
        check(place, orders, [*swapped, {"id": 3, "item": "three again", "note": "n"}])
        orders.delete(id=1)
        orders.update(old={"id": 2}, id=1, item="there", note="n")
        apply(start(), source, orders)
        check(place, orders, [{"id": 1, "item": "there", "note": "n"}, {"id": 3, "item": "three again", "note": "n"}])

    def test_partial_rows(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """An unchanged TOASTed value stays what it was, from the batch or from the table, under another key too."""
        destination = start()
        orders = copied(destination, source)
        orders.update(id=1, item="one", note=None, unchanged=[3])
        orders.update(old={"id": 2}, id=20, item="twenty", note=None, unchanged=[3])
        orders.insert(id=4, item="four", note="long")
        orders.update(id=4, item="FOUR", note=None, unchanged=[3])
        apply(destination, source, orders)
        rows = [
            {"id": 1, "item": "one", "note": LONG},
            {"id": 20, "item": "twenty", "note": LONG},
            order_rows(3)[2],
            {"id": 4, "item": "FOUR", "note": "long"},
        ]
        check(place, orders, rows)
        orders.update(old={"id": 20}, id=21, item="twenty-one", note=None, unchanged=[3])
        apply(start(), source, orders)
        check(place, orders, [rows[0], {"id": 21, "item": "twenty-one", "note": LONG}, *rows[2:]])

    def test_a_partial_row_without_its_row(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """If the destination must know an unchanged value and does not, it raises and writes nothing."""
        destination = start()
        orders = copied(destination, source)
        if destination.effective_mode(orders.target) is not TableMode.UPSERT:
            pytest.skip("the destination does not have to know unchanged values")
        orders.insert(id=8, item="also in the batch", note=None)
        orders.update(id=77, item="?", note=None, unchanged=[3])
        with pytest.raises(NeedsOperator) as caught:
            apply(destination, source, orders)
        check_error(caught.value)
        if destination.capabilities.watermark:
            assert start().applied(ORDERS.id) == source.mark(int(COPIED))
            check(place, orders, order_rows(3))

    def test_large_batches(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A thousand changes of a few keys in one batch, in several transactions, give the last state of each."""
        destination = start()
        orders = copied(destination, source)
        for turn in range(4):
            with source.transaction():
                for number in range(4, 304):
                    if turn == 0:
                        orders.insert(id=number, item="new", note=None)
                    elif turn < 3 or number % 2:
                        orders.update(id=number, item=f"turn {turn}", note=str(number))
                    else:
                        orders.delete(id=number)
        apply(destination, source, orders)
        left = [{"id": n, "item": "turn 3", "note": str(n)} for n in range(5, 304, 2)]
        check(place, orders, [*order_rows(3), *left])

    def test_tables_of_several_threads(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Copies and batches of different tables run at the same time, and each table has its own rows."""
        destination = start()
        parts = [
            source.add(replace(ORDERS, id=TableId(17200 + n), name=QualifiedTable("public", f"thread_{n}")))
            for n in range(4)
        ]

        def copied(number: int) -> None:
            copy(destination, source, parts[number], ArrowRows.of(parts[number].schema, order_rows(number + 1)))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(copied, range(4)))
            for turn in range(3):
                for number, part in enumerate(parts):
                    part.insert(id=100 + turn, item=f"{number} {turn}", note=None)
                if destination.capabilities.ordering is Ordering.PIPELINE:
                    write(destination, source, source.batch(*parts))
                else:
                    list(pool.map(lambda b: write(destination, source, b), [p.batch() for p in parts]))
        for number, part in enumerate(parts):
            added = [{"id": 100 + turn, "item": f"{number} {turn}"} for turn in range(3)]
            check(place, part, [*order_rows(number + 1), *added])
