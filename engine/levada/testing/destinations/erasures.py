"""Rows that are erased by their keys."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from levada import codes
from levada.destinations import Destination, NamedCut
from levada.destinations.erasure import Erased, Erasure
from levada.errors import NeedsOperator, StaleEpoch
from levada.testing.destinations.steps import LONG, ORDERS, OpenDestination, apply, check, copied, copy, order_rows
from levada.testing.place import DestinationPlace
from levada.testing.rows import ArrowRows
from levada.testing.source import COPIED, Source, SourceTable
from levada.values import Lsn, TableMode

PERSON = "a-person-of-this-test"
"""A text that only the erased rows have."""


class Erasures:
    """An erasure leaves no value of its rows, and everything else as it was."""

    def test_rows_are_erased(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Current, updated and deleted rows of the keys leave no value, also of former states. Later changes apply."""
        destination = _erasing(start)
        orders = _with_persons(destination, source)
        before = destination.applied(ORDERS.id)
        assert place.places_of(PERSON), "the search finds nothing, so the test shows nothing"
        assert _erase(destination, source, orders, 10, 11, 12, 77).rows == 2
        assert place.places_of(PERSON) == []
        assert destination.applied(ORDERS.id) == before
        check(place, orders, order_rows(3))
        orders.insert(id=11, item="again", note=None)
        orders.update(id=1, item="later", note=None, unchanged=[3])
        orders.delete(id=2)
        later = start()
        apply(later, source, orders)
        after = [{"id": 1, "item": "later", "note": LONG}, order_rows(3)[2], {"id": 11, "item": "again"}]
        check(place, orders, after)
        assert _is_nothing(_erase(later, source, orders, 10, 12))
        assert _erase(later, source, orders, 11).rows == 1
        check(place, orders, after[:2])

    def test_an_unknown_key(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Keys that no row has ever had are no error, and nothing is removed."""
        destination = _erasing(start)
        orders = _with_persons(destination, source)
        found = place.places_of(PERSON)
        assert _is_nothing(_erase(destination, source, orders, 99, -1, 5))
        assert set(found) <= set(place.places_of(PERSON))
        check(place, orders, [*order_rows(3), *_persons()])

    def test_a_dry_run(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A dry run counts what an erasure would remove, and removes nothing."""
        destination = _erasing(start)
        orders = _with_persons(destination, source)
        found = place.places_of(PERSON)
        assert _erase(destination, source, orders, 10, 12, dry_run=True).rows == 1
        assert place.places_of(PERSON) == found
        check(place, orders, [*order_rows(3), *_persons()])

    def test_a_changelog(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """All changes of a key are erased, also those of a row that was moved away from it or to it."""
        destination = _erasing(start)
        orders = source.add(ORDERS, TableMode.CHANGELOG)
        copy(destination, source, orders, ArrowRows.of(ORDERS, order_rows(3)))
        orders.insert(id=10, item=PERSON, note=PERSON)
        orders.update(old={"id": 10}, id=11, item=PERSON, note=None, unchanged=[3])
        orders.delete(id=11)
        apply(destination, source, orders)
        # A TRUNCATE has no key, so it stays.
        orders.insert(id=20, item="between", note=None)
        apply(destination, source, orders)
        _erase(destination, source, orders, 10, 11)
        assert place.places_of(PERSON) == []
        check(place, orders, [*order_rows(3), {"id": 20, "item": "between"}])
        orders.insert(id=21, item="later", note=None)
        apply(destination, source, orders)
        check(place, orders, [*order_rows(3), {"id": 20, "item": "between"}, {"id": 21, "item": "later"}])

    def test_cuts_have_the_rows(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Cuts with the rows are named and keep all as it is, until they may be changed. Other cuts stay."""
        destination = _erasing(start)
        if not destination.capabilities.cuts:
            pytest.skip("the destination keeps no states of tables")
        orders = copied(destination, source)
        destination.update_cuts(ORDERS.id, NamedCut("before", COPIED), (), source.mark(0))
        orders.insert(id=10, item=PERSON, note=None)
        apply(destination, source, orders)
        destination.update_cuts(ORDERS.id, NamedCut("with", Lsn(orders.taken)), (), source.mark(0))
        with pytest.raises(NeedsOperator) as caught:
            _erase(destination, source, orders, 10)
        assert caught.value.code == codes.ERASE_KEPT_BY_CUTS
        assert "with" in caught.value.message
        assert "before" not in caught.value.message
        check(place, orders, [*order_rows(3), {"id": 10, "item": PERSON}])
        assert _erase(destination, source, orders, 10, cuts=True).cuts == ("with",)
        assert place.places_of(PERSON) == []
        assert destination.update_cuts(ORDERS.id, None, (), source.mark(0)) == {"before": COPIED}
        assert place.cut_rows(orders.target, "before") == place.expected(orders.schema, order_rows(3))

    def test_a_stale_epoch_erases_nothing(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """An older driver removes no row of a table that a newer one has written."""
        older, newer = _erasing(start), start()
        orders = copied(older, source)
        orders.insert(id=4, item="newer", note=None)
        batch = orders.batch()
        newer.write_events(batch, source.mark(int(batch.until), epoch=2))
        with pytest.raises(StaleEpoch):
            _erase(older, source, orders, 4)
        check(place, orders, [*order_rows(3), {"id": 4, "item": "newer"}])


def _with_persons(destination: Destination, source: Source) -> SourceTable:
    """Return a table with rows of persons: some are there, one was updated, one was deleted."""
    orders = copied(destination, source)
    for key in (10, 11, 12):
        orders.insert(id=key, item=f"{PERSON} {key}", note=PERSON)
    apply(destination, source, orders)
    orders.update(id=11, item=f"{PERSON} updated", note=None, unchanged=[3])
    orders.delete(id=12)
    apply(destination, source, orders)
    return orders


def _persons() -> list[dict[str, object]]:
    return [
        {"id": 10, "item": f"{PERSON} 10", "note": PERSON},
        {"id": 11, "item": f"{PERSON} updated", "note": PERSON},
    ]


def _erase(
    destination: Destination,
    source: Source,
    part: SourceTable,
    *keys: int,
    dry_run: bool = False,
    cuts: bool = False,
) -> Erased:
    wanted = Erasure(pa.table({"id": pa.array(keys, pa.int64())}), dry_run, cuts)
    return destination.erase(part.target, wanted, source.mark(0))


def _is_nothing(erased: Erased) -> bool:
    return replace(erased, remaining=()) == Erased()


def _erasing(start: OpenDestination) -> Destination:
    destination = start()
    if not destination.capabilities.erases:
        pytest.skip("the destination erases no rows")
    return destination
