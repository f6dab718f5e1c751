"""Tables that keep the rows which the source deletes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from levada.apply.carried_rows import carry_over
from levada.apply.metadata import stored_form
from levada.apply.moves import stored_batch
from levada.copy.rows import TableRows
from levada.copy.stored_rows import stored_rows
from levada.schema import ReplicatedTableSchema
from levada.schema.kept_rows import DELETED_AT, EVERY_ROW, LIVE_ROWS
from levada.schema.masks import ColumnMask, Mask
from levada.schema.metadata import ReadMoment
from levada.testing.destinations.steps import LONG, ORDERS, OpenDestination, order_rows, write
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows
from levada.testing.source import COPIED, NOW, Source, SourceTable
from levada.values import Deletes, MaskMethod

GONE: dict[str, Any] = {DELETED_AT: NOW}


class KeptRows:
    """Deletes that mark rows, and deletes that are ignored. Each batch is written twice, by another process too."""

    @pytest.mark.parametrize("deletes", [Deletes.MARK, Deletes.IGNORE])
    def test_kept_deletes(
        self, place: DestinationPlace, start: OpenDestination, source: Source, deletes: Deletes
    ) -> None:
        """A deleted row keeps its values, from the batch or the table, until one with its key is inserted."""
        orders = _copied(start, source, deletes)
        one, two, _ = order_rows(3)
        orders.delete(id=1)
        with source.transaction():
            orders.update(id=2, item="two", note=None, unchanged=[3])
            orders.delete(id=2)
            orders.insert(id=4, item="four", note="n")
            orders.delete(id=4)
        orders.delete(id=3, item="item 3", note=LONG, old_kind="O")
        orders.insert(id=3, item="again", note=None)
        _apply(start, source, orders)
        gone = [one, {**two, "item": "two"}, {"id": 4, "item": "four", "note": "n"}]
        _check(place, orders, [{"id": 3, "item": "again"}], gone)
        orders.insert(id=1, item="back", note=None)
        orders.update(id=3, item="three", note="n")
        orders.delete(id=3)
        _apply(start, source, orders)
        _check(place, orders, [{"id": 1, "item": "back"}], [*gone[1:], {"id": 3, "item": "three", "note": "n"}])

    def test_the_table_of_an_earlier_state(self, start: OpenDestination, source: Source) -> None:
        """The table is found before a first copy would replace it, by a process that knows nothing of it too."""
        orders = source.add(ORDERS)
        orders.deletes = Deletes.MARK
        if not start().capabilities.keeps_deleted:
            pytest.skip("the destination does not keep deleted rows")
        destination = start()
        destination.check_place(orders.target)
        assert destination.has_table(orders.target) is False
        destination.write_table_rows(orders.target, _stored(orders, ArrowRows.of(ORDERS, [])), source.mark(int(COPIED)))
        for other in (destination, start()):
            assert other.has_table(orders.target) is True

    @pytest.mark.parametrize("deletes", [Deletes.MARK, Deletes.IGNORE])
    def test_kept_keys_that_change(
        self, place: DestinationPlace, start: OpenDestination, source: Source, deletes: Deletes
    ) -> None:
        """A row that moves to another key leaves the old one as deleted, and takes what the stream lacks from it."""
        orders = _copied(start, source, deletes)
        two = order_rows(2)[1]
        with source.transaction():
            orders.update(old={"id": 1}, id=10, item="ten", note=None, unchanged=[3])
            orders.update(old={"id": 10}, id=11, item="eleven", note=None, unchanged=[3])
        orders.update(id=2, item="TWO", note=None, unchanged=[3])
        orders.update(old={"id": 2}, id=1, item="two", note=None, unchanged=[3])
        orders.update(old={"id": 3, "item": "item 3", "note": LONG}, old_kind="O", id=3, item="three", note="n")
        _apply(start, source, orders)
        live: list[Row] = [{"id": 11, "item": "eleven", "note": LONG}, {"id": 1, "item": "two", "note": LONG}]
        gone: list[Row] = [{"id": 10, "item": "ten", "note": LONG}, {**two, "item": "TWO"}]
        three: Row = {"id": 3, "item": "three", "note": "n"}
        _check(place, orders, [*live, three], gone)
        orders.update(old={"id": 11}, id=10, item="ten again", note=None, unchanged=[3])
        _apply(start, source, orders)
        live[0] = {"id": 10, "item": "ten again", "note": LONG}
        _check(place, orders, [*live, three], [{"id": 11, "item": "eleven", "note": LONG}, gone[1]])

    @pytest.mark.parametrize("deletes", [Deletes.MARK, Deletes.IGNORE])
    def test_kept_truncates(
        self, place: DestinationPlace, start: OpenDestination, source: Source, deletes: Deletes
    ) -> None:
        """A TRUNCATE deletes what was before it, in the batch and in the table, and nothing that came after it."""
        orders = _copied(start, source, deletes)
        two, three = order_rows(3)[1:]
        orders.delete(id=3)
        with source.transaction():
            orders.insert(id=5, item="gone", note=None)
            orders.update(old={"id": 2}, id=20, item="moved", note=None, unchanged=[3])
            orders.truncate()
            orders.insert(id=1, item="after", note=None)
            orders.truncate()
            orders.insert(id=6, item="six", note=None)
        _apply(start, source, orders)
        gone = [two, three, {"id": 1, "item": "after"}, {"id": 5, "item": "gone"}]
        gone.append({"id": 20, "item": "moved", "note": LONG})
        _check(place, orders, [{"id": 6, "item": "six"}], gone)
        orders.truncate()
        orders.insert(id=2, item="back", note=None)
        _apply(start, source, orders)
        _check(place, orders, [{"id": 2, "item": "back"}], [*gone[1:], {"id": 6, "item": "six"}])
        if deletes is Deletes.MARK:
            found = {
                region: sorted(k for batch in start().keys_in(orders.target, region) for k in batch["id"].to_pylist())
                for region in (LIVE_ROWS, EVERY_ROW)
            }
            assert found == {LIVE_ROWS: [2], EVERY_ROW: [1, 2, 3, 5, 6, 20]}

    @pytest.mark.parametrize("deletes", [Deletes.MARK, Deletes.IGNORE])
    def test_a_delete_without_its_row(
        self, place: DestinationPlace, start: OpenDestination, source: Source, deletes: Deletes
    ) -> None:
        """A row that the table never had is not kept. The other rows of the batch are."""
        orders = _copied(start, source, deletes)
        orders.delete(id=77)
        orders.update(old={"id": 78}, id=79, item="seventy-nine", note="n")
        orders.delete(id=1)
        _apply(start, source, orders)
        one, *others = order_rows(3)
        _check(place, orders, [*others, {"id": 79, "item": "seventy-nine", "note": "n"}], [one])

    @pytest.mark.parametrize("deletes", [Deletes.MARK, Deletes.IGNORE])
    def test_kept_rows_of_a_shadow_copy(
        self, place: DestinationPlace, start: OpenDestination, source: Source, deletes: Deletes
    ) -> None:
        """A shadow copy takes over the rows that only its table has, and keeps its own version of the others."""
        orders = _copied(start, source, deletes)
        one, _, three = order_rows(3)
        destination = start()
        orders.delete(id=1)
        orders.delete(id=2)
        write(destination, source, stored_batch(orders.batch(), destination))
        mark = source.mark(orders.taken)
        fresh = ArrowRows.of(ORDERS, [{"id": 2, "item": "back"}, {"id": 4, "item": "four", "note": "n"}])
        assert destination.copy_replacement(orders.target, _stored(orders, fresh), mark) is True
        orders.delete(id=4)
        batch = stored_form(orders.batch())
        mark = source.mark(int(batch.until))
        assert destination.write_replacement_events(batch, mark) is True
        write(destination, source, batch)
        assert carry_over(destination, orders.target, mark) is True
        assert destination.swap_replacement(ORDERS.id, mark) is True
        found = place.rows(orders.target)
        if deletes is Deletes.MARK:
            # The source does not have the row 3, and the table never saw its delete.
            (deleted_at,) = [row.pop(DELETED_AT) for row in found if row["id"] == 3]
            assert deleted_at is not None
            found = [{**row, DELETED_AT: row.get(DELETED_AT)} for row in found]
        gone = [one, {"id": 4, "item": "four", "note": "n"}]
        marks = GONE if deletes is Deletes.MARK else {}
        rows = [{"id": 2, "item": "back"}, three, *({**row, **marks} for row in gone)]
        assert sorted(found, key=lambda r: r["id"]) == sorted(
            place.expected(orders.target.schema, rows), key=lambda r: r["id"]
        )
        orders.delete(id=2)
        _apply(start, source, orders)
        assert {row["id"] for row in place.rows(orders.target)} == {1, 2, 3, 4}
        fresh = ArrowRows.of(ORDERS, [{"id": n} for n in (1, 2, 3, 4)])
        assert destination.copy_replacement(orders.target, _stored(orders, fresh), source.mark(orders.taken)) is True
        assert carry_over(destination, orders.target, source.mark(orders.taken)) is None

    def test_kept_rows_with_a_masked_column(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """A shadow copy takes over values that are masked already, without the key of the mask."""
        mask = ColumnMask("item", Mask(MaskMethod.HMAC, key_id="of another process"))
        columns = tuple(replace(c, mask=mask) if c.name == "item" else c for c in ORDERS.columns)
        masked = replace(ORDERS, columns=columns)
        orders = _copied(start, source, Deletes.MARK, masked)
        one, *others = order_rows(3)
        orders.delete(id=1)
        _apply(start, source, orders)
        destination, mark = start(), source.mark(orders.taken)
        fresh = ArrowRows.of(masked, others)
        assert destination.copy_replacement(orders.target, _stored(orders, fresh), mark) is True
        assert carry_over(destination, orders.target, mark) is True
        assert destination.swap_replacement(masked.id, mark) is True
        _check(place, orders, others, [one])


def _copied(
    start: OpenDestination, source: Source, deletes: Deletes, schema: ReplicatedTableSchema = ORDERS
) -> SourceTable:
    """Copy three rows into a table that keeps deleted rows. Skip the test if the destination cannot do that."""
    destination = start()
    if not destination.capabilities.keeps_deleted:
        pytest.skip("the destination does not keep deleted rows")
    orders = source.add(schema)
    orders.deletes = deletes
    rows = ArrowRows.of(schema, order_rows(3)[::2], order_rows(3)[1::2])
    destination.write_table_rows(orders.target, _stored(orders, rows), source.mark(int(COPIED)))
    return orders


def _stored(orders: SourceTable, rows: TableRows) -> TableRows:
    return stored_rows(rows, orders.target, ReadMoment(COPIED, NOW))


def _apply(start: OpenDestination, source: Source, orders: SourceTable) -> None:
    """Apply the changes since the last batch, and once more by another object, as after a crash."""
    staged = orders.batch()
    for destination in (start(), start()):
        write(destination, source, stored_batch(staged, destination))


def _check(place: DestinationPlace, orders: SourceTable, live: list[Row], gone: list[Row]) -> None:
    """Check that the table has these rows, of which some are deleted at the source."""
    marks = GONE if orders.deletes is Deletes.MARK else {}
    rows = [*live, *({**row, **marks} for row in gone)]
    assert place.rows(orders.target) == place.expected(orders.target.schema, rows)
