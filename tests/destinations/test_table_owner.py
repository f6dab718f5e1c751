"""The owner of a lake table is known by the full name of its pipeline and by its source."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.destinations.orders import ORDERS, Source

from levada.destinations import DestinationContext
from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.ownership import Owner
from levada.errors import DestinationChanged

NAME = TableName(("shop_public",), "orders")


def owner(namespace: str, *former: str, source: str = "7301/5") -> Owner:
    """The owner of the tables of a Pipeline ``shop`` in a namespace."""
    known = Source(source, former=("7300/5",))
    return Owner(DestinationContext("shop", Path(), source=known, namespace=namespace, former_names=lambda: former))


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
    ],
)
def test_an_owner_has_a_full_name(maker: Owner, other: Owner, owns: bool) -> None:
    """Its own name and those of former owners count, over the same source. All else is refused with both names."""
    properties = maker.properties(NAME, ORDERS)
    assert other.owns(properties) is owns
    if not owns:
        with pytest.raises(DestinationChanged) as refused:
            other.require_replaceable(NAME, properties, ORDERS)
        assert refused.value.code == "table_not_ours"
        assert str(properties["levada.pipeline"]) in refused.value.message


@pytest.mark.parametrize(("namespace", "former", "may"), [("a", (), True), ("b", (), False), ("b", ("a/shop",), True)])
def test_a_table_of_a_former_source_has_an_owner_too(namespace: str, former: tuple[str, ...], may: bool) -> None:
    """A copy takes the place of a table of a former source only if that was this pipeline's, or a former owner's."""
    properties = owner("a", source="7300/5").properties(NAME, ORDERS)
    assert owner(namespace, *former).may_replace(NAME, properties, ORDERS) is may


def test_a_table_without_an_owner_is_no_former_owners() -> None:
    """Properties that another tool has removed leave a table without an owner, whatever former names are known."""
    assert not owner("a", "").owns({"levada.source-id": "7301/5"})
