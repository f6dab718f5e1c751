"""The owner of a table is known by its pipeline's full name and by its source, however a destination records it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.destinations.orders import ORDERS, Source

from levada.destinations import DestinationContext, TableMode
from levada.destinations.bigquery import ownership as bigquery
from levada.destinations.bigquery.layout import Layout
from levada.destinations.bigquery.names import TableName as BigQueryName
from levada.destinations.bigquery.state import Description
from levada.destinations.iceberg import ownership as iceberg
from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.ownership import Owner, TableOwner
from levada.errors import DestinationChanged
from levada.values import QualifiedTable, TableId

NAME = TableName(("shop_public",), "orders")

Replace = Callable[[Owner, Owner], None]
"""Raises an error if a copy of the second owner must not replace the table that the first one has made."""


def owner(namespace: str, *former: str, source: str = "7301/5") -> Owner:
    """The owner of the tables of a Pipeline ``shop`` in a namespace."""
    known = Source(source, former=("7300/5",))
    return Owner(DestinationContext("shop", Path(), source=known, namespace=namespace, former_names=lambda: former))


def in_a_state(maker: Owner, other: Owner) -> None:
    """Replace a table whose owner is a value, as in PostgreSQL, DuckLake and OpenSearch."""
    other.require_replaceable("shop_public.orders", maker.of(ORDERS), ORDERS)


def in_properties(maker: Owner, other: Owner) -> None:
    """Replace a table of Iceberg."""
    properties = iceberg.RecordedOwner(maker).properties(NAME, ORDERS)
    iceberg.RecordedOwner(other).require_replaceable(NAME, properties, ORDERS)


def in_labels(maker: Owner, other: Owner) -> None:
    """Replace a table of BigQuery."""
    made = maker.of(ORDERS)
    described = Description(
        made.pipeline,
        made.source_id,
        made.table,
        made.source_name,
        "shop",
        "orders",
        TableMode.UPSERT,
        (1,),
        Layout(()),
    )
    state = bigquery.RecordedOwner(maker, lambda _: described).state_name(ORDERS.id)
    recorded = bigquery.RecordedOwner(other, {state: described}.get)
    recorded.require_replaceable(
        BigQueryName("shop_public", "public", "orders"), {"labels": {"levada_state": state}}, ORDERS
    )


recordings = pytest.mark.parametrize("replaced", [in_a_state, in_properties, in_labels])


@recordings
@pytest.mark.parametrize(
    ("maker", "other", "owns"),
    [
        (owner("a"), owner("a"), True),
        (owner(""), owner(""), True),
        (owner("a"), owner("b"), False),
        (owner(""), owner("a"), False),
        (owner("a"), owner(""), False),
        (owner(""), owner("a", "shop"), True),
        (owner("a"), owner("b", "shop", "a/shop"), True),
        (owner("c"), owner("b", "shop", "a/shop"), False),
        (owner("a", source="7302/5"), owner("b", "a/shop"), False),
        (owner("a", source="7302/5"), owner("a"), False),
        (owner("a", source="7300/5"), owner("a"), True),
        (owner("a", source="7300/5"), owner("b"), False),
        (owner("a", source="7300/5"), owner("b", "a/shop"), True),
    ],
)
def test_an_owner_has_a_full_name(replaced: Replace, maker: Owner, other: Owner, owns: bool) -> None:
    """Its own name and those of former owners count, over the same source or a former one.

    All else is refused with both names, in the same words.
    """
    if owns:
        replaced(maker, other)
        return
    with pytest.raises(DestinationChanged) as refused:
        replaced(maker, other)
    assert refused.value.code == "table_not_ours"
    made, mine = maker.context.full_name, other.context.full_name
    another = " with another source database" if made in other.names() else ""
    expected = f"exists at the destination and belongs to Pipeline {made}{another}, but this is Pipeline {mine}"
    assert refused.value.message.partition(" ")[2] == expected
    assert refused.value.hint == "set destinationTable in the table's TableSync, or rename or remove what has the name"


@pytest.mark.parametrize("properties", [{}, {"levada.source-id": "7301/5"}])
def test_a_table_without_an_owner_is_no_former_owners(properties: dict[str, str]) -> None:
    """Properties that another tool has removed leave a table without an owner, whatever former names are known."""
    recorded = iceberg.RecordedOwner(owner("a", ""))
    for act in (
        lambda: recorded.require(NAME, properties, ORDERS.id),
        lambda: recorded.require_replaceable(NAME, properties, ORDERS),
    ):
        with pytest.raises(DestinationChanged, match="was not created by Levada"):
            act()


@pytest.mark.parametrize("damaged", ["levada.table-id", "levada.source"])
def test_an_owner_that_is_known_in_part(damaged: str) -> None:
    """A table whose source table is not known is another one's, and is not replaced as that of a dropped table."""
    dropped = iceberg.RecordedOwner(owner("a")).properties(NAME, ORDERS) | {"levada.table-id": "1"}
    recorded = iceberg.RecordedOwner(owner("a"))
    recorded.require_replaceable(NAME, dropped, ORDERS)
    with pytest.raises(DestinationChanged) as refused:
        recorded.require_replaceable(NAME, dropped | {damaged: "?"}, ORDERS)
    assert refused.value.code == "destination_collision"


def test_a_state_that_is_gone() -> None:
    """A table of BigQuery whose state was removed is still known by the digest of its owner."""
    recorded = bigquery.RecordedOwner(owner("a"), lambda _: None)
    name = BigQueryName("project", "public", "orders")
    labels = {"labels": {"levada_state": recorded.state_name(ORDERS.id)}}
    recorded.require(name, labels, ORDERS.id)
    with pytest.raises(DestinationChanged) as collides:
        recorded.require(name, labels, TableId(1))
    assert collides.value.code == "destination_collision"
    for unknown in ("", "levada", recorded.state_name(ORDERS.id)[:-1] + "x"):
        with pytest.raises(DestinationChanged) as refused:
            recorded.require_replaceable(name, {"labels": {"levada_state": unknown}}, ORDERS)
        assert refused.value.code == "table_not_ours"


def test_a_table_that_was_written_from_a_former_source() -> None:
    """It is the pipeline's, but not its source table's."""
    mine = owner("a")
    former = TableOwner("a/shop", "7300/5", ORDERS.id, QualifiedTable("public", "orders"))
    assert mine.wrote(former)
    assert not mine.owns(former, ORDERS.id)
