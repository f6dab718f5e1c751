"""Tables of BigQuery: changes, pieces, partitions, schema changes and the settings of datasets."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from tests.destinations.bigquery.warehouse import ORDERS, Warehouse, apply, copy, error_of
from tests.destinations.ignored_columns import check_dropped_column
from tests.destinations.memory import MemoryRows, Stream

from levada.destinations import OnSchemaChange
from levada.destinations.bigquery.rest import RestClient
from levada.schema import Kind, TableTarget
from levada.testing import column, table
from levada.values import TableId, TableMode


def test_copy_then_changes(warehouse: Warehouse) -> None:
    """A copy and a batch of changes leave the last state of each row, and no staging table."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    assert destination.applied(ORDERS.id) == warehouse.mark(1000)
    stream.update(id=1, item="A", note="n")
    stream.delete(id=2)
    stream.insert(id=4, item="d", note=None)
    apply(warehouse, destination, stream)
    assert warehouse.items() == {1: "A", 3: "item 3", 4: "d"}
    assert destination.applied(ORDERS.id) == warehouse.mark(stream.taken)
    assert warehouse.destination().applied(ORDERS.id) == warehouse.mark(stream.taken)
    assert warehouse.destination().applied(TableId(1)) is None
    assert warehouse.staged() == set()


def test_a_changelog_has_every_change(warehouse: Warehouse) -> None:
    """A changelog has copied rows, both halves of a changed key, deletes and truncates, each once, with its LSN."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination, mode=TableMode.CHANGELOG, n=1)
    stream.update(id=1, item="A", note=None, unchanged=[3])
    stream.update(old={"id": 1}, id=2, item="B", note="n")
    stream.truncate()
    apply(warehouse, destination, stream)
    stream.delete(id=2)
    again = stream.batch(since=1000)
    destination.write_events(again, warehouse.mark(again.until))
    found = warehouse.server.read(warehouse.dataset, "orders").sort_by("_levada_commit_lsn").to_pylist()
    assert [(r["_levada_op"], r["id"], r["_levada_unchanged"]) for r in found] == [
        ("I", 1, []),
        ("U", 1, ["note"]),
        ("D", 1, []),
        ("I", 2, []),
        ("T", None, []),
        ("D", 2, []),
    ]
    assert found[0]["_levada_commit_lsn"] == 1000
    assert found[0]["_levada_ordinal"] is None
    assert all(r["_levada_ordinal"] is not None for r in found[1:])


def test_a_batch_of_many_pieces(warehouse: Warehouse) -> None:
    """Pieces of a batch are merged in order, and unknown values pass from piece to piece, under other keys too."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    stream.limit(piece_rows=1)
    for turn in range(3):
        stream.update(id=1, item=f"turn {turn}", note=None, unchanged=[3])
    stream.update(old={"id": 1}, id=5, item="five", note=None, unchanged=[3])
    stream.update(old={"id": 5}, id=6, item="six", note=None, unchanged=[3])
    stream.delete(id=2)
    stream.insert(id=2, item="again", note="n")
    apply(warehouse, destination, stream)
    assert warehouse.rows(columns="id, item, note") == [
        ["2", "again", "n"],
        ["3", "item 3", "x" * 100],
        ["6", "six", "x" * 100],
    ]


@pytest.mark.parametrize(
    "default",
    [{"defaultTableExpirationMs": "3600000"}, {"defaultCollation": "und:ci"}],
    ids=["expiration", "collation"],
)
def test_defaults_of_a_dataset_that_lose_rows(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, default: dict[str, str]
) -> None:
    """No table is created in a dataset whose defaults would lose rows."""
    destination, dataset = warehouse.destination(), RestClient.dataset

    def with_default(self: RestClient, name: str) -> Any:
        found = dataset(self, name)
        return None if found is None else {**found, **default}

    monkeypatch.setattr(RestClient, "dataset", with_default)
    for call in (lambda: copy(warehouse, destination), warehouse.destination):
        assert error_of(call).code == "destination_loses_rows"
    assert not warehouse.server.tables(warehouse.dataset)


def test_partitions_and_clusters(warehouse: Warehouse) -> None:
    """A table has the partitions and clusters of its layout, and another layout needs another table."""
    schema = table(column(1, "id", Kind.INT8), column(2, "at", Kind.TIMESTAMPTZ), column(3, "item", Kind.TEXT))
    layout = {"table": "public.orders", "partitionBy": "at", "partitionUnit": "Month", "clusterBy": ["item"]}
    rows = [{"id": 1, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "item": "a"}]
    warehouse.destination().write_table_rows(TableTarget.of(schema), MemoryRows(schema, rows), warehouse.mark(1000))
    path = f"/datasets/{warehouse.dataset}/tables/orders"
    assert warehouse.server.call("GET", path)["clustering"] == {"fields": ["id"]}
    warehouse.manifest["layouts"] = [layout]
    destination = warehouse.destination()
    assert destination.copy_replacement(TableTarget.of(schema), MemoryRows(schema), warehouse.mark(1000)) is False
    destination.write_table_rows(TableTarget.of(schema), MemoryRows(schema, rows), warehouse.mark(1000))
    found = warehouse.server.call("GET", path)
    assert found["timePartitioning"]["type"] == "MONTH"
    assert found["timePartitioning"]["field"] == "at"
    assert found["clustering"] == {"fields": ["item"]}
    stream = Stream(schema)
    stream.alter(replace(schema, columns=schema.columns[:2]))
    stream.update(id=1, at=None)
    assert error_of(lambda: apply(warehouse, destination, stream)).code == "schema_change_unsupported"
    warehouse.manifest["layouts"] = [{**layout, "clusterBy": ["missing"]}]
    error = error_of(
        lambda: warehouse.destination().write_table_rows(
            TableTarget.of(schema), MemoryRows(schema, rows), warehouse.mark(1000)
        )
    )
    assert error.code == "invalid_manifest"


def test_policies_of_schema_changes(warehouse: Warehouse) -> None:
    """Fail names the change and parks. Ignore leaves new columns out, and dropped ones become NULL."""
    stream = copy(warehouse, warehouse.destination())
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns[:2], column(4, "more", Kind.INT4, missing_value="1"))))
    stream.insert(id=4, item="d", more=5)
    batch = stream.batch()
    failing = warehouse.destination(on_schema_change=OnSchemaChange.FAIL)
    error = error_of(lambda: failing.write_events(batch, warehouse.mark(batch.until)))
    assert error.code == "schema_change_refused"
    assert "more" in error.message
    warehouse.destination(on_schema_change=OnSchemaChange.IGNORE).write_events(batch, warehouse.mark(batch.until))
    assert warehouse.rows(columns="*")[-1] == ["4", "d", None]


def test_a_dropped_column_that_is_ignored(warehouse: Warehouse) -> None:
    """Its values stay until their row is written again, as at each destination."""
    check_dropped_column(warehouse.destination(on_schema_change=OnSchemaChange.IGNORE), warehouse.read_back)
