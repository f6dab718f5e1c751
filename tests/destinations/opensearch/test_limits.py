"""Limits and blocks of the cluster, and shards that no node has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from opensearchpy import OpenSearch
from tests.destinations.opensearch.place import Cluster
from tests.destinations.opensearch.steps import ORDERS, ROWS, apply, copied
from tests.rigs.waiting import until

from levada.destinations.opensearch import OpenSearchDestination
from levada.errors import NeedsOperator, Transient
from levada.testing import ArrowRows, Source


@contextmanager
def cluster_settings(client: OpenSearch, **settings: Any) -> Iterator[None]:
    """Change settings of the cluster for the length of the block."""
    client.cluster.put_settings(body={"persistent": settings})
    try:
        yield
    finally:
        client.cluster.put_settings(body={"persistent": dict.fromkeys(settings)})


def test_a_full_disk(cluster: Cluster) -> None:
    """The block of the flood stage is reported as a full disk. Once it is gone, the same batch is written."""
    source, client = Source(), cluster.client()
    orders, destination = copied(cluster, source), cluster.started()
    (index,) = client.indices.get_alias(name=cluster.alias(orders.target))
    orders.insert(id=9, item="nine", note=None)
    batch = orders.batch()
    for blocked in (index, f"{cluster.prefix}levada-state"):
        client.indices.put_settings(index=blocked, body={"index.blocks.read_only_allow_delete": True})
        with pytest.raises(Transient) as caught:
            destination.write_events(batch, source.mark(int(batch.until)))
        assert caught.value.code == "destination_full", caught.value
        assert "read_only_allow_delete" in caught.value.hint
        client.indices.put_settings(index=blocked, body={"index.blocks.read_only_allow_delete": None})
    destination.write_events(batch, source.mark(int(batch.until)))
    assert set(cluster.documents(cluster.alias(orders.target))) == {"1", "2", "3", "9"}


def test_nearly_full_disks(cluster: Cluster) -> None:
    """The block of new indices, which OpenSearch sets above the high watermark, is reported as a full disk."""
    source, client = Source(), cluster.client()
    orders, destination = copied(cluster, source), cluster.started()
    with cluster_settings(client, **{"cluster.blocks.create_index": True}), pytest.raises(Transient) as caught:
        destination.write_table_rows(orders.target, ArrowRows.of(ORDERS, ROWS), source.mark(1000))
    assert caught.value.code == "destination_full", caught.value
    assert "cluster.blocks.create_index" in caught.value.hint


def test_limits_of_the_cluster(cluster: Cluster) -> None:
    """A copy above the limit of shards, and a column above that of fields, say which limit it is."""
    source, client = Source(), cluster.client()
    orders, destination = copied(cluster, source), cluster.started()
    with cluster_settings(client, **{"cluster.max_shards_per_node": 1}), pytest.raises(NeedsOperator) as caught:
        destination.write_table_rows(orders.target, ArrowRows.of(ORDERS, ROWS), source.mark(1000))
    assert caught.value.code == "destination_limit"
    assert "shards" in caught.value.message
    assert "max_shards_per_node" in caught.value.hint
    (index,) = client.indices.get_alias(name=cluster.alias(orders.target))
    client.indices.put_settings(index=index, body={"index.mapping.total_fields.limit": 1})
    orders.alter(replace(ORDERS, columns=(*ORDERS.columns, replace(ORDERS.columns[1], attnum=4, name="more"))))
    orders.insert(id=9, item="nine", note=None, more="m")
    batch = orders.batch()
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(batch, source.mark(int(batch.until)))
    assert caught.value.code == "destination_limit"
    assert "total fields" in caught.value.message
    client.indices.put_settings(index=index, body={"index.mapping.total_fields.limit": 5000})
    destination.write_events(batch, source.mark(int(batch.until)))
    assert cluster.documents(cluster.alias(orders.target))["9"]["more"] == "m"


@pytest.mark.nightly
def test_a_document_above_the_limit_of_a_request(cluster: Cluster) -> None:
    """Such a document parks the table with its id, instead of a connection that the node closes."""
    source = Source()
    orders, destination = copied(cluster, source), cluster.started()
    orders.insert(id=9, item="i" * (101 << 20), note=None)
    with pytest.raises(NeedsOperator) as caught:
        apply(destination, source, orders)
    assert caught.value.code == "document_too_large"
    assert "_id 9" in caught.value.message
    assert "http.max_content_length" in caught.value.hint
    assert len(caught.value.message) < 300


@pytest.mark.nightly
def test_rows_of_a_missing_shard_are_not_left_out(cluster: Cluster) -> None:
    """A rewrite of the documents waits for a shard that no node has, instead of copying the others alone."""
    source, client = Source(), cluster.client()
    target = source.add(ORDERS)
    settings = cluster.settings.model_copy(update={"shards": 2})
    destination = OpenSearchDestination.from_settings(settings, cluster.context)
    destination.startup()
    rows = [{"id": i, "item": f"item {i}", "note": None} for i in range(40)]
    destination.write_table_rows(target.target, ArrowRows.of(ORDERS, rows), source.mark(1000))
    (index,) = client.indices.get_alias(name=cluster.alias(target.target))
    target.alter(replace(ORDERS, columns=(ORDERS.columns[0], replace(ORDERS.columns[1], name="thing"))))
    batch = target.batch()
    node = next(iter(client.nodes.info()["nodes"].values()))["name"]
    with cluster_settings(client, **{"cluster.routing.allocation.enable": "none"}):
        cancel = {"index": index, "shard": 0, "node": node, "allow_primary": True}
        client.cluster.reroute(body={"commands": [{"cancel": cancel}]})
        assert client.cluster.health(index=index)["status"] == "red"
        with pytest.raises(Transient):
            destination.write_events(batch, source.mark(int(batch.until)))

    def status() -> str:
        client.cluster.reroute(params={"retry_failed": "true"})
        return str(client.cluster.health(index=index)["status"])

    until(status, lambda found: found != "red")
    destination.write_events(batch, source.mark(int(batch.until)))
    assert len(cluster.documents(cluster.alias(target.target))) == 40


def test_an_lsn_that_no_version_holds(cluster: Cluster) -> None:
    """The message names the table and the limits, and nothing is written."""
    source = Source(lsn=2**57)
    orders, destination = copied(cluster, source), cluster.started()
    orders.insert(id=9, item="nine", note=None)
    with pytest.raises(NeedsOperator) as caught:
        apply(destination, source, orders)
    assert caught.value.code == "version_exhausted"
    assert "a transaction has more than 133955584 changes, or its LSN is above 2000000/0" in caught.value.message
    assert "levada resync MANIFEST TABLE" in caught.value.hint
    assert set(cluster.documents(cluster.alias(orders.target))) == {"1", "2", "3"}
