"""Tables with columns that describe the last change of each row."""

from __future__ import annotations

from typing import Any

import pytest

from levada.apply.carried_rows import carry_over
from levada.apply.moves import stored_batch
from levada.copy.rows import TableRows
from levada.copy.stored_rows import stored_rows
from levada.destinations import TableMode
from levada.schema.metadata import READ, ReadMoment, RowMetadata
from levada.testing.destinations.steps import LONG, ORDERS, OpenDestination, order_rows, replacing, write
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows
from levada.testing.source import COPIED, NOW, Source, SourceTable
from levada.values import Deletes, Lsn, MetadataColumn

METADATA = RowMetadata(tuple(MetadataColumn), "shop")


class Metadata:
    """Columns that describe changes. Each batch is written twice, by another process too."""

    def test_metadata_of_changes(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A row has the values of its last change, and one without a change those of the copy."""
        orders = _copied(start, source)
        one, two, three = order_rows(3)
        _apply(start, source, orders)
        _check(place, orders, [described(row, READ) for row in (one, two, three)])
        orders.update(id=1, item="one", note=None, unchanged=[3])
        with source.transaction():
            orders.insert(id=4, item="four", note="n")
            orders.insert(id=5, item="five", note="n")
            orders.update(id=5, item="FIVE", note="n")
            orders.update(old={"id": 2}, id=20, item="moved", note=None, unchanged=[3])
            orders.delete(id=3)
        lsn = source.lsn
        rows = [
            described({**one, "item": "one"}, "U", lsn - 10),
            described({"id": 4, "item": "four", "note": "n"}, "I", lsn),
            described({"id": 5, "item": "FIVE", "note": "n"}, "U", lsn),
            described({"id": 20, "item": "moved", "note": LONG}, "U", lsn),
        ]
        _apply(start, source, orders)
        _check(place, orders, rows)
        with source.transaction():
            orders.truncate()
            orders.insert(id=1, item="again")
        lsn = source.lsn
        _apply(start, source, orders)
        _check(place, orders, [described({"id": 1, "item": "again"}, "I", lsn)])

    def test_some_metadata(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A table has the columns that it asks for and no others, also after one of the source is added."""
        orders = _copied(start, source, metadata=RowMetadata((MetadataColumn.OPERATION,), "shop"))
        orders.insert(id=4, item="four", note="n")
        _apply(start, source, orders)
        rows: list[Row] = [{**row, "_levada_operation": READ} for row in order_rows(3)]
        rows.append({"id": 4, "item": "four", "note": "n", "_levada_operation": "I"})
        _check(place, orders, rows)

    def test_metadata_of_kept_rows(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A marked row has the values of its delete, and keeps them when a shadow copy takes it over."""
        destination = start()
        if not destination.capabilities.keeps_deleted:
            pytest.skip("the destination does not keep deleted rows")
        orders = _copied(start, source, deletes=Deletes.MARK)
        one, two, three = order_rows(3)
        with source.transaction():
            orders.delete(id=1)
            orders.update(id=2, item="two", note=None, unchanged=[3])
        lsn = source.lsn
        _apply(start, source, orders)
        gone = {**described(one, "D", lsn), "_levada_deleted_at": NOW}
        live = described({**two, "item": "two"}, "U", lsn)
        _check(place, orders, [gone, live, described(three, READ)])
        fresh = ArrowRows.of(ORDERS, [{"id": 2, "item": "two"}, {"id": 3, "item": "three"}])
        mark = source.mark(orders.taken)
        assert destination.copy_replacement(orders.target, _stored(orders, fresh, orders.taken), mark) is True
        assert carry_over(destination, orders.target, mark) is True
        assert destination.swap_replacement(ORDERS.id, mark) is True
        copied = [{"id": 2, "item": "two"}, {"id": 3, "item": "three"}]
        _check(place, orders, [gone, *(described(row, READ, orders.taken) for row in copied)])

    def test_metadata_of_a_shadow_copy(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """The rows of a new copy have its values, and those that change meanwhile the values of their changes."""
        destination = replacing(start)
        orders = _copied(start, source)
        orders.update(id=1, item="one", note="n")
        _apply(start, source, orders)
        mark = source.mark(orders.taken)
        fresh = ArrowRows.of(ORDERS, [{"id": 1, "item": "one"}, {"id": 2, "item": "two"}])
        assert destination.copy_replacement(orders.target, _stored(orders, fresh, orders.taken), mark) is True
        copied = orders.taken
        orders.update(id=2, item="TWO")
        lsn, staged = source.lsn, orders.batch()
        mark = source.mark(int(staged.until))
        assert destination.write_replacement_events(stored_batch(staged, destination), mark) is True
        write(destination, source, stored_batch(staged, destination))
        assert destination.swap_replacement(ORDERS.id, mark) is True
        rows = [described({"id": 1, "item": "one"}, READ, copied), described({"id": 2, "item": "TWO"}, "U", lsn)]
        _check(place, orders, rows)


def described(row: Row, operation: str, lsn: int = int(COPIED)) -> Row:
    """Return a row with the values of a change at an LSN, which is also the number of the made-up transaction."""
    own: dict[str, Any] = {
        "_levada_commit_time": NOW,
        "_levada_lsn": lsn,
        "_levada_operation": operation,
        "_levada_transaction_id": None if operation == READ else lsn,
        "_levada_source": "shop",
    }
    return {**row, **own}


def _copied(
    start: OpenDestination, source: Source, *, deletes: Deletes = Deletes.APPLY, metadata: RowMetadata = METADATA
) -> SourceTable:
    destination = start()
    orders = source.add(ORDERS)
    orders.deletes, orders.metadata = deletes, metadata
    if destination.effective_mode(orders.target) is not TableMode.UPSERT:
        pytest.skip("the destination has each change of a row")
    rows = ArrowRows.of(ORDERS, order_rows(3)[::2], order_rows(3)[1::2])
    destination.write_table_rows(orders.target, _stored(orders, rows), source.mark(int(COPIED)))
    return orders


def _stored(orders: SourceTable, rows: TableRows, lsn: int = int(COPIED)) -> TableRows:
    return stored_rows(rows, orders.target, ReadMoment(Lsn(lsn), NOW))


def _apply(start: OpenDestination, source: Source, orders: SourceTable) -> None:
    """Apply the changes since the last batch, and once more by another object, as after a crash."""
    staged = orders.batch()
    for destination in (start(), start()):
        write(destination, source, stored_batch(staged, destination))


def _check(place: DestinationPlace, orders: SourceTable, rows: list[Row]) -> None:
    assert place.rows(orders.target) == place.expected(orders.target.schema, rows)
