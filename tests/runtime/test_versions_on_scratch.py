"""The schema versions of a table whose changes are on scratch staging."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, table
from tests.rigs.waiting import until

from levada.runtime.limits import Limits
from levada.stores import MemoryStore
from levada.values import TableId


@pytest.mark.nightly
def test_versions_that_the_slot_does_not_send_again_are_removed(rig: Rig, db: Database) -> None:
    """Each ALTER TABLE adds a version. Once the slot's file is past them, few are left, and a restart goes on."""
    store = MemoryStore("shop", rig.storage)
    rig.store = lambda: store
    staging = replace(rig.config.staging, durable=False)
    rig.change(staging=staging, selects=Only("orders"), limits=Limits(lag_sample_s=0.1))
    rig.start()
    orders = table(rig.wait_caught_up(), "orders").id
    for number in range(11, 16):
        db.execute(
            f"ALTER TABLE orders ADD COLUMN c{number} int".encode(), f"INSERT INTO orders VALUES ({number})".encode()
        )
        rig.wait_caught_up()

    def left() -> int:
        # The slot's file follows a record of running transactions, which a checkpoint writes.
        db.execute("CHECKPOINT", "SELECT pg_logical_emit_message(true, 'x', 'x')")
        return versions(store, orders)

    until(left, lambda count: count == 1)
    rig.stop()
    rig.start()
    db.execute("INSERT INTO orders VALUES (99)")
    rig.wait_caught_up()
    assert rig.destination.applied_rows == {"orders": 6}
    assert rig.destination.copies_of("orders") == 1


def versions(store: MemoryStore, of: TableId) -> int:
    """Return the number of versions of the table."""
    return sum(schema.id == of for schema in store.get_table_schemas())
