"""Files that a killed process wrote and no commit names do not stay for ever, and nothing else goes with them."""

from __future__ import annotations

import uuid

import pytest
from tests.destinations.conftest import Lake
from tests.destinations.memory import MemoryRows
from tests.destinations.test_behaviours import ORDERS, apply, copy

from levada.destinations.iceberg import IcebergDestination, maintenance
from levada.destinations.iceberg.java import each
from levada.destinations.iceberg.table import IcebergTable


def the_table(destination: IcebergDestination) -> IcebergTable:
    """The table as the destination has it."""
    found = destination._states[ORDERS.id].table
    assert found is not None
    return found


def leave_orphan(table: IcebergTable) -> str:
    """Write a file among the table's data that no commit names."""
    storage = table.storage()
    path = f"{storage.folder}{uuid.uuid4()}.parquet"
    with storage.io().new_output(path).create() as sink:
        sink.write(b"of a process that was killed")
    return path


def is_there(table: IcebergTable, path: str) -> bool:
    """Tell whether there is such a file."""
    return table.storage().io().new_input(path).exists()


def look(destination: IcebergDestination) -> None:
    """Maintain the table as if the time for all of it had come."""
    state = destination._states[ORDERS.id]
    state.maintained_at = state.orphans_due_at = -10.0
    destination.maintain(ORDERS.id)


def test_old_orphans_are_removed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that no snapshot names goes, but not while it is young, nor while a copy is made beside the table."""
    destination = lake.destination(maintenance={"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0})
    stream = copy(lake, destination)
    stream.delete(id=1)
    apply(lake, destination, stream)
    table, before = the_table(destination), lake.rows()
    orphan = leave_orphan(table)
    look(destination)
    assert is_there(table, orphan)
    monkeypatch.setattr(maintenance, "ORPHAN_AGE_S", -60)
    rows = MemoryRows(ORDERS, [{"id": 7, "item": "new", "note": None}])
    assert destination.copy_replacement(ORDERS, rows, lake.mark(stream.taken))
    look(destination)
    assert is_there(table, orphan)
    assert destination.swap_replacement(ORDERS.id, lake.mark(stream.taken))
    look(destination)
    assert not is_there(table, orphan)
    assert [r["id"] for r in lake.rows()] == [7]
    history = lake.iceberg().history()
    assert lake.iceberg().scan(snapshot_id=history[-2].snapshot_id).to_arrow().num_rows == len(before)


def test_dropped_table_leaves_no_data(lake: Lake) -> None:
    """What a copy wrote that was killed before its commit goes with the table, though no snapshot names it."""
    destination = lake.destination()
    copy(lake, destination)
    table = the_table(destination)
    leave_orphan(table)
    destination.drop_table_for_copy(ORDERS)
    folder, files = table.storage().folder, table.java.io()
    if folder.startswith("s3:"):
        assert list(each(files.listPrefix(folder))) == []
    else:
        assert not is_there(table, folder)
