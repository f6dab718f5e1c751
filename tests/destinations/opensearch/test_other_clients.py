"""Indices, templates and aliases of other clients of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.destinations.opensearch.place import Cluster
from tests.destinations.opensearch.steps import ORDERS, ROWS, apply, copied
from tests.servers.ports import free_port

from levada.destinations import DestinationContext, TableTarget
from levada.destinations.opensearch import OpenSearchDestination
from levada.destinations.opensearch.settings import Settings
from levada.errors import DestinationChanged, NeedsOperator, Transient
from levada.testing import ArrowRows, Source


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


def test_no_answer_and_wrong_products(tmp_path: Path) -> None:
    """A server that does not answer is Transient, and the error has no secret."""
    context = DestinationContext(pipeline="shop", work_dir=tmp_path)
    settings = Settings.model_validate({"urls": [f"http://127.0.0.1:{free_port()}"]})
    with pytest.raises(Transient) as caught:
        OpenSearchDestination.from_settings(settings, context).startup()
    assert caught.value.code == "destination_unavailable"


def test_a_document_of_another_client_in_a_copy(cluster: Cluster) -> None:
    """The numbers of rows and documents differ, so the copy is not served, and is made again."""
    source, client = Source(), cluster.client()
    orders, destination = copied(cluster, source), cluster.started()
    alias = cluster.alias(orders.target)
    (former,) = client.indices.get_alias(name=alias)

    class Joined(ArrowRows):
        def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
            (index,) = set(client.indices.get(index=f"{alias}*")) - {former}
            client.index(index=index, id="mine", body={"id": 9})
            return super().map_partitions(fn)

    rows = Joined.of(ORDERS, ROWS)
    with pytest.raises(Transient) as caught:
        destination.copy_replacement(orders.target, rows, source.mark(2000))
    assert caught.value.code == "copy_incomplete"
    assert f"{alias}: 3 rows were copied, but the new index {alias}" in caught.value.message
    assert "has 4 documents, because another client has written to it" in caught.value.message
    assert set(cluster.documents(alias)) == {"1", "2", "3"}
