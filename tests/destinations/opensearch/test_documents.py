"""Documents of OpenSearch: ids, keys, JSON and values that are refused."""

from __future__ import annotations

import urllib.request
from dataclasses import replace
from datetime import time
from typing import Any

import pytest
from tests.destinations.ignored_columns import check_dropped_column
from tests.destinations.opensearch.place import Cluster
from tests.destinations.opensearch.steps import apply, copied

from levada.destinations import OnSchemaChange
from levada.destinations.opensearch.client import Address, Client
from levada.destinations.opensearch.generations import Generations
from levada.destinations.opensearch.naming import Naming
from levada.errors import NeedsOperator
from levada.schema import ColumnType, Kind
from levada.testing import ArrowRows, Source, column, table


def test_a_value_of_a_later_row_is_not_taken(cluster: Cluster) -> None:
    """An unchanged value that moved away is not read from the row that has its former key now."""
    source = Source()
    orders, destination = copied(cluster, source), cluster.started()
    client = Client(Address((cluster.url,)))
    (generation,) = Generations(client, Naming(cluster.prefix), 1, 0).of_alias(cluster.alias(orders.target))
    orders.update(old={"id": 1}, id=9, item="moved", note=None, unchanged=[3])
    batch = orders.batch()
    later = {"id": 1, "item": "another", "note": "another"}
    path = f"/{generation.index}/_doc/1"
    client.request("PUT", path, later, doing="writing", version=1 << 60, version_type="external")
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(batch, source.mark(int(batch.until)))
    assert caught.value.code == "unknown_value"


def test_a_refused_document_is_named_without_its_content(cluster: Cluster) -> None:
    """The error has the id and OpenSearch's reason, and neither the value nor a part of it."""
    source, destination = Source(), cluster.started()
    rows = table(column(1, "id", Kind.TEXT), replace(column(2, "doc", Kind.JSON), type_oid=3802), name="public.docs")
    docs = source.add(rows)
    destination.write_table_rows(docs.target, ArrowRows.of(rows), source.mark(1000))
    docs.insert(id="fine", doc='{"a": 1}')
    docs.insert(id="k,1", doc='{"secret": ' + "7" * 2000 + "}")
    batch = docs.batch()
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(batch, source.mark(int(batch.until)))
    assert caught.value.code == "document_refused"
    assert "k~11" in str(caught.value)
    assert "777" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert destination.applied(rows.id) == source.mark(1000)


def test_unchanged_jsonb_keeps_its_digits(cluster: Cluster) -> None:
    """Numbers that no double holds, and texts that look like Levada's marks, survive an update that leaves them out."""
    source, destination = Source(), cluster.started()
    schema = table(
        column(1, "id", Kind.INT8), column(2, "n", Kind.INT4), replace(column(3, "doc", Kind.JSON), type_oid=3802)
    )
    docs = source.add(schema)
    doc = (
        '{"a": 1.234567890123456789012345678901234567890, "b": 123456789012345678901234567890, "c": 1e400, "d": "1.5"}'
    )
    row = {"id": 1, "n": 1, "doc": doc}
    destination.write_table_rows(docs.target, ArrowRows.of(schema, [row]), source.mark(1000))
    docs.update(id=1, n=2, doc=None, unchanged=[3])
    docs.update(old={"id": 1}, id=7, n=3, doc=None, unchanged=[3])
    batch = docs.batch()
    destination.write_events(batch, source.mark(int(batch.until)))
    path = f"{cluster.url}/{cluster.alias(docs.target)}/_source/7"
    with urllib.request.urlopen(path) as answer:
        text = answer.read().decode()
    assert "".join(doc.split()) in "".join(text.split())
    assert '"n":3' in text


def test_ids_never_collide(cluster: Cluster) -> None:
    """Composite keys with separators, escapes, empty and very long values are different documents."""
    source, destination = Source(), cluster.started()
    schema = table(column(1, "a", Kind.TEXT), column(2, "b", Kind.TEXT), key=(1, 2), name="public.pairs")
    texts = [
        "",
        ",",
        "~",
        "~1",
        "~0",
        "~e",
        "a,b",
        "a",
        "b",
        "~h",
        "é" * 300,
        "x" * 600,
        '"',
        "\n",
        "/../",
        "_x",
        "%2C",
    ]
    rows = [{"a": a, "b": b} for a in texts for b in texts]
    pairs = source.add(schema)
    destination.write_table_rows(pairs.target, ArrowRows.of(schema, rows), source.mark(1000))
    assert len(cluster.documents(cluster.alias(pairs.target))) == len(rows)
    for row in rows[::2]:
        pairs.delete(**row)
    batch = pairs.batch()
    destination.write_events(batch, source.mark(int(batch.until)))
    left = [tuple(r.values()) for r in cluster.rows(pairs.target)]
    assert sorted(left) == sorted(tuple(r.values()) for r in rows[1::2])


def test_keys_of_odd_types(cluster: Cluster) -> None:
    """A key that is a float, an array, bytes or a time is updated and deleted, and never doubled."""
    source, destination = Source(), cluster.started()
    arrays = column(2, "b", Kind.ARRAY, element=ColumnType(Kind.TEXT))
    columns = (column(1, "a", Kind.FLOAT8), arrays, column(3, "c", Kind.BYTEA), column(4, "d", Kind.TIME))
    schema = table(*columns, column(5, "n", Kind.INT4), key=(1, 2, 3, 4), name="public.odd")
    keys: list[dict[str, Any]] = [
        {"a": a, "b": b, "c": c, "d": time(1, 2, 3)}
        for a in (float("nan"), float("inf"), 0.0, 1.5)
        for b in ([], ["x,y"], ["x", "y"], [None, "~"])
        for c in (b"", b"\x00")
    ]
    odd = source.add(schema)
    rows = ArrowRows.of(schema, [{**k, "n": 1} for k in keys])
    destination.write_table_rows(odd.target, rows, source.mark(1000))
    for key in keys[1:]:
        odd.update(**{**key, "a": -0.0 if key["a"] == 0 else key["a"]}, n=2)
    odd.delete(**keys[0])
    batch = odd.batch()
    destination.write_events(batch, source.mark(int(batch.until)))
    assert [r["n"] for r in cluster.rows(odd.target)] == [2] * (len(keys) - 1)


def test_long_json_and_many_columns(cluster: Cluster) -> None:
    """A json above Lucene's limit of a term is stored, and a narrow table may get as many columns as PostgreSQL has."""
    source, destination = Source(), cluster.started()
    schema = table(column(1, "id", Kind.INT8), replace(column(2, "doc", Kind.JSON), type_oid=114), name="public.wide")
    wide = source.add(schema)
    doc = '{"a": "' + "x" * 40_000 + '"}'
    destination.write_table_rows(wide.target, ArrowRows.of(schema, [{"id": 1, "doc": doc}]), source.mark(1000))
    texts = [column(i, f"c{i}", Kind.TEXT) for i in range(3, 1599)]
    wide.alter(replace(schema, columns=(*schema.columns, *texts)))
    wide.insert(id=2, doc=doc, **{c.name: "x" for c in texts})
    apply(destination, source, wide)
    found = cluster.documents(cluster.alias(wide.target))
    assert found["1"]["doc"] == found["2"]["doc"] == doc
    assert len(found["2"]) == 1598


def test_a_dropped_column_that_is_ignored(cluster: Cluster) -> None:
    """Its values stay until their row is written again, as at each destination."""
    ignoring = replace(cluster, context=replace(cluster.context, on_schema_change=OnSchemaChange.IGNORE))
    check_dropped_column(ignoring.open(), cluster.rows)
