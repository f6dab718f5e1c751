"""The first copies of small tables that a destination writes together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from levada.destinations import Destination
from levada.destinations.groups import GroupWriter, NewTable
from levada.errors import StaleEpoch, Unrepresentable
from levada.testing.destinations.steps import ORDERS, OpenDestination, apply, check, copy, order_rows
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows, FailingRows
from levada.testing.source import COPIED, Source, SourceTable, column, table
from levada.values import QualifiedTable, TableId


def small(source: Source, count: int) -> list[SourceTable]:
    """Return tables of the source."""
    numbered = range(count)
    return [
        source.add(replace(ORDERS, id=TableId(17100 + n), name=QualifiedTable("public", f"small_{n}")))
        for n in numbered
    ]


def new(part: SourceTable, rows: Sequence[Row]) -> NewTable:
    """Return the copy of a table with these rows."""
    return NewTable(part.target, ArrowRows.of(part.schema, rows))


def writer_of(destination: Destination) -> GroupWriter:
    """Return the destination's writer of groups. Skip the test without one."""
    writer = destination.group_writer()
    if writer is None:
        pytest.skip("the destination writes the copies of small tables one by one")
    return writer


class Groups:
    """A group of copies, and tables that it leaves out."""

    def test_a_group(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Each table has its rows and the watermark, also an empty one and one without a key, and takes changes."""
        destination = start()
        writer, tables = writer_of(destination), small(source, 3)
        keyless = source.add(table(column(1, "id", ORDERS.columns[0].type.kind), key=(), id=17200, name="public.log"))
        copies = [new(part, order_rows(n)) for n, part in enumerate(tables)] + [new(keyless, [{"id": 7}])]
        ids = {its.id for its in copies}
        assert set(writer.free([its.target for its in copies])) == ids
        assert set(writer.write(copies, source.mark(int(COPIED)))) == ids
        for each in (destination, start()):
            assert {each.applied(its) for its in ids} == {source.mark(int(COPIED))}
        assert place.rows(keyless.target) == place.expected(keyless.schema, [{"id": 7}])
        for n, part in enumerate(tables):
            check(place, part, order_rows(n))
            part.insert(id=n, item="i", note="x") if not n else part.update(id=n, item="i", note="x")
            apply(destination if n % 2 else start(), source, part)
            check(place, part, [*order_rows(n)[: n - 1 if n else 0], {"id": n, "item": "i", "note": "x"}])

    def test_a_table_that_is_there_is_left_out(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """It keeps its rows, and so does a name that two tables of the group have. The others are written."""
        writer = writer_of(start())
        there, other, twice = small(source, 3)
        copy(start(), source, there, ArrowRows.of(there.schema, order_rows(3)))
        twice.name = other.target.name
        copies = [new(part, order_rows(1)) for part in (there, other, twice)]
        assert set(writer.free([its.target for its in copies])) == {other.target.id}
        assert set(writer.write(copies, source.mark(int(COPIED)))) == {other.target.id}
        assert set(writer.write(copies, source.mark(int(COPIED)))) == set()
        check(place, there, order_rows(3))
        check(place, other, order_rows(1))

    def test_a_table_that_fails_is_left_out(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """Its neighbours are written, and it is copied by itself afterwards."""
        destination = start()
        writer, (bad, other) = writer_of(destination), small(source, 2)

        def fail() -> None:
            raise Unrepresentable("unrepresentable_value", "a value of the rows", hint="exclude the column")

        copies = [NewTable(bad.target, FailingRows(ArrowRows.of(bad.schema, order_rows(2)), 0, fail))]
        copies.append(new(other, order_rows(2)))
        assert set(writer.write(copies, source.mark(int(COPIED)))) == {other.target.id}
        check(place, other, order_rows(2))
        destination.drop_table_for_copy(bad.target, 1)
        assert destination.applied(bad.target.id) is None
        copy(destination, source, bad, ArrowRows.of(bad.schema, order_rows(1)))
        check(place, bad, order_rows(1))

    def test_an_older_driver_replaces_no_table(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """A group of a driver that a newer one has replaced has no effect on the tables of the newer one."""
        older, newer = writer_of(start()), writer_of(start())
        [orders] = small(source, 1)
        newer.write([new(orders, order_rows(2))], source.mark(int(COPIED), epoch=2))
        with suppress(StaleEpoch):
            assert not older.write([new(orders, order_rows(1))], source.mark(int(COPIED) + 1, epoch=1))
        check(place, orders, order_rows(2))
        assert start().applied(orders.target.id) == source.mark(int(COPIED), epoch=2)
