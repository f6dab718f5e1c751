"""States of a table that are kept under names."""

from __future__ import annotations

import pytest

from levada import codes
from levada.destinations import Destination, NamedCut
from levada.errors import StaleEpoch, Transient
from levada.testing.destinations.steps import ORDERS, OpenDestination, apply, check, copied, order_rows
from levada.testing.place import DestinationPlace
from levada.testing.source import COPIED, Source
from levada.values import Lsn


class Cuts:
    """Names of states, which later writes do not change."""

    def test_a_name_keeps_its_state(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A state is the one of its call, also after later writes and in a new process. A repeated call keeps it."""
        destination = _cutting(start)
        orders = copied(destination, source)
        orders.insert(id=4, item="d", note=None)
        apply(destination, source, orders)
        cut, mark = NamedCut("noon", Lsn(orders.taken)), source.mark(0)
        assert destination.update_cuts(ORDERS.id, None, (), mark) == {}
        assert destination.update_cuts(ORDERS.id, cut, (), mark) == {"noon": cut.lsn}
        later = NamedCut("later", Lsn(cut.lsn + 1))
        assert destination.update_cuts(ORDERS.id, later, ("unknown",), mark) == {"noon": cut.lsn, "later": later.lsn}
        orders.delete(id=1)
        apply(destination, source, orders)
        for each in (destination, start()):
            assert each.update_cuts(ORDERS.id, cut, (), mark) == {"noon": cut.lsn, "later": later.lsn}
        rows = [*order_rows(3), {"id": 4, "item": "d"}]
        for name in ("noon", "later"):
            assert place.cut_rows(orders.target, name) == place.expected(orders.schema, rows)
        check(place, orders, rows[1:])

    def test_a_cut_that_was_passed(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A table that has applied more than the cut gets no name, and keeps an earlier state of that name."""
        destination = _cutting(start)
        orders = copied(destination, source)
        destination.update_cuts(ORDERS.id, NamedCut("noon", COPIED), (), source.mark(0))
        orders.insert(id=4, item="d", note=None)
        apply(destination, source, orders)
        for each in (destination, start()):
            for name in ("noon", "late"):
                with pytest.raises(Transient) as caught:
                    each.update_cuts(ORDERS.id, NamedCut(name, Lsn(COPIED + 1)), (), source.mark(0))
                assert caught.value.code == codes.CUT_PASSED
        assert destination.update_cuts(ORDERS.id, None, (), source.mark(0)) == {"noon": COPIED}
        assert place.cut_rows(orders.target, "noon") == place.expected(orders.schema, order_rows(3))

    def test_names_are_removed(self, start: OpenDestination, source: Source) -> None:
        """A removed name is free for another state. Names that are not there are no error."""
        destination, mark = _cutting(start), source.mark(0)
        orders = copied(destination, source)
        for name in ("a", "b"):
            destination.update_cuts(ORDERS.id, NamedCut(name, COPIED), (), mark)
        orders.insert(id=4, item="d", note=None)
        apply(destination, source, orders)
        after = Lsn(orders.taken)
        assert destination.update_cuts(ORDERS.id, NamedCut("c", after), ("a", "x"), mark) == {"b": COPIED, "c": after}
        assert destination.update_cuts(ORDERS.id, None, ("b", "c"), mark) == {}
        assert start().update_cuts(ORDERS.id, NamedCut("a", after), (), mark) == {"a": after}

    def test_a_stale_epoch_keeps_no_state(self, start: OpenDestination, source: Source) -> None:
        """An older driver gives no name to what a newer one has written."""
        older, newer = _cutting(start), start()
        orders = copied(older, source)
        orders.insert(id=4, item="newer", note=None)
        batch = orders.batch()
        newer.write_events(batch, source.mark(int(batch.until), epoch=2))
        with pytest.raises(StaleEpoch):
            older.update_cuts(ORDERS.id, NamedCut("noon", batch.until), (), source.mark(0, epoch=1))
        assert newer.update_cuts(ORDERS.id, None, (), source.mark(0, epoch=2)) == {}


def _cutting(start: OpenDestination) -> Destination:
    destination = start()
    if not destination.capabilities.cuts:
        pytest.skip("the destination keeps no states of tables")
    return destination
