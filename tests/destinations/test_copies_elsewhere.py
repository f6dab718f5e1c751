"""Tables that another process has copied, as a dedicated copy does."""

from __future__ import annotations

from tests.destinations.orders import ORDERS, apply, copy
from tests.rigs.lake import Lake

from levada.schema import TableTarget
from levada.values import QualifiedTable


def test_the_copy_of_another_process_is_found_and_written(hadoop: Lake) -> None:
    """A destination that has searched the catalog finds a table that was created later, or under another name."""
    driver = hadoop.destination()
    assert driver.applied(ORDERS.id) is None
    stream = copy(hadoop, hadoop.destination(work="first"))
    driver.copied_elsewhere(TableTarget.of(ORDERS))
    assert driver.applied(ORDERS.id) == hadoop.mark(1000)
    stream.update(id=1, item="one", note=None)
    apply(hadoop, driver, stream)
    moved = TableTarget.of(ORDERS, name=QualifiedTable("public", "moved"))
    process = hadoop.destination(work="second")
    process.drop_table_for_copy(moved)
    copy(hadoop, process, n=2, name=moved.name)
    driver.copied_elsewhere(moved)
    assert driver.applied(ORDERS.id) == hadoop.mark(1000)
    stream.update(id=2, item="two", note=None)
    apply(hadoop, driver, stream)
    assert {r["id"]: r["item"] for r in hadoop.rows("moved")} == {1: "item 1", 2: "two"}
