"""The conformance suite of a destination: the behaviour on which the engine relies."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from levada.destinations import Destination, Ordering, TableTarget
from levada.errors import (
    AccessDenied,
    DestinationChanged,
    LevadaError,
    NeedsOperator,
    Permanent,
    StaleEpoch,
    Transient,
    Unrepresentable,
)
from levada.schema import Column, ColumnType, IdentityKind, Kind
from levada.segments.batch import DurabilityRequest, EventBatch
from levada.testing.destination_crashes import AFTER, RETURNED, Applying, Copying, kill_in_child
from levada.testing.failing import FailingBatch
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows, FailingRows
from levada.testing.source import COPIED, Source, SourceTable, column, table
from levada.values import Durability, OnUnrepresentable, QualifiedTable, TableId, TableMode, Watermark

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
LONG = "x" * 3000

OpenDestination = Callable[[], Destination]


def _orders(n: int) -> list[Row]:
    return [{"id": i, "item": f"item {i}", "note": LONG} for i in range(1, n + 1)]


class DestinationConformance:
    """Tests of a destination. Subclass it with a fixture ``place`` that returns a `DestinationPlace`.

    ::

        class TestMine(DestinationConformance):
            @pytest.fixture
            def place(self, tmp_path):
                return DestinationPlace(open=lambda: MyDestination(tmp_path), read=read_mine)

    The destination's capabilities decide which tests run. A schema change that the destination refuses with
    NeedsOperator ``schema_change_unsupported`` skips the rest of its test, after a check that nothing was written.
    """

    @pytest.fixture
    def place(self) -> DestinationPlace:
        """Return the place of this test. Override it."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `place` that returns a DestinationPlace")

    @pytest.fixture
    def start(self, place: DestinationPlace) -> Iterator[OpenDestination]:
        """Open destinations as a process does at its start. All are shut down after the test."""
        opened: list[Destination] = []

        def starting() -> Destination:
            opened.append(place.open())
            opened[-1].startup()
            return opened[-1]

        yield starting
        for destination in opened:
            destination.shutdown()

    @pytest.fixture
    def source(self) -> Source:
        """Return a source without tables, whose transactions are read one by one."""
        return Source(row_group_bytes=1)

    # -- copies

    def test_an_empty_table_exists(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A copy without rows, with and without partitions, makes the table. Changes follow."""
        cases: tuple[tuple[list[Row], ...], ...] = ((), ([],))
        for number, partitions in enumerate(cases):
            orders = source.add(
                replace(ORDERS, id=TableId(17000 + number), name=QualifiedTable("public", f"t{number}"))
            )
            destination = start()
            destination.drop_table_for_copy(orders.target, 1)
            _copy(destination, source, orders, ArrowRows.of(orders.schema, *partitions))
            assert place.rows(orders.target) == []
            orders.insert(id=1, item="a", note=None)
            _apply(start(), source, orders)
            _check(place, orders, [{"id": 1, "item": "a"}])

    def test_a_copy_and_its_changes(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Inserts, updates and deletes after a copy give the source's rows, also from a new object."""
        orders = _copied(start(), source)
        orders.update(id=1, item="A", note="n")
        orders.delete(id=2)
        orders.insert(id=4, item="d", note=None)
        _apply(start(), source, orders)
        orders.update(id=4, item=None, note="")
        _apply(start(), source, orders)
        _check(place, orders, [{"id": 1, "item": "A", "note": "n"}, _orders(3)[2], {"id": 4, "note": ""}])

    def test_dropping_twice(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A table that is not there is dropped without an error, and a copy after a drop has its own rows only."""
        destination = start()
        orders = source.add(ORDERS)
        destination.drop_table_for_copy(orders.target, 1)
        _copy(destination, source, orders, ArrowRows.of(ORDERS, _orders(3)))
        for _ in range(2):
            destination.drop_table_for_copy(orders.target, 1)
        assert destination.applied(ORDERS.id) is None
        destination.drop_table_for_copy(orders.target)
        _copy(start(), source, orders, ArrowRows.of(ORDERS, _orders(1)))
        _check(place, orders, _orders(1))

    def test_a_copy_again_replaces_the_rows(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """After a crash a copy is dropped and written again, in more and other partitions."""
        orders = _copied(start(), source, n=3)
        destination = start()
        destination.drop_table_for_copy(orders.target, 1)
        _copy(destination, source, orders, ArrowRows.of(ORDERS, _orders(2)[1:], [], _orders(1)))
        orders.update(id=2, item="two", note="n")
        _apply(destination, source, orders)
        _check(place, orders, [_orders(1)[0], {"id": 2, "item": "two", "note": "n"}])

    # -- replays and watermarks

    def test_replay_of_every_prefix(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A batch comes again after each crash with more behind it. Each time the rows are those of the source."""
        orders = _copied(start(), source)
        steps: list[Callable[[], None]] = [
            lambda: orders.insert(id=9, item="new", note=None),
            lambda: orders.update(id=9, item="newer", note="n"),
            lambda: orders.update(old={"id": 9}, id=10, item="moved", note="n"),
            lambda: orders.delete(id=1),
            lambda: orders.insert(id=1, item="again", note=None),
            lambda: orders.update(old={"id": 10}, id=9, item="back", note="n"),
            lambda: orders.delete(id=2),
        ]
        third = _orders(3)[2]
        first_two = _orders(2)
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
                _write(destination, source, batch)
                _check(place, orders, rows)

    def test_watermarks(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """The watermark is that of the last commit, in a new object too, and a replay never moves it back."""
        destination = start()
        if not destination.capabilities.watermark:
            assert destination.applied(ORDERS.id) is None
            pytest.skip("the destination stores no watermarks")
        assert destination.applied(TableId(1)) is None
        orders = _copied(destination, source)
        assert destination.applied(ORDERS.id) == source.mark(int(COPIED)) == start().applied(ORDERS.id)
        orders.insert(id=4, item="d", note=None)
        first = orders.batch()
        _write(destination, source, first)
        orders.delete(id=4)
        _apply(destination, source, orders)
        for each in (destination, start()):
            assert each.applied(ORDERS.id) == source.mark(orders.taken)
            _write(each, source, first)
            assert each.applied(ORDERS.id) == source.mark(orders.taken)
        empty = orders.batch()
        _write(start(), source, empty)
        assert start().applied(ORDERS.id) == source.mark(int(empty.until))
        _check(place, orders, _orders(3))

    def test_a_request_for_durability(self, start: OpenDestination, source: Source, place: DestinationPlace) -> None:
        """A batch that only asks changes nothing and is answered, in the end with DURABLE."""
        destination = start()
        orders = _copied(destination, source)
        _write(destination, source, DurabilityRequest([orders.target], COPIED))
        _check(place, orders, _orders(3))

    def test_a_stale_epoch(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Once a newer driver has committed, no write of an older one has any effect."""
        older, newer = start(), start()
        if not older.capabilities.watermark:
            pytest.skip("the destination stores no watermarks")
        orders = _copied(older, source)
        orders.insert(id=4, item="newer", note=None)
        batch = orders.batch()
        newer.write_events(batch, source.mark(int(batch.until), epoch=2))
        orders.insert(id=5, item="older", note=None)
        batch = orders.batch()
        for destination in (older, start()):
            with pytest.raises(StaleEpoch):
                destination.write_events(batch, source.mark(int(batch.until), epoch=1))
            with pytest.raises(StaleEpoch):
                _copy(destination, source, orders, ArrowRows.of(ORDERS, _orders(1)))
            with pytest.raises(StaleEpoch):
                destination.drop_table_for_copy(orders.target, 1)
        _check(place, orders, [*_orders(3), {"id": 4, "item": "newer"}])

    # -- changes

    def test_truncate(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A TRUNCATE removes what was before it, in the batch and in the table, and nothing that came after it."""
        destination = start()
        orders = _copied(destination, source)
        with source.transaction():
            orders.insert(id=5, item="gone", note=None)
            orders.truncate()
            orders.insert(id=1, item="after", note=None)
        orders.insert(id=6, item="six", note=None)
        batch = orders.batch()
        for each in (destination, start()):
            _write(each, source, batch)
            _check(place, orders, [{"id": 1, "item": "after"}, {"id": 6, "item": "six"}])
        orders.truncate()
        orders.truncate()
        _apply(destination, source, orders)
        assert place.rows(orders.target) == []
        orders.insert(id=1, item="again", note=None)
        _apply(start(), source, orders)
        _check(place, orders, [{"id": 1, "item": "again"}])

    def test_keys_that_change(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A row that moves to another key leaves the old one. Keys are swapped and taken again, within a batch."""
        destination = start()
        orders = _copied(destination, source)
        with source.transaction():
            orders.update(old={"id": 1}, id=10, item="item 1", note="one")
            orders.update(old={"id": 2}, id=1, item="item 2", note="two")
            orders.update(old={"id": 10}, id=2, item="item 1", note="one")
        orders.delete(id=3)
        orders.insert(id=3, item="three again", note="n")
        _apply(destination, source, orders)
        swapped = [{"id": 1, "item": "item 2", "note": "two"}, {"id": 2, "item": "item 1", "note": "one"}]
        _check(place, orders, [*swapped, {"id": 3, "item": "three again", "note": "n"}])
        orders.delete(id=1)
        orders.update(old={"id": 2}, id=1, item="there", note="n")
        _apply(start(), source, orders)
        _check(place, orders, [{"id": 1, "item": "there", "note": "n"}, {"id": 3, "item": "three again", "note": "n"}])

    def test_partial_rows(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """An unchanged TOASTed value stays what it was, from the batch or from the table, under another key too."""
        destination = start()
        orders = _copied(destination, source)
        orders.update(id=1, item="one", note=None, unchanged=[3])
        orders.update(old={"id": 2}, id=20, item="twenty", note=None, unchanged=[3])
        orders.insert(id=4, item="four", note="long")
        orders.update(id=4, item="FOUR", note=None, unchanged=[3])
        _apply(destination, source, orders)
        rows = [
            {"id": 1, "item": "one", "note": LONG},
            {"id": 20, "item": "twenty", "note": LONG},
            _orders(3)[2],
            {"id": 4, "item": "FOUR", "note": "long"},
        ]
        _check(place, orders, rows)
        orders.update(old={"id": 20}, id=21, item="twenty-one", note=None, unchanged=[3])
        _apply(start(), source, orders)
        _check(place, orders, [rows[0], {"id": 21, "item": "twenty-one", "note": LONG}, *rows[2:]])

    def test_a_partial_row_without_its_row(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """If the destination must know an unchanged value and does not, it raises and writes nothing."""
        destination = start()
        orders = _copied(destination, source)
        if destination.effective_mode(orders.target) is not TableMode.UPSERT:
            pytest.skip("the destination does not have to know unchanged values")
        orders.insert(id=8, item="also in the batch", note=None)
        orders.update(id=77, item="?", note=None, unchanged=[3])
        with pytest.raises(NeedsOperator) as caught:
            _apply(destination, source, orders)
        _check_error(caught.value)
        if destination.capabilities.watermark:
            assert start().applied(ORDERS.id) == source.mark(int(COPIED))
            _check(place, orders, _orders(3))

    def test_large_batches(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Thousands of changes of a few keys in one batch, in several transactions, give the last state of each."""
        destination = start()
        orders = _copied(destination, source)
        for turn in range(4):
            with source.transaction():
                for number in range(4, 504):
                    if turn == 0:
                        orders.insert(id=number, item="new", note=None)
                    elif turn < 3 or number % 2:
                        orders.update(id=number, item=f"turn {turn}", note=str(number))
                    else:
                        orders.delete(id=number)
        _apply(destination, source, orders)
        left = [{"id": n, "item": "turn 3", "note": str(n)} for n in range(5, 504, 2)]
        _check(place, orders, [*_orders(3), *left])

    # -- schema changes

    def test_columns_come_and_go(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Columns are added, renamed, dropped and reordered between the rows of one batch. Old rows keep values."""
        destination = start()
        orders = _copied(destination, source)
        before = place.rows(orders.target)
        orders.insert(id=4, item="before", note="dropped later")
        added = column(4, "price", Kind.DECIMAL, precision=10, scale=2)
        orders.alter(replace(orders.schema, columns=(*ORDERS.columns, added)))
        orders.insert(id=5, item="with price", note="dropped later", price=Decimal("1.50"))
        orders.alter(
            replace(orders.schema, columns=(ORDERS.columns[0], added, replace(ORDERS.columns[1], name="name")))
        )
        orders.insert(id=6, price=None, name="renamed")
        self._apply_or_skip(place, destination, source, orders, before)
        rows: list[Row] = [{"id": i, "name": f"item {i}"} for i in (1, 2, 3)]
        rows += [{"id": 4, "name": "before"}, {"id": 5, "price": Decimal("1.50"), "name": "with price"}]
        rows.append({"id": 6, "name": "renamed"})
        _check(place, orders, rows)
        orders.update(id=1, price=Decimal("0.01"), name=None, unchanged=[2])
        _apply(start(), source, orders)
        _check(place, orders, [{"id": 1, "price": Decimal("0.01"), "name": "item 1"}, *rows[1:]])

    def test_names_that_change_places(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Two columns swap their names, and a new column takes the name of a dropped one."""
        destination = start()
        orders = _copied(destination, source)
        before = place.rows(orders.target)
        swapped = (ORDERS.columns[0], replace(ORDERS.columns[1], name="note"), replace(ORDERS.columns[2], name="item"))
        orders.alter(replace(orders.schema, columns=swapped))
        orders.insert(id=4, note="was item", item="was note")
        orders.alter(replace(orders.schema, columns=(*swapped[:2], column(4, "item", Kind.INT8))))
        orders.insert(id=5, note="five", item=5)
        self._apply_or_skip(place, destination, source, orders, before)
        rows: list[Row] = [{"id": i, "note": f"item {i}"} for i in (1, 2, 3)]
        _check(place, orders, [*rows, {"id": 4, "note": "was item"}, {"id": 5, "note": "five", "item": 5}])

    def test_an_added_constant(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """After ADD COLUMN with a constant, rows from before have it, and later NULLs stay NULL."""
        destination = start()
        orders = _copied(destination, source)
        before = place.rows(orders.target)
        orders.alter(replace(ORDERS, columns=(*ORDERS.columns, column(4, "n", Kind.INT4, missing_value="7"))))
        orders.insert(id=4, item="d", note=None, n=None)
        orders.delete(id=1)
        self._apply_or_skip(place, destination, source, orders, before)
        if destination.effective_mode(orders.target) is not TableMode.UPSERT:
            pytest.skip("a changelog has rows as they were written")
        _check(place, orders, [*({**r, "n": 7} for r in _orders(3)[1:]), {"id": 4, "item": "d"}])

    def test_widened_types(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A wider integer, float and numeric keep the values from before, and take the new ones."""
        narrow = table(
            column(1, "id", Kind.INT4),
            column(2, "f", Kind.FLOAT4),
            column(3, "d", Kind.DECIMAL, precision=10, scale=2),
        )
        wide = replace(
            narrow,
            columns=(
                column(1, "id", Kind.INT8),
                column(2, "f", Kind.FLOAT8),
                column(3, "d", Kind.DECIMAL, precision=14, scale=2),
            ),
        )
        destination, part = start(), source.add(narrow)
        first = {"id": 1, "f": 1.5, "d": Decimal("12345678.90")}
        _copy(destination, source, part, ArrowRows.of(narrow, [first]))
        before = place.rows(part.target)
        part.insert(id=2, f=-0.25, d=Decimal("1.00"))
        part.alter(wide)
        last = {"id": 1 << 40, "f": 0.1, "d": Decimal("123456789012.34")}
        part.insert(**last)
        self._apply_or_skip(place, destination, source, part, before)
        _check(place, part, [first, {"id": 2, "f": -0.25, "d": Decimal("1.00")}, last])

    def test_a_table_renamed_at_the_source(
        self, place: DestinationPlace, start: OpenDestination, source: Source
    ) -> None:
        """The destination knows a table by its OID, and keeps it under the name of the target."""
        orders = _copied(start(), source)
        orders.name = ORDERS.name
        orders.alter(replace(ORDERS, name=QualifiedTable("public", "bills")))
        orders.insert(id=4, item="d", note=None)
        _apply(start(), source, orders)
        _check(place, orders, [*_orders(3), {"id": 4, "item": "d"}])

    # -- values and names

    def test_every_kind_of_value(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Each kind of column has the same values from a copy and from the stream, and NULL in every column."""
        schema = table(*KINDS, name="public.kinds")
        part = source.add(schema)
        destination = start()
        rows = _values()
        _copy(destination, source, part, ArrowRows.of(schema, rows))
        streamed = [{**row, "id": 100 + int(row["id"])} for row in rows]
        for row in streamed:
            part.insert(**row)
        _apply(destination, source, part)
        _check(place, part, [*rows, *streamed])
        part.update(**{**rows[0], "text": "short", "bytea": None}, unchanged=[_attnum("bytea")])
        _apply(start(), source, part)
        _check(place, part, [{**rows[0], "text": "short"}, *rows[1:], *streamed])

    def test_odd_names(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Quotes, spaces, dots, reserved words and other scripts in names of tables and columns stay apart."""
        columns = ("id", "select", 'qu"ote', "sp ace", "ünï", "dot.ted", "per%cent", "$dollar", "a" * 60)
        for number, name in enumerate(['odd "name"', "Case", "select", "ünïcode", "dot.dot", "q'uote", "t" * 60]):
            schema = replace(
                table(*(column(i, c, Kind.INT8) for i, c in enumerate(columns, 1)), id=17100 + number),
                name=QualifiedTable("public", name),
            )
            part, destination = source.add(schema), start()
            row: dict[str, Any] = {c: i for i, c in enumerate(columns)}
            try:
                destination.target_name(schema.name, schema.name)
                _copy(destination, source, part, ArrowRows.of(schema, [row]))
            except NeedsOperator as error:
                _check_error(error)
                continue
            part.insert(**{**row, "id": 7, "select": None})
            part.update(**{**row, "ünï": 99})
            _apply(destination, source, part)
            _check(place, part, [{**row, "ünï": 99}, {**row, "id": 7, "select": None}])

    def test_a_composite_key(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Rows whose keys have the same text when it is joined are different rows."""
        schema = table(
            column(1, "a", Kind.TEXT),
            column(2, "b", Kind.TEXT),
            column(3, "n", Kind.INT8),
            key=(1, 2),
            name="public.pairs",
        )
        part, destination = source.add(schema), start()
        keys = [("a", "b,c"), ("a,b", "c"), ("", "abc"), ("abc", ""), ("a|b", "c"), ("a", "b|c"), ("a\x1f", "b")]
        rows: list[Row] = [{"a": a, "b": b, "n": n} for n, (a, b) in enumerate(keys)]
        _copy(destination, source, part, ArrowRows.of(schema, rows[:3]))
        for row in rows[3:]:
            part.insert(**row)
        part.update(**{**rows[0], "n": 100})
        part.delete(a="a,b", b="c")
        _apply(destination, source, part)
        _check(place, part, [{**rows[0], "n": 100}, *rows[2:]])

    def test_a_table_without_a_key(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A table without a key is a changelog, and equal rows stay apart."""
        schema = replace(ORDERS, key=(), identity_attnums=(), identity=IdentityKind.MISSING)
        destination, part = start(), source.add(schema)
        assert destination.effective_mode(part.target) is TableMode.CHANGELOG
        try:
            _copy(destination, source, part, ArrowRows.of(schema, _orders(1)))
        except NeedsOperator as error:
            _check_error(error)
            pytest.skip(f"the destination needs a key: {error.message}")
        part.insert(id=2, item="two", note=None)
        _apply(destination, source, part)
        _check(place, part, [_orders(1)[0], {"id": 2, "item": "two"}])

    def test_the_mode_of_a_table(self, start: OpenDestination, source: Source) -> None:
        """UPSERT is the mode of a table with a key only if the destination has that capability."""
        destination = start()
        mode = destination.effective_mode(source.add(ORDERS, TableMode.UPSERT).target)
        assert mode is (TableMode.UPSERT if destination.capabilities.upsert else TableMode.CHANGELOG)

    # -- errors

    def test_an_unrepresentable_value(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A value that Arrow cannot hold raises Unrepresentable, and is NULL under the policy ``Null``."""
        destination = start()
        orders = _copied(destination, source)
        orders.insert_unrepresentable(3, "too much", id=4, item="d", note=None)
        batch = orders.batch()
        with pytest.raises(Unrepresentable) as caught:
            destination.write_events(batch, source.mark(int(batch.until)))
        assert "too much" not in str(caught.value)
        if destination.capabilities.watermark:
            _check(place, orders, _orders(3))
            assert start().applied(ORDERS.id) == source.mark(int(COPIED))
        again = orders.batch(since=int(COPIED), policy=OnUnrepresentable.NULL)
        _write(start(), source, again)
        _check(place, orders, [*_orders(3), {"id": 4, "item": "d"}])

    @pytest.mark.parametrize("kind", [Transient, NeedsOperator, AccessDenied, DestinationChanged, Permanent])
    def test_errors_keep_their_class(
        self, place: DestinationPlace, start: OpenDestination, source: Source, kind: type[LevadaError]
    ) -> None:
        """An error of reading passes through the destination, and a second attempt succeeds."""

        def fail() -> None:
            raise kind("made_up", "a made-up failure", hint="do nothing")

        destination, orders = start(), source.add(ORDERS)
        rows = ArrowRows.of(ORDERS, _orders(2), _orders(3)[2:])
        for at in (0, 1, 2):
            with pytest.raises(kind) as caught:
                _copy(destination, source, orders, FailingRows(rows, at, fail))
            assert (type(caught.value), caught.value.code) == (kind, "made_up")
            destination.drop_table_for_copy(orders.target, 1)
        _copy(destination, source, orders, rows)
        orders.insert(id=4, item="d", note=None)
        orders.delete(id=1)
        batch = orders.batch()
        for at in (0, 1, AFTER):
            with pytest.raises(kind) as caught:
                destination.write_events(FailingBatch(batch, at, fail), source.mark(int(batch.until)))
            assert (type(caught.value), caught.value.code) == (kind, "made_up")
        _write(destination, source, batch)
        _check(place, orders, [*_orders(3)[1:], {"id": 4, "item": "d"}])

    # -- threads

    def test_tables_of_several_threads(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Copies and batches of different tables run at the same time, and each table has its own rows."""
        destination = start()
        parts = [
            source.add(replace(ORDERS, id=TableId(17200 + n), name=QualifiedTable("public", f"thread_{n}")))
            for n in range(4)
        ]

        def copied(number: int) -> None:
            _copy(destination, source, parts[number], ArrowRows.of(parts[number].schema, _orders(number + 1)))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(copied, range(4)))
            for turn in range(3):
                for number, part in enumerate(parts):
                    part.insert(id=100 + turn, item=f"{number} {turn}", note=None)
                if destination.capabilities.ordering is Ordering.PIPELINE:
                    _write(destination, source, source.batch(*parts))
                else:
                    list(pool.map(lambda b: _write(destination, source, b), [p.batch() for p in parts]))
        for number, part in enumerate(parts):
            added = [{"id": 100 + turn, "item": f"{number} {turn}"} for turn in range(3)]
            _check(place, part, [*_orders(number + 1), *added])

    # -- shadow copies

    def test_a_shadow_copy(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """The table stays as it is until its shadow copy takes its place, with the changes of both."""
        destination = self._replacing(start)
        orders = source.add(ORDERS)
        unread = FailingRows(ArrowRows.of(ORDERS, _orders(1)), 0, lambda: pytest.fail("the rows were read"))
        assert destination.copy_replacement(orders.target, unread, source.mark(int(COPIED))) is False
        orders = _copied(destination, source)
        orders.insert(id=4, item="d", note=None)
        seen = orders.batch()
        _write(destination, source, seen)
        mark = source.mark(int(seen.until))
        fresh = ArrowRows.of(ORDERS, [*_orders(2), {"id": 4, "item": "D", "note": None}])
        assert destination.copy_replacement(orders.target, fresh, mark) is True
        _check(place, orders, [*_orders(3), {"id": 4, "item": "d"}])
        orders.update(id=2, item="both", note=None, unchanged=[3])
        batch = orders.batch()
        assert destination.write_replacement_events(batch, source.mark(int(batch.until))) is True
        assert destination.write_replacement_events(batch, source.mark(int(batch.until))) is True
        _check(place, orders, [*_orders(3), {"id": 4, "item": "d"}])
        _write(destination, source, batch)
        assert destination.swap_replacement(ORDERS.id, source.mark(int(batch.until))) is True
        rows = [_orders(1)[0], {"id": 2, "item": "both", "note": LONG}, {"id": 4, "item": "D"}]
        _check(place, orders, rows)
        assert start().applied(ORDERS.id) == source.mark(int(batch.until))
        orders.delete(id=1)
        _apply(start(), source, orders)
        _check(place, orders, rows[1:])

    def test_a_dropped_shadow_copy(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A shadow copy is dropped any number of times without a change of its table, and cannot be used then."""
        destination = self._replacing(start)
        orders = _copied(destination, source)
        destination.drop_replacement(ORDERS.id)
        assert destination.copy_replacement(orders.target, ArrowRows.of(ORDERS, []), source.mark(int(COPIED)))
        for _ in range(2):
            destination.drop_replacement(ORDERS.id)
        orders.insert(id=4, item="d", note=None)
        batch = orders.batch()
        mark = source.mark(int(batch.until))
        assert destination.write_replacement_events(batch, mark) is False
        assert destination.swap_replacement(ORDERS.id, mark) is False
        _check(place, orders, _orders(3))

    # -- crashes

    @pytest.mark.parametrize("at", [0, 1, AFTER], ids=["first", "second", "read"])
    def test_a_copy_that_is_killed(
        self, place: DestinationPlace, start: OpenDestination, source: Source, at: int
    ) -> None:
        """After a kill at any point of a copy there is no watermark, and the copy is written again."""
        orders = source.add(ORDERS)
        rows = ArrowRows.of(ORDERS, _orders(2), _orders(3)[2:])
        kill_in_child(self._in_child(place), Copying(orders.target, rows, source.mark(int(COPIED)), at))
        destination = start()
        assert destination.applied(ORDERS.id) is None
        destination.drop_table_for_copy(orders.target, 1)
        _copy(destination, source, orders, rows)
        _check(place, orders, _orders(3))

    @pytest.mark.parametrize("at", [0, 2, AFTER, RETURNED], ids=["first", "third", "read", "returned"])
    def test_a_batch_that_is_killed(
        self, place: DestinationPlace, start: OpenDestination, source: Source, at: int
    ) -> None:
        """After a kill at any point of a batch the table has all or nothing of it, and the batch comes again."""
        child = self._in_child(place)
        orders = _copied(start(), source)
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
            _check(place, orders, done if applied == mark else _orders(3))
        _write(destination, source, batch)
        _check(place, orders, done)

    def _in_child(self, place: DestinationPlace) -> Callable[[], Destination]:
        if place.in_child is None:
            pytest.skip("the place has no `in_child`")
        return place.in_child

    def _replacing(self, start: OpenDestination) -> Destination:
        destination = start()
        if not destination.capabilities.replacement:
            pytest.skip("the destination writes no shadow copies")
        return destination

    def _apply_or_skip(
        self,
        place: DestinationPlace,
        destination: Destination,
        source: Source,
        part: SourceTable,
        before: list[dict[str, Any]],
    ) -> None:
        """Apply the table's changes. Skip the test if the destination refuses them without having written anything."""
        former = TableTarget.of(part.versions[0][1], part.mode, part.name)
        try:
            _apply(destination, source, part)
        except NeedsOperator as error:
            if error.code != "schema_change_unsupported":
                raise
            _check_error(error)
            assert place.rows(former) == before
            pytest.skip(f"the destination refuses the change: {error.message}")


def _copy(destination: Destination, source: Source, part: SourceTable, rows: ArrowRows) -> None:
    mark = source.mark(int(COPIED))
    durability = destination.write_table_rows(part.target, rows, mark)
    _await_durable(destination, durability, part.target, mark)


def _copied(destination: Destination, source: Source, n: int = 3) -> SourceTable:
    """Copy rows 1 to ``n`` of the table of orders, in two partitions."""
    orders = source.add(ORDERS)
    _copy(destination, source, orders, ArrowRows.of(ORDERS, _orders(n)[::2], _orders(n)[1::2]))
    return orders


def _apply(destination: Destination, source: Source, part: SourceTable) -> None:
    _write(destination, source, part.batch())


def _write(destination: Destination, source: Source, batch: EventBatch) -> None:
    mark = source.mark(int(batch.until))
    targets = [batch.changes(t).target for t in batch.tables]
    durability = destination.write_events(batch, mark)
    for target in targets:
        _await_durable(destination, durability, target, mark)


def _await_durable(destination: Destination, durability: Durability, target: TableTarget, mark: Watermark) -> None:
    for _ in range(1000):
        assert isinstance(durability, Durability)
        if durability is Durability.DURABLE:
            return
        durability = destination.write_events(DurabilityRequest([target], mark.lsn), mark)
    raise AssertionError("an accepted write did not become durable within 1000 requests")


def _check(place: DestinationPlace, part: SourceTable, rows: list[Row]) -> None:
    assert place.rows(part.target) == place.expected(part.schema, rows)


def _check_error(error: LevadaError) -> None:
    assert error.code
    assert error.hint, "an error that needs a person has a hint"


_ELEMENTS = (Kind.INT4, Kind.TEXT, Kind.BOOL, Kind.TIMESTAMPTZ)

KINDS: tuple[Column, ...] = (
    column(1, "id", Kind.INT8),
    *(
        column(n, kind.value, kind)
        for n, kind in enumerate((k for k in Kind if k not in (Kind.INT8, Kind.DECIMAL, Kind.ARRAY)), 2)
    ),
    column(40, "int8", Kind.INT8),
    column(41, "decimal", Kind.DECIMAL, precision=38, scale=9),
    *(column(n, f"{e.value}s", Kind.ARRAY, element=ColumnType(e)) for n, e in enumerate(_ELEMENTS, 50)),
)
"""A column of each kind, and arrays."""


def _attnum(name: str) -> int:
    return next(c.attnum for c in KINDS if c.name == name)


def _values() -> list[dict[str, Any]]:
    """Return rows with ordinary values, the largest, the smallest, and NULL in every column but the key."""
    utc = dt.UTC
    ordinary: dict[str, Any] = {
        "id": 1,
        "bool": True,
        "int2": -7,
        "int4": 70_000,
        "int8": 1 << 40,
        "oid": 4_000_000_000,
        "float4": 1.5,
        "float8": -0.1,
        "decimal": Decimal("12345678901234567890123456789.012345678"),
        "text": "plain, 'quoted', \"double\", back\\slash, new\nline, tab\t, ünï, \U0001f600",
        "bytea": b"\x00\xff\n",
        "date": dt.date(2026, 2, 3),
        "time": dt.time(23, 59, 59, 999999),
        "timestamp": dt.datetime(2026, 2, 3, 4, 5, 6, 7),
        "timestamptz": dt.datetime(2026, 2, 3, 4, 5, 6, 7, utc),
        "uuid": "0f1e2d3c-0000-0000-0000-000000000001",
        "json": '{"a": [1, null, "b"]}',
        "int4s": [1, None, -3],
        "texts": ["", "a,b", None],
        "bools": [True, False],
        "timestamptzs": [dt.datetime(2026, 1, 1, tzinfo=utc)],
    }
    extreme: dict[str, Any] = ordinary | {
        "id": 2,
        "bool": False,
        "int2": -(1 << 15),
        "int4": (1 << 31) - 1,
        "int8": -(1 << 63),
        "oid": 0,
        "float4": float("nan"),
        "float8": 1e308,
        "decimal": Decimal("-99999999999999999999999999999.999999999"),
        "text": "",
        "bytea": b"",
        "date": dt.date(1900, 1, 1),
        "time": dt.time(0),
        "timestamp": dt.datetime(1970, 1, 1),
        "timestamptz": dt.datetime(2999, 12, 31, 23, 59, 59, 999999, utc),
        "uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "json": "null",
        "int4s": [],
        "texts": ["x" * 10_000],
        "bools": [None],
        "timestamptzs": [None],
    }
    infinite = ordinary | {"id": 3, "float4": float("inf"), "float8": float("-inf"), "decimal": Decimal(0)}
    return [ordinary, extreme, infinite, dict.fromkeys(ordinary) | {"id": 4}]
