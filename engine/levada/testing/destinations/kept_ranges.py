"""Copies that are interrupted, and continued by another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
import pytest

from levada.copy.rows import CopiedRows, FinishedRange, RangeKeeper
from levada.destinations import Destination
from levada.errors import Transient
from levada.testing.destinations.steps import ORDERS, OpenDestination, apply, check, copied, copy, order_rows, replacing
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows
from levada.testing.source import COPIED, Source, SourceTable

T = TypeVar("T")

_KEPT = "range-1"

_MOVED: list[Row] = [{"id": 4, "item": "item 4"}, {"id": 9, "item": "moved"}]
"""The second range, which is read in the second snapshot."""
_CHANGED: list[Row] = [{"id": 2, "item": "two"}, {"id": 9, "item": "nine", "note": "n"}]
"""The rows that changed between the snapshots and exist in the second. Row 3 was deleted."""
_END = [order_rows(1)[0], *_CHANGED[:1], _MOVED[0], _CHANGED[1]]


class RangesOfTwoSnapshots(ArrowRows):
    """A copy of the table of orders that ends after its first range, and then one that continues it.

    The first range has the rows 1 to 3. ``kept_place`` is that of the copy that is continued.
    """

    def __init__(self, kept_place: str | None = None) -> None:
        first, ranges = order_rows(3), [order_rows(3)] if kept_place is None else [_MOVED, _CHANGED]
        super().__init__(ORDERS, *(ArrowRows.of(ORDERS, rows).batches().read_all() for rows in ranges))
        self.kept_place = kept_place
        self._continues, self._first_rows = kept_place is not None, len(first)

    def map_ranges(self, fn: Callable[[pa.RecordBatchReader], T], keeper: RangeKeeper[T]) -> CopiedRows[T]:
        """Keep the first range and end the copy, or read the others."""
        if not self._continues:
            [first] = self.map_partitions(fn)
            # A task whose result was lost runs twice, and its rows count once.
            keeper.save(_KEPT, FinishedRange(self.map_partitions(fn)[0], self._first_rows, 0))
            keeper.save(_KEPT, FinishedRange(first, self._first_rows, 0))
            self.kept_place = keeper.place
            raise Transient("snapshot_gone", "the snapshot is gone")
        if keeper.place != self.kept_place:
            raise Transient("copy_outdated", "the destination has nothing of the earlier copy")
        kept = keeper.load(_KEPT)
        assert (kept.rows, kept.unrepresentable) == (self._first_rows, 0)
        second, changed = self.map_partitions(fn)
        keys = pa.table({"id": pa.array([2, 3, 9], ORDERS.arrow.field("id").type)})
        return CopiedRows(((kept.value,), (second,)), keys, (changed,), (_KEPT,))


class KeptRanges:
    """Finished ranges of a copy outlive the process, and become one state of the table with those that follow."""

    def test_an_interrupted_copy_continues(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """Its first copy takes the rows of the kept range, except those that changed since."""
        orders, first = source.add(ORDERS), RangesOfTwoSnapshots()
        with pytest.raises(Transient, match="gone"):
            copy(_keeping(start), source, orders, first)
        again = start()
        assert again.applied(ORDERS.id) is None
        copy(again, source, orders, RangesOfTwoSnapshots(first.kept_place))
        check(place, orders, _END)
        _changes(place, start, source, orders)

    def test_an_interrupted_shadow_copy_continues(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """The table serves its own rows meanwhile."""
        _keeping(start)
        destination = replacing(start)
        orders, first, mark = copied(destination, source, n=2), RangesOfTwoSnapshots(), source.mark(int(COPIED) + 1)
        with pytest.raises(Transient, match="gone"):
            destination.copy_replacement(orders.target, first, mark)
        check(place, orders, order_rows(2))
        again = start()
        assert again.copy_replacement(orders.target, RangesOfTwoSnapshots(first.kept_place), mark)
        check(place, orders, order_rows(2))
        assert again.swap_replacement(ORDERS.id, mark)
        check(place, orders, _END)
        _changes(place, start, source, orders)

    def test_a_copy_that_begins_again_keeps_nothing(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """The kept range is neither in the table nor found by a third copy."""
        orders, first = source.add(ORDERS), RangesOfTwoSnapshots()
        with pytest.raises(Transient, match="gone"):
            copy(_keeping(start), source, orders, first)
        copy(start(), source, orders, ArrowRows.of(ORDERS, order_rows(1)))
        check(place, orders, order_rows(1))
        start().drop_table_for_copy(orders.target, 1)
        with pytest.raises(Transient, match="nothing of the earlier copy"):
            copy(start(), source, orders, RangesOfTwoSnapshots(first.kept_place))


def _keeping(start: OpenDestination) -> Destination:
    destination = start()
    if not destination.capabilities.keeps_ranges:
        pytest.skip("the destination keeps no finished ranges")
    return destination


def _changes(place: DestinationPlace, start: OpenDestination, source: Source, orders: SourceTable) -> None:
    """Apply changes to rows of each range."""
    orders.update(id=1, item="one", note=None)
    orders.update(id=2, item="TWO", note=None)
    orders.delete(id=9)
    apply(start(), source, orders)
    check(place, orders, [{"id": 1, "item": "one"}, {"id": 2, "item": "TWO"}, _MOVED[0]])
