"""The steps of a column that the source drops while the policy is Ignore, at any destination."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from levada.destinations import Destination
from levada.schema import TableTarget
from levada.testing import ArrowRows, Source
from levada.testing.destinations.steps import ORDERS, apply, copy


def check_dropped_column(destination: Destination, read: Callable[[TableTarget], Iterable[Mapping[str, Any]]]) -> None:
    """Assert that the column keeps its values, until their row is written again: by any statement, in any way.

    The destination has the policy Ignore.
    """
    source = Source()
    destination.startup()
    orders = source.add(ORDERS)
    rows = [{"id": i, "item": f"item {i}", "note": f"note {i}"} for i in range(1, 7)]
    copy(destination, source, orders, ArrowRows.of(ORDERS, rows))
    before = orders.target
    orders.alter(replace(ORDERS, columns=ORDERS.columns[:2]))
    orders.update(id=1, item="new")
    orders.update(id=2, item=None, unchanged=[2])
    orders.update(old={"id": 3}, id=30, item="moved")
    orders.delete(id=4)
    orders.insert(id=4, item="again")
    orders.insert(id=7, item="seven")
    apply(destination, source, orders)
    orders.update(id=7, item="7")
    apply(destination, source, orders)
    found = {r["id"]: (r["item"], r.get("note")) for r in read(before)}
    assert found == {
        1: ("new", None),
        2: ("item 2", None),
        30: ("moved", None),
        4: ("again", None),
        5: ("item 5", "note 5"),
        6: ("item 6", "note 6"),
        7: ("7", None),
    }
    destination.shutdown()
