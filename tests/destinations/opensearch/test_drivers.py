"""Older drivers, late requests and lost answers at an index of OpenSearch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.destinations.opensearch.place import Cluster
from tests.destinations.opensearch.steps import ORDERS, ROWS, apply, copied

from levada.destinations.opensearch.bulk import Bulk
from levada.destinations.opensearch.client import Address, Client
from levada.destinations.opensearch.generations import Generations
from levada.destinations.opensearch.naming import Naming, writer_alias
from levada.destinations.opensearch.state import State
from levada.destinations.opensearch.versions import versions_of
from levada.errors import DestinationChanged, StaleEpoch, Transient
from levada.testing import ArrowRows, Source


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


@pytest.mark.sampled
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
