"""The Iceberg destination in each catalog, beyond the conformance suite."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.destinations.ignored_columns import check_dropped_column
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import ORDERS, apply, copy, items
from tests.rigs.lake import Lake

from levada.destinations import OnSchemaChange
from levada.errors import NeedsOperator
from levada.schema import ColumnType, Kind, TableTarget
from levada.testing import column, table
from levada.values import SnapshotId, TableId


@pytest.fixture(params=["hadoop", "jdbc", "object_lake", "newer_object_lake"])
def lake(request: pytest.FixtureRequest) -> Lake:
    """Each catalog in turn."""
    found: Lake = request.getfixturevalue(request.param)
    return found


@pytest.mark.sampled
def test_copy_then_changes(lake: Lake) -> None:
    """A copy and a batch of changes leave the last state of each row.

    A restarted destination reads the same watermark.
    """
    destination = lake.destination()
    stream = copy(lake, destination)
    assert destination.applied(ORDERS.id) == lake.mark(1000)
    stream.update(id=1, item="A", note="n")
    stream.delete(id=2)
    stream.insert(id=4, item="d", note=None)
    apply(lake, destination, stream)
    assert items(lake) == {1: "A", 3: "item 3", 4: "d"}
    assert destination.applied(ORDERS.id) == lake.mark(stream.taken)
    assert lake.destination().applied(ORDERS.id) == lake.mark(stream.taken)
    assert lake.destination().applied(TableId(1)) is None


@pytest.mark.nightly
def test_a_large_batch_is_applied_in_pieces(hadoop: Lake) -> None:
    """A batch that is folded piece by piece comes to the same, in one commit, with truncates and unknown values."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    stream.limit(piece_rows=3)
    for turn in range(4):
        for i in (1, 2, 4):
            stream.update(id=i, item=f"turn {turn}", note=None, unchanged=[3]) if i != 4 or turn else stream.insert(
                id=4, item="new", note="four"
            )
    stream.update(old={"id": 4}, id=5, item="five", note=None, unchanged=[3])
    snapshots = len(hadoop.iceberg().metadata.snapshots)
    apply(hadoop, destination, stream)
    assert len(hadoop.iceberg().metadata.snapshots) == snapshots + 1
    assert items(hadoop) == {1: "turn 3", 2: "turn 3", 3: "item 3", 5: "five"}
    assert {r["id"]: r["note"] for r in hadoop.rows()}[5] == "four"
    for i in (6, 7, 8):
        stream.insert(id=i, item="gone", note=None)
    stream.truncate()
    for i in (6, 7, 8, 9):
        stream.insert(id=i, item="kept", note=None)
        stream.update(id=i, item="kept still", note=None)
    stream.delete(id=6)
    apply(hadoop, destination, stream)
    assert items(hadoop) == dict.fromkeys((7, 8, 9), "kept still")


@pytest.mark.sampled
def test_columns_come_and_go(lake: Lake) -> None:
    """Added, renamed, dropped and widened columns keep the values of the rows that are there."""
    v0 = table(column(1, "id", Kind.INT4), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
    destination = lake.destination()
    stream = copy(lake, destination, v0)
    v1 = replace(
        v0,
        columns=(
            column(1, "id", Kind.INT8),
            # The names of two columns change places.
            column(2, "note", Kind.TEXT),
            column(4, "price", Kind.DECIMAL, precision=10, scale=2),
            column(5, "item", Kind.TEXT),
        ),
    )
    stream.alter(v1)
    stream.insert(id=1 << 40, note="new", price=Decimal("1.50"), item="fresh")
    apply(lake, destination, stream)
    first = lake.rows()
    assert {r["id"]: (r["note"], r["price"], r["item"]) for r in first} == {
        1: ("item 1", None, None),
        2: ("item 2", None, None),
        3: ("item 3", None, None),
        1 << 40: ("new", Decimal("1.50"), "fresh"),
    }
    v2 = replace(v1, columns=(*v1.columns[:2], column(4, "price", Kind.DECIMAL, precision=14, scale=2)))
    stream.alter(v2)
    stream.update(id=2, note=None, price=Decimal("123456789012.00"), unchanged=[2])
    apply(lake, lake.destination(), stream)
    assert {r["id"]: (r["note"], r["price"]) for r in lake.rows()}[2] == ("item 2", Decimal("123456789012.00"))
    assert lake.by_pyiceberg().schema.names == ["id", "note", "price"]


@pytest.mark.sampled
def test_an_added_constant_reaches_the_rows_that_are_there(lake: Lake) -> None:
    """After ADD COLUMN with a constant, rows from before have it, and later NULLs stay NULL."""
    destination = lake.destination()
    stream = copy(lake, destination)
    added = (
        column(4, "n", Kind.INT4, missing_value="7"),
        column(5, "at", Kind.TIMESTAMPTZ, missing_value="2020-01-02 03:04:05+00"),
        column(6, "open", Kind.TIME, missing_value="08:30:00"),
    )
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, *added)))
    stream.insert(id=4, item="d", n=None)
    stream.delete(id=1)
    apply(lake, destination, stream)
    at = dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert {r["id"]: (r["n"], r["at"], r["open"]) for r in lake.rows()} == {
        2: (7, at, "08:30:00.000000"),
        3: (7, at, "08:30:00.000000"),
        4: (None, None, None),
    }
    stream.update(id=4, item="D", n=1)
    apply(lake, lake.destination(), stream)
    assert {r["id"]: r["n"] for r in lake.rows()} == {2: 7, 3: 7, 4: 1}


@pytest.mark.nightly
def test_an_added_date_that_python_does_not_have(lake: Lake) -> None:
    """A constant before the year 1 reaches the rows that are there, as a number of days."""
    destination = lake.destination()
    stream = copy(lake, destination)
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, column(4, "day", Kind.DATE, missing_value="0044-03-15 BC"))))
    stream.delete(id=1)
    apply(lake, destination, stream)
    for rows in (lake.by_pyiceberg(), lake.by_spark()):
        assert rows["day"].cast(pa.int32()).to_pylist() == [-735160, -735160]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "columns",
    [
        (column(1, "id", Kind.INT8), column(2, "item", Kind.INT4), column(3, "note", Kind.TEXT)),
        (*ORDERS.columns, column(4, "made", Kind.TEXT, rewritten=True)),
        (*ORDERS.columns, column(4, "ITEM", Kind.TEXT)),
        (*ORDERS.columns, column(4, "_pos", Kind.TEXT)),
    ],
    ids=["type", "computed default", "case", "metadata column"],
)
def test_a_change_that_cannot_be_followed_parks_the_table(hadoop: Lake, columns: Any) -> None:
    """Nothing is written, the error says how to go on, and the table stays as it was."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    before = hadoop.rows()
    stream.alter(replace(ORDERS, columns=columns))
    with pytest.raises(NeedsOperator) as caught:
        apply(hadoop, destination, stream)
    assert caught.value.code in {"schema_change_unsupported", "ambiguous_columns", "reserved_column_name"}
    assert caught.value.hint
    assert hadoop.rows() == before
    assert destination.applied(ORDERS.id) == hadoop.mark(1000)


def test_policies_of_schema_changes(hadoop: Lake) -> None:
    """Fail names the change and parks the table. Ignore omits new columns, and dropped ones become NULL."""
    stream = copy(hadoop, hadoop.destination())
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns[:2], column(4, "note", Kind.INT4, missing_value="1"))))
    stream.insert(id=4, item="d", note=5)
    batch = stream.batch()
    with pytest.raises(NeedsOperator) as caught:
        hadoop.destination(on_schema_change=OnSchemaChange.FAIL).write_events(batch, hadoop.mark(batch.until))
    assert caught.value.code == "schema_change_refused"
    assert "note" in caught.value.message
    hadoop.destination(on_schema_change=OnSchemaChange.IGNORE).write_events(batch, hadoop.mark(batch.until))
    assert {r["id"]: r["note"] for r in hadoop.rows()}[4] is None
    assert hadoop.by_pyiceberg().schema.names == ["id", "item", "note"]


def test_the_table_of_another_is_never_written(hadoop: Lake) -> None:
    """No copy replaces a table of another pipeline, or of none."""
    destination = hadoop.destination()
    copy(hadoop, destination)
    hadoop.sql("CREATE TABLE {t} (a int) USING iceberg", table="mine")
    mine = table(column(1, "id", Kind.INT8), id=7, name="public.mine")
    for call in (
        lambda: destination.drop_table_for_copy(TableTarget.of(mine)),
        lambda: destination.write_table_rows(TableTarget.of(mine), MemoryRows(mine), hadoop.mark(1000)),
    ):
        with pytest.raises(NeedsOperator) as caught:
            call()
        assert caught.value.code == "table_not_ours"
    assert hadoop.by_spark("mine").schema.names == ["a"]


EVERY = table(
    column(1, "id", Kind.UUID),
    column(2, "part", Kind.TIME),
    column(3, "b", Kind.BOOL),
    column(4, "s", Kind.INT2),
    column(5, "f", Kind.FLOAT4),
    column(6, "d", Kind.FLOAT8),
    column(7, "big", Kind.DECIMAL, precision=38, scale=10),
    column(8, "bytes", Kind.BYTEA),
    column(9, "day", Kind.DATE),
    column(10, "local", Kind.TIMESTAMP),
    column(11, "at", Kind.TIMESTAMPTZ),
    column(12, "doc", Kind.JSON),
    column(13, "numbers", Kind.ARRAY, element=ColumnType(Kind.INT4)),
    column(14, "times", Kind.ARRAY, element=ColumnType(Kind.TIME)),
    key=(1, 2),
    name="public.every",
    version=int(SnapshotId(0)),
)


@pytest.mark.sampled
def test_every_kind_of_value(lake: Lake) -> None:
    """Each kind of column keeps its values through copy, changes and completion. Times are text."""
    time = dt.time(23, 59, 59, 999999)
    first: dict[str, Any] = {
        "id": "0f1e2d3c-0000-0000-0000-000000000001",
        "part": dt.time(1, 2, 3),
        "b": True,
        "s": -7,
        "f": 1.5,
        "d": -0.1,
        "big": Decimal("1234567890123456789012345678.0123456789"),
        "bytes": b"\x00\xff",
        "day": dt.date(1, 1, 1),
        "local": dt.datetime(2026, 2, 3, 4, 5, 6, 7),
        "at": dt.datetime(2026, 2, 3, 4, 5, 6, 7, dt.UTC),
        "doc": '{"a": 1}',
        "numbers": [1, None, 3],
        "times": [time, None],
    }
    second: dict[str, Any] = dict.fromkeys(EVERY.arrow.names) | {"id": "x", "part": time, "times": []}
    destination = lake.destination()
    destination.write_table_rows(TableTarget.of(EVERY), MemoryRows(EVERY, [first, second]), lake.mark(1000))
    stream = Stream(EVERY)
    hidden = dict.fromkeys(("doc", "bytes", "numbers", "times", "big"))
    stream.update(**{**first, **hidden, "s": 8}, unchanged=[7, 8, 12, 13, 14])
    apply(lake, lake.destination(work="other"), stream)
    told = {**first, "s": 8, "part": "01:02:03.000000", "times": ["23:59:59.999999", None]}
    assert lake.rows("every") == [told, {**second, "part": "23:59:59.999999"}]


def test_a_dropped_column_that_is_ignored(hadoop: Lake) -> None:
    """Its values stay until their row is written again, as at each destination."""
    check_dropped_column(hadoop.destination(on_schema_change=OnSchemaChange.IGNORE), lambda target: hadoop.rows())
