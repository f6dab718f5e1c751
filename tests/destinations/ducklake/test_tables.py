"""Tables of DuckLake: rows, columns, names, catalogs and object stores."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.ducklake.steps import ORDERS, apply, check_filters, code_of, copy
from tests.destinations.ignored_columns import check_dropped_column
from tests.destinations.memory import MemoryRows, Stream
from tests.servers.ducklake import DuckLake
from tests.servers.s3 import BUCKET, REGION, ObjectStore

from levada.destinations import OnSchemaChange
from levada.destinations.ducklake.format import INDEXES
from levada.destinations.ducklake.index_sync import sync_index
from levada.schema import ColumnType, Kind, TableTarget
from levada.testing import column, table
from levada.values import QualifiedTable, TableId, TableMode


def test_copy_then_changes(ducklake: DuckLake) -> None:
    """A copy and a batch of changes leave the last state of each row, and a new process reads the watermark."""
    lake = ducklake
    destination = lake.destination()
    stream = copy(lake, destination)
    assert destination.applied(ORDERS.id) == lake.mark(1000)
    assert lake.items() == {1: "item 1", 2: "item 2", 3: "item 3"}
    stream.update(id=1, item="A", note="n")
    stream.delete(id=2)
    stream.insert(id=4, item="d", note=None)
    apply(lake, destination, stream)
    assert lake.items() == {1: "A", 3: "item 3", 4: "d"}
    assert lake.destination().applied(ORDERS.id) == lake.mark(stream.taken)
    assert lake.destination().applied(TableId(1)) is None


def test_indexes_of_the_catalog(ducklake: DuckLake) -> None:
    """A catalog that Levada creates has the indexes of the documentation, which fit one that DuckDB creates."""
    page = (Path(__file__).parents[3] / "docs/destinations/ducklake.md").read_text()
    assert INDEXES in page
    ducklake.destination().startup()
    made = "SELECT indexdef FROM pg_indexes WHERE schemaname = %s AND indexname ~ '_(id|table)$' ORDER BY indexname"
    ours = [text for (text,) in ducklake.db.query(made, "lake")]
    assert len(ours) == INDEXES.count("CREATE INDEX")
    with ducklake.duckdb(METADATA_SCHEMA="'theirs'", DATA_PATH=f"'{ducklake.folder}/theirs'"):
        ducklake.db.execute("SET search_path = theirs", INDEXES)
    assert [text.replace(" theirs.", " lake.") for (text,) in ducklake.db.query(made, "theirs")] == ours


def test_an_index_follows_the_own_commits(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch compares the key index with the table's files only after another writer has replaced some of them."""
    destination, compared = ducklake.destination(), []

    def counted(*given: Any) -> None:
        compared.append(given)
        sync_index(*given)

    monkeypatch.setattr("levada.destinations.ducklake.writes.sync_index", counted)
    stream = copy(ducklake, destination, n=3)
    for turn in range(3):
        stream.update(id=1, item=f"turn {turn}", note="n")
        stream.insert(id=10 + turn, item="new", note=None)
        stream.delete(id=9 + turn)
        apply(ducklake, destination, stream)
    # A file without any row left is removed, and one whose rows begin and end in a batch is never added.
    stream.insert(id=50, item="short", note=None)
    stream.update(id=1, item="last", note="n")
    apply(ducklake, destination, stream)
    assert len(compared) == 1
    with ducklake.duckdb() as connection:
        connection.execute("CALL ducklake_merge_adjacent_files('lake')")
    stream.delete(id=50)
    apply(ducklake, destination, stream)
    assert len(compared) == 2
    assert ducklake.items() == {1: "last", 2: "item 2", 3: "item 3", 12: "new"}


def test_a_changelog_has_every_change_once(ducklake: DuckLake) -> None:
    """A batch that begins below the watermark adds the changes from the watermark on."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination, n=1, mode=TableMode.CHANGELOG)
    stream.update(id=1, item="A", note="n")
    apply(ducklake, destination, stream)
    stream.delete(id=1)
    again = stream.batch(since=1000)
    destination.write_events(again, ducklake.mark(again.until))
    with ducklake.duckdb() as session:
        found = session.execute("SELECT _levada_op FROM shop_public.orders ORDER BY _levada_commit_lsn").fetchall()
    assert found == [("I",), ("U",), ("D",)]


def test_catalogs_that_cannot_be_written(ducklake: DuckLake) -> None:
    """Another version, another data path and a missing one are errors before anything is written."""
    assert code_of(ducklake.destination({"dataPath": ""}).startup) == "data_path_unusable"
    ducklake.destination().startup()
    ducklake.destination({"dataPath": ""}).startup()
    assert code_of(ducklake.destination({"dataPath": "/elsewhere"}).startup) == "data_path_mismatch"
    ducklake.db.execute("UPDATE lake.ducklake_metadata SET value = '1.1' WHERE key = 'version'")
    assert code_of(ducklake.destination().startup) == "catalog_unsupported"


def test_a_catalog_that_is_upgraded_under_a_running_driver(ducklake: DuckLake) -> None:
    """A version that a newer DuckDB wrote after the start is an error before anything is written."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    ducklake.db.execute("UPDATE lake.ducklake_metadata SET value = '1.1' WHERE key = 'version'")
    newest = "SELECT max(snapshot_id) FROM lake.ducklake_snapshot"
    before = ducklake.db.query(newest)
    stream.update(id=1, item="A", note="n")
    assert code_of(lambda: apply(ducklake, destination, stream)) == "catalog_unsupported"
    assert code_of(lambda: copy(ducklake, destination, lsn=5000)) == "catalog_unsupported"
    assert ducklake.db.query(newest) == before
    ducklake.db.execute("UPDATE lake.ducklake_metadata SET value = '1.0' WHERE key = 'version'")
    destination.write_events(stream.batch(since=1000), ducklake.mark(stream.taken))
    assert ducklake.items()[1] == "A"


def test_a_catalog_that_duckdb_has_made(ducklake: DuckLake) -> None:
    """Levada writes to a catalog that DuckDB's extension created, next to its tables."""
    ducklake.folder.mkdir()
    with ducklake.duckdb(DATA_PATH=f"'{ducklake.folder}'") as connection:
        connection.execute("CREATE TABLE mine AS SELECT range AS a FROM range(100)")
    destination = ducklake.destination({"dataPath": ""})
    stream = copy(ducklake, destination)
    stream.delete(id=3)
    apply(ducklake, destination, stream)
    assert ducklake.items() == {1: "item 1", 2: "item 2"}
    assert ducklake.sql("SELECT count(*) FROM mine") == [(100,)]


DEFAULTS = [
    (Kind.TEXT, "it's NULL", "it's NULL"),
    (Kind.TEXT, "NULL", "NULL"),
    (Kind.TEXT, "", ""),
    (Kind.BOOL, "f", False),
    (Kind.INT2, "-5", -5),
    (Kind.FLOAT8, "NaN", "NaN"),
    (Kind.FLOAT8, "-Infinity", -math.inf),
    (Kind.BYTEA, "\\x00ff5c", b"\x00\xff\\"),
    (Kind.DATE, "1969-12-31", dt.date(1969, 12, 31)),
    (Kind.TIME, "23:59:59.5", dt.time(23, 59, 59, 500000)),
    (Kind.TIMESTAMP, "2020-01-01 00:00:00.000001", dt.datetime(2020, 1, 1, 0, 0, 0, 1)),
    (Kind.TIMESTAMPTZ, "2020-01-01 00:00:00+02", dt.datetime(2019, 12, 31, 22, tzinfo=dt.UTC)),
    (Kind.UUID, "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000a"),
    (Kind.JSON, '{"a": 1}', '{"a": 1}'),
]


@pytest.mark.nightly
def test_defaults_of_added_columns(ducklake: DuckLake) -> None:
    """Rows from before ADD COLUMN have its constant, of each type, in reads, in filters and in updated rows."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    added = [column(10 + i, f"c{i}", kind, missing_value=text) for i, (kind, text, _) in enumerate(DEFAULTS)]
    added.append(column(40, "n", Kind.DECIMAL, precision=10, scale=3, missing_value="-1.5"))
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, *added)))
    apply(ducklake, destination, stream)
    stream.update(id=1, item="one", note="n", unchanged=[c.attnum for c in added])
    stream.insert(id=4, item="four", note=None)
    apply(ducklake, destination, stream)
    expected = {**{f"c{i}": value for i, (_, _, value) in enumerate(DEFAULTS)}, "n": Decimal("-1.500")}
    for row in ducklake.rows():
        seen = {name: "NaN" if row[name] != row[name] else row[name] for name in expected}
        assert seen == (dict.fromkeys(expected) if row["id"] == 4 else expected)
    with ducklake.duckdb() as connection:
        check_filters(connection, "shop_public.orders")


def test_an_array_with_a_default_needs_a_resync(ducklake: DuckLake) -> None:
    """DuckDB reads the default of a list as NULL, so the change is refused, and nothing is written."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    tags = column(9, "tags", Kind.ARRAY, element=ColumnType(Kind.INT4), missing_value="{}")
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, tags)))
    stream.delete(id=1)
    assert code_of(lambda: apply(ducklake, destination, stream)) == "schema_change_unsupported"
    assert ducklake.items() == {1: "item 1", 2: "item 2", 3: "item 3"}


def test_columns_change_in_place(ducklake: DuckLake) -> None:
    """Renames, drops, wider types and a column that comes back under the old name keep each row's values."""
    schema = table(
        column(1, "id", Kind.INT2), column(2, "a", Kind.INT4), column(3, "b", Kind.TEXT), column(4, "f", Kind.FLOAT4)
    )
    destination, target = ducklake.destination(), TableTarget.of(schema)
    rows = [{"id": i, "a": i, "b": f"b{i}", "f": 0.5} for i in (1, 2)]
    destination.write_table_rows(target, MemoryRows(schema, rows), ducklake.mark(1000))
    stream = Stream(schema)
    stream.alter(
        table(
            column(1, "id", Kind.INT8),
            column(2, "renamed", Kind.INT8),
            column(4, "f", Kind.FLOAT8),
            column(5, "b", Kind.INT4),
        )
    )
    stream.update(id=1, renamed=2**40, f=1e300, b=7)
    apply(ducklake, destination, stream)
    assert ducklake.rows() == [
        {"id": 1, "renamed": 2**40, "f": 1e300, "b": 7},
        {"id": 2, "renamed": 2, "f": 0.5, "b": None},
    ]
    with ducklake.duckdb() as connection:
        check_filters(connection, "shop_public.orders")
        past = connection.execute("SELECT * FROM shop_public.orders AT (VERSION => 2) ORDER BY id").fetchall()
        assert past == [(1, 1, "b1", 0.5), (2, 2, "b2", 0.5)]


@pytest.mark.nightly
def test_odd_names(ducklake: DuckLake) -> None:
    """Names with quotes, dots, slashes and letters of any language are names like any other."""
    for i, name in enumerate(['a"b', "a.b", "../up", "Größe", "select", "x y", "100%", "a'b", "\U0001f600"]):
        schema = replace(ORDERS, id=TableId(500 + i), name=QualifiedTable("public", name))
        destination = ducklake.destination()
        stream = copy(ducklake, destination, schema)
        stream.delete(id=1)
        apply(ducklake, destination, stream)
        assert ducklake.items(name) == {2: "item 2", 3: "item 3"}
        destination.drop_table_for_copy(TableTarget.of(schema))
    inside = ducklake.folder.resolve()
    assert all(inside in file.resolve().parents for file in ducklake.folder.parent.rglob("*.parquet"))


def test_an_object_store(ducklake: DuckLake, s3: ObjectStore, tmp_path: Path) -> None:
    """Files go to an object store whose keys are in the Secret. DuckDB reads them where the store keeps them."""
    secret = tmp_path / "secret"
    secret.mkdir()
    for name, value in {"username": "postgres", "password": "unused", **s3.keys}.items():
        (secret / name).write_text(value)
    place = {"s3.endpoint": f"http://127.0.0.1:{s3.port}", "s3.region": REGION}
    settings = {"dataPath": f"s3://{BUCKET}/ducklake/", "properties": place}
    destination = ducklake.destination(settings, credentials=secret)
    stream = copy(ducklake, destination)
    stream.update(id=1, item="one", note=None, unchanged=[3])
    apply(ducklake, destination, stream)
    stream.update(id=1, item="uno", note=None, unchanged=[3])
    stream.delete(id=2)
    apply(ducklake, ducklake.destination(settings, credentials=secret, work="other"), stream)
    ducklake.options = {"DATA_PATH": f"'{s3.buckets / BUCKET}/ducklake/'", "OVERRIDE_DATA_PATH": "true"}
    assert {r["id"]: (r["item"], r["note"]) for r in ducklake.rows()} == {
        1: ("uno", "x" * 100),
        3: ("item 3", "x" * 100),
    }
    (secret / "s3.secret-access-key").write_text("wrong")
    stream.delete(id=3)
    late = ducklake.destination(settings, credentials=secret)
    assert code_of(lambda: apply(ducklake, late, stream)) in ("destination_denied", "destination_unavailable")


def test_a_dropped_column_that_is_ignored(ducklake: DuckLake) -> None:
    """Its values stay until their row is written again, as at each destination."""
    check_dropped_column(ducklake.destination(on_schema_change=OnSchemaChange.IGNORE), lambda target: ducklake.rows())
