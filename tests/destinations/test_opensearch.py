"""The OpenSearch destination on a real node."""

from __future__ import annotations

import urllib.request
from dataclasses import replace
from datetime import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.destinations.opensearch_place import Cluster
from tests.servers.ports import free_port

from levada.destinations import DestinationContext, TableTarget
from levada.destinations.opensearch import OpenSearchDestination
from levada.destinations.opensearch.bulk import Bulk
from levada.destinations.opensearch.client import Address, Client
from levada.destinations.opensearch.generations import Generations
from levada.destinations.opensearch.naming import Naming, writer_alias
from levada.destinations.opensearch.settings import Settings
from levada.destinations.opensearch.state import State
from levada.destinations.opensearch.versions import versions_of
from levada.errors import DestinationChanged, NeedsOperator, StaleEpoch, Transient
from levada.schema import ColumnType, Kind
from levada.testing import ArrowRows, DestinationConformance, DestinationPlace, Source, SourceTable, column, table

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
ROWS = [{"id": i, "item": f"item {i}", "note": None} for i in range(1, 4)]


@pytest.fixture
def cluster(opensearch: str, tmp_path: Path) -> Cluster:
    """Return an empty place in the cluster."""
    return Cluster.new(opensearch, tmp_path)


class TestOpenSearch(DestinationConformance):
    """The OpenSearch destination under the conformance suite."""

    @pytest.fixture
    def place(self, cluster: Cluster) -> DestinationPlace:
        """Return a place in the cluster, read by OpenSearch's client."""
        return cluster.place()


def test_an_older_driver_cannot_write(cluster: Cluster) -> None:
    """Once a newer driver has opened a table, each write of the older one is refused, and nothing comes into being."""
    source = Source()
    orders, older, newer = copied(cluster, source), cluster.started(), cluster.started()
    orders.insert(id=4, item="four", note=None)
    apply(older, source, orders)
    orders.insert(id=5, item="five", note=None)
    apply(newer, source, orders, epoch=2)
    client = cluster.client()
    before = set(client.indices.get(index=f"{cluster.prefix}*"))
    orders.delete(id=5)
    orders.delete(id=1)
    batch = orders.batch()
    with pytest.raises(StaleEpoch):
        older.write_events(batch, source.mark(int(batch.until), 1))
    with pytest.raises(StaleEpoch):
        older.drop_table_for_copy(orders.target, 1)
    assert set(client.indices.get(index=f"{cluster.prefix}*")) == before
    assert set(cluster.documents(cluster.alias(orders.target))) == {"1", "2", "3", "4", "5"}


def test_a_late_request_changes_nothing(cluster: Cluster) -> None:
    """A bulk request that arrives after later ones neither overwrites a document nor brings a deleted one back."""
    source = Source()
    orders, destination = copied(cluster, source), cluster.started()
    orders.update(id=1, item="late", note=None)
    orders.update(id=2, item="late", note=None)
    late = orders.batch()
    orders.update(id=1, item="newest", note=None)
    orders.delete(id=2)
    newest = orders.batch(since=1000)
    state = destination.write_events(newest, source.mark(int(newest.until)))
    assert state is not None
    generation = next(iter(Generations(Client(Address((cluster.url,))), Naming(cluster.prefix), 1, 0).all()))
    rows = pa.table({"id": [1, 2], "item": ["late", "late"], "note": pa.nulls(2, pa.string())})
    version = int(versions_of(late.changes(ORDERS.id).read() or rows, "t").max())
    bulk = Bulk(Client(Address((cluster.url,))), writer_alias(generation.index, 1), "orders")
    for _, documents in generation.layout.documents(rows, ORDERS):
        bulk.index(pa.array(["1", "2"], pa.large_string()), documents, version)
    found = cluster.documents(cluster.alias(orders.target))
    assert {i: d["item"] for i, d in found.items()} == {"1": "newest", "3": "item 3"}


@pytest.mark.parametrize("again", [False, True], ids=["given up", "again"])
def test_a_swap_whose_answer_was_lost(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """A shadow copy that readers see already is neither dropped nor swapped in twice."""
    source = Source()
    orders, destination = copied(cluster, source), cluster.started()
    mark = source.mark(1000)
    assert destination.copy_replacement(orders.target, ArrowRows.of(ORDERS, ROWS[:1]), mark)
    request = Client.request

    def unanswered(self: Client, method: str, path: str, *arguments: Any, **more: Any) -> Any:
        answer = request(self, method, path, *arguments, **more)
        if path == "/_aliases" and more["doing"].startswith("moving"):
            raise Transient("destination_unavailable", "no answer")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Client, "request", unanswered)
        with pytest.raises(Transient):
            destination.swap_replacement(ORDERS.id, mark)
    if again:
        assert destination.swap_replacement(ORDERS.id, mark)
    destination.drop_replacement(ORDERS.id)
    assert set(cluster.documents(cluster.alias(orders.target))) == {"1"}
    assert destination.applied(ORDERS.id) == mark
    orders.insert(id=4, item="four", note=None)
    apply(destination, source, orders)
    assert set(cluster.documents(cluster.alias(orders.target))) == {"1", "4"}


def test_an_older_copy_does_not_replace_what_a_newer_driver_wrote(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer driver that begins to write just before the alias moves keeps its index."""
    source = Source()
    orders, older, newer = copied(cluster, source), cluster.started(), cluster.started()
    assert older.copy_replacement(orders.target, ArrowRows.of(ORDERS, ROWS), source.mark(1000))
    serve = Generations.serve
    orders.insert(id=4, item="four", note=None)

    def overtaken(self: Generations, *arguments: Any) -> Any:
        apply(newer, source, orders, epoch=2)
        return serve(self, *arguments)

    monkeypatch.setattr(Generations, "serve", overtaken)
    with pytest.raises(StaleEpoch):
        older.swap_replacement(ORDERS.id, source.mark(1000))
    older.drop_replacement(ORDERS.id)
    assert set(cluster.documents(cluster.alias(orders.target))) == {"1", "2", "3", "4"}


def test_an_older_driver_cannot_read_values(cluster: Cluster) -> None:
    """An older driver that reads an unchanged value ends as stale, and does not report the row as missing."""
    source = Source()
    orders, older, newer = copied(cluster, source), cluster.started(), cluster.started()
    orders.insert(id=4, item="four", note=None)
    apply(older, source, orders)
    orders.update(id=4, item="4", note=None, unchanged=[3])
    batch = orders.batch()
    newer.write_events(batch, source.mark(int(batch.until), 2))
    with pytest.raises(StaleEpoch):
        older.write_events(batch, source.mark(int(batch.until), 1))


def test_an_older_journal_does_not_replace_a_newer_one(cluster: Cluster) -> None:
    """A journal that an older driver writes late is not the one that a replay reads."""
    orders, client = copied(cluster, Source()), Client(Address((cluster.url,)))
    generations = Generations(client, Naming(cluster.prefix), 1, 0)
    (generation,) = generations.of_alias(cluster.alias(orders.target))
    state = State(client, Naming(cluster.prefix).state_index, "shop", 0)
    older, newer = state.claim(generation, 1), state.claim(generation, 2)
    newer = state.save(state.put_journal(newer, 10, [[{"id": "a", "values": {"3": "new"}}]], "orders"), "orders")
    late = state.put_journal(older, 10, [[{"id": "a", "values": {"3": "old"}}]], "orders")
    assert late.journal is not None
    state.drop_journal(generation.index, late.journal, "orders")
    assert state.read_journal(newer, "orders") == [[{"id": "a", "values": {"3": "new"}}]]


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


def test_what_is_not_ours_stays(cluster: Cluster) -> None:
    """An index or an alias of a user, and the index of another pipeline, are neither written nor removed."""
    source, client = Source(), cluster.client()
    target = source.add(ORDERS).target
    alias = cluster.alias(target)
    client.index(index=alias, id="mine", body={"a": 1}, refresh=True)
    expect_not_ours(cluster.started(), target, source)
    assert set(cluster.documents(alias)) == {"mine"}
    client.indices.delete(index=alias)
    client.indices.create(index=f"{cluster.prefix}mine", body={"aliases": {alias: {}}})
    expect_not_ours(cluster.started(), target, source)
    client.indices.delete(index=f"{cluster.prefix}mine")
    copied(cluster, source)
    other = replace(cluster, context=replace(cluster.context, pipeline="other"))
    expect_not_ours(other.started(), target, source)
    assert set(cluster.documents(alias)) == {"1", "2", "3"}


def expect_not_ours(destination: OpenSearchDestination, target: TableTarget, source: Source) -> None:
    """Check that neither a copy nor a drop takes the place of the index."""
    for call in (
        lambda: destination.check_place(target),
        lambda: destination.drop_table_for_copy(target, 1),
        lambda: destination.write_table_rows(target, ArrowRows.of(ORDERS), source.mark(1000)),
    ):
        with pytest.raises(DestinationChanged) as caught:
            call()
        assert caught.value.code == "table_not_ours"


def test_what_another_client_does_to_the_index(cluster: Cluster) -> None:
    """A removed index, a moved alias and a changed mapping park the table. A resync puts it right."""
    source, client = Source(), cluster.client()
    orders, destination = copied(cluster, source), cluster.started()
    alias = cluster.alias(orders.target)

    def parked(code: str) -> None:
        with pytest.raises(DestinationChanged) as caught:
            destination.maintain(ORDERS.id)
        assert caught.value.code == code
        assert caught.value.hint
        destination.drop_table_for_copy(orders.target, 1)
        destination.write_table_rows(orders.target, ArrowRows.of(ORDERS, ROWS), source.mark(1000))
        destination.maintain(ORDERS.id)
        assert len(cluster.documents(alias)) == 3

    orders.insert(id=4, item="four", note=None)
    apply(destination, source, orders)
    destination.maintain(ORDERS.id)
    (index,) = client.indices.get_alias(name=alias)
    client.indices.delete_alias(index=index, name=alias)
    parked("foreign_schema_change")
    (index,) = client.indices.get_alias(name=alias)
    client.indices.put_mapping(index=index, body={"_meta": {}})
    with pytest.raises(DestinationChanged) as caught:
        destination.maintain(ORDERS.id)
    assert caught.value.code == "destination_table_missing"
    expect_not_ours(destination, orders.target, source)
    client.indices.delete(index=index)
    orders.insert(id=5, item="five", note=None)
    with pytest.raises(DestinationChanged) as caught:
        apply(destination, source, orders)
    assert caught.value.code == "destination_table_missing"
    assert not client.indices.exists(index=alias)


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


def test_templates_and_pipelines_of_a_user_do_not_count(cluster: Cluster) -> None:
    """A template that matches every index adds no ingest pipeline, and a document larger than a body is written."""
    client, source = cluster.client(), Source()
    client.ingest.put_pipeline(id=f"{cluster.prefix}drop", body={"processors": [{"drop": {}}]})
    settings = {"default_pipeline": f"{cluster.prefix}drop", "final_pipeline": f"{cluster.prefix}drop"}
    body = {"index_patterns": [f"{cluster.prefix}*"], "template": {"settings": settings}, "priority": 500}
    client.indices.put_index_template(name=f"{cluster.prefix}template", body=body)
    try:
        orders, destination = copied(cluster, source), cluster.started()
        orders.insert(id=9, item="i" * 12_000_000, note="n")
        apply(destination, source, orders)
        assert len(cluster.documents(cluster.alias(orders.target))["9"]["item"]) == 12_000_000
    finally:
        client.indices.delete_index_template(name=f"{cluster.prefix}template")
        client.ingest.delete_pipeline(id=f"{cluster.prefix}drop")


def test_a_template_of_a_user_leaves_nothing_out(cluster: Cluster) -> None:
    """A template that excludes fields from the documents, or asks for a routing, does not count."""
    client, source = cluster.client(), Source()
    mappings = {"_source": {"excludes": ["note", "lsn"]}, "_routing": {"required": True}}
    body = {"index_patterns": [f"{cluster.prefix}*"], "template": {"mappings": mappings}, "priority": 501}
    client.indices.put_index_template(name=f"{cluster.prefix}template", body=body)
    try:
        orders, destination = copied(cluster, source), cluster.started()
        orders.insert(id=9, item="nine", note="kept")
        apply(destination, source, orders)
        orders.update(id=9, item="9", note=None, unchanged=[3])
        apply(destination, source, orders)
    finally:
        client.indices.delete_index_template(name=f"{cluster.prefix}template")
    assert cluster.documents(cluster.alias(orders.target))["9"] == {"id": 9, "item": "9", "note": "kept"}


def test_a_closed_index(cluster: Cluster) -> None:
    """The error says that the index is closed, and does not blame a row. An opened one is written."""
    source, client = Source(), cluster.client()
    orders, destination = copied(cluster, source), cluster.started()
    (index,) = client.indices.get_alias(name=cluster.alias(orders.target))
    client.indices.close(index=index)
    orders.insert(id=9, item="nine", note=None)
    batch = orders.batch()
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(batch, source.mark(int(batch.until)))
    assert caught.value.code == "destination_rejected"
    assert "_open" in caught.value.hint
    client.indices.open(index=index)
    destination.write_events(batch, source.mark(int(batch.until)))
    assert set(cluster.documents(cluster.alias(orders.target))) == {"1", "2", "3", "9"}


@pytest.mark.parametrize("change", ["truncate", "rename"])
def test_attempts_that_fail_leave_no_index(cluster: Cluster, change: str) -> None:
    """However often a batch fails that needs a new index, there is one index after it succeeds."""
    source, client = Source(), cluster.client()
    orders, destination = copied(cluster, source), cluster.started()
    (index,) = client.indices.get_alias(name=cluster.alias(orders.target))
    if change == "truncate":
        orders.truncate()
    else:
        orders.alter(replace(ORDERS, columns=(replace(ORDERS.columns[0], name="number"), *ORDERS.columns[1:])))
    key = "number" if change == "rename" else "id"
    orders.insert(item="nine", note=None, **{key: 9})
    batch = orders.batch()
    client.indices.put_settings(index=index, body={"index.blocks.read_only": True})
    for _ in range(3):
        with pytest.raises(Transient):
            destination.write_events(batch, source.mark(int(batch.until)))
    assert len(client.indices.get(index=f"{cluster.prefix}*~~*")) <= 2
    client.indices.put_settings(index=index, body={"index.blocks.read_only": None})
    # The next driver removes what a killed one left.
    cluster.started().write_events(batch, source.mark(int(batch.until), 2))
    assert len(client.indices.get(index=f"{cluster.prefix}*~~*")) == 1
    assert len(cluster.documents(cluster.alias(orders.target))) == (1 if change == "truncate" else 4)


def test_an_answer_that_was_lost_when_the_alias_moved(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncate whose last request was carried out without an answer is neither undone nor leaves the former index."""
    source, client = Source(), cluster.client()
    orders, destination = copied(cluster, source), cluster.started()
    orders.truncate()
    orders.insert(id=9, item="nine", note=None)
    batch = orders.batch()
    request = Client.request

    def unanswered(self: Client, method: str, path: str, *arguments: Any, **more: Any) -> Any:
        answer = request(self, method, path, *arguments, **more)
        if path == "/_aliases" and more["doing"].startswith("moving"):
            raise Transient("destination_unavailable", "no answer")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Client, "request", unanswered)
        with pytest.raises(Transient):
            destination.write_events(batch, source.mark(int(batch.until)))
    orders.insert(id=10, item="ten", note=None)
    apply(destination, source, orders)
    assert set(cluster.documents(cluster.alias(orders.target))) == {"9", "10"}
    assert len(client.indices.get(index=f"{cluster.prefix}*~~*")) == 1


def test_a_shadow_copy_survives_a_truncate_of_the_table(cluster: Cluster) -> None:
    """The index of a shadow copy is no leftover, also when the table's own index is read again after an error."""
    source = Source()
    orders, destination = copied(cluster, source), cluster.started()
    mark = source.mark(1000)
    assert destination.copy_replacement(orders.target, ArrowRows.of(ORDERS, ROWS[:2]), mark)
    orders.insert(id=9, item="nine", note=None)
    batch = orders.batch()
    destination.write_events(batch, source.mark(int(batch.until)))
    assert destination.write_replacement_events(batch, source.mark(int(batch.until)))
    assert destination.swap_replacement(ORDERS.id, source.mark(int(batch.until)))
    assert set(cluster.documents(cluster.alias(orders.target))) == {"1", "2", "9"}


def test_a_lost_watermark_parks_the_table(cluster: Cluster) -> None:
    """A table whose watermark another client removed is not written further as if nothing were missing."""
    source, client = Source(), cluster.client()
    orders, destination = copied(cluster, source), cluster.started()
    orders.insert(id=9, item="nine", note=None)
    apply(destination, source, orders)
    client.indices.delete(index=f"{cluster.prefix}levada-state")
    orders.insert(id=10, item="ten", note=None)
    batch = orders.batch()
    with pytest.raises(Transient):
        destination.write_events(batch, source.mark(int(batch.until)))
    with pytest.raises(DestinationChanged) as caught:
        destination.write_events(batch, source.mark(int(batch.until)))
    assert caught.value.code == "destination_table_missing"
    assert "resync" in caught.value.hint
    assert destination.applied(ORDERS.id) is None


def test_a_lost_rewrite_begins_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that its node has lost, or that another client has cancelled, is run again, and every row is there."""
    source = Source()
    orders, destination = copied(cluster, source), cluster.started()
    orders.alter(replace(ORDERS, columns=(ORDERS.columns[0], replace(ORDERS.columns[1], name="thing"))))
    orders.update(id=1, thing="one")
    batch = orders.batch()
    request, lost = Client.request, [True]

    def forgotten(self: Client, method: str, path: str, *arguments: Any, **more: Any) -> Any:
        if path.startswith("/_tasks/") and lost:
            lost.clear()
            path = path.rpartition(":")[0] + ":999999999"
        return request(self, method, path, *arguments, **more)

    monkeypatch.setattr(Client, "request", forgotten)
    destination.write_events(batch, source.mark(int(batch.until)))
    found = cluster.documents(cluster.alias(orders.target))
    assert found == {
        "1": {"id": 1, "thing": "one"},
        "2": {"id": 2, "thing": "item 2"},
        "3": {"id": 3, "thing": "item 3"},
    }


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


def test_no_answer_and_wrong_products(tmp_path: Path) -> None:
    """A server that does not answer is Transient, and the error has no secret."""
    context = DestinationContext(pipeline="shop", work_dir=tmp_path)
    settings = Settings.model_validate({"urls": [f"http://127.0.0.1:{free_port()}"]})
    with pytest.raises(Transient) as caught:
        OpenSearchDestination.from_settings(settings, context).startup()
    assert caught.value.code == "destination_unavailable"


def copied(cluster: Cluster, source: Source) -> SourceTable:
    """Copy three rows of the table of orders."""
    orders = source.add(ORDERS)
    cluster.started().write_table_rows(orders.target, ArrowRows.of(ORDERS, ROWS), source.mark(1000))
    return orders


def apply(destination: OpenSearchDestination, source: Source, part: SourceTable, epoch: int = 1) -> None:
    """Apply the changes since the last batch."""
    batch = part.batch()
    destination.write_events(batch, source.mark(int(batch.until), epoch))
