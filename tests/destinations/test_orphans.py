"""Files that a killed process wrote and no commit names do not stay for ever, and nothing else goes with them."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.destinations.foreign_commits import look, two_batches
from tests.destinations.memory import MemoryRows
from tests.destinations.orders import CURRENT_SNAPSHOT_ONLY, ORDERS, apply, copy, items
from tests.destinations.slow_copies import SlowRows, begin, rows
from tests.rigs.lake import Lake

from levada.destinations.iceberg import IcebergDestination, maintenance
from levada.destinations.iceberg.java import CommitConflict
from levada.destinations.iceberg.maintenance import FileLimits
from levada.destinations.iceberg.metadata import Property
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import DestinationChanged, Transient
from levada.schema import TableTarget
from levada.values import Lsn


def the_table(destination: IcebergDestination) -> IcebergTable:
    """The table as the destination has it."""
    found = destination._known.states[ORDERS.id].table
    assert found is not None
    return found


def leave_orphan(table: IcebergTable) -> str:
    """Write a file among the table's data that no commit names."""
    storage = table.storage()
    path = f"{storage.folder}{uuid.uuid4()}.parquet"
    with storage.create(path) as sink:
        sink.write(b"of a process that was killed")
    return path


def is_there(table: IcebergTable, path: str) -> bool:
    """Return True if there is such a file."""
    try:
        table.storage().open(path).close()
    except FileNotFoundError:
        return False
    return True


ALL_ORPHANS = FileLimits(orphan_age_s=-60)
"""Let maintenance remove an orphan file of any age."""


def sweep(destination: IcebergDestination) -> None:
    """Maintain the table as if the time for all of it had come."""
    state = destination._known.states[ORDERS.id]
    state.maintained_at = state.files_due_at = -10.0
    look(destination)


def test_old_orphans_are_removed(lake: Lake) -> None:
    """A file that no snapshot names goes, but not while it is young, nor while a copy of the table is being made."""
    destination = lake.destination(maintenance={"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0})
    stream = copy(lake, destination)
    stream.delete(id=1)
    apply(lake, destination, stream)
    table, before = the_table(destination), lake.rows()
    orphan = leave_orphan(table)
    sweep(destination)
    assert is_there(table, orphan)
    destination.maintenance = replace(destination.maintenance, files=ALL_ORPHANS)
    copied = MemoryRows(ORDERS, [{"id": 7, "item": "new", "note": None}])
    assert destination.copy_replacement(TableTarget.of(ORDERS), copied, lake.mark(stream.taken))
    sweep(destination)
    assert is_there(table, orphan)
    assert destination.swap_replacement(ORDERS.id, lake.mark(stream.taken))
    sweep(destination)
    assert not is_there(table, orphan)
    assert [r["id"] for r in lake.rows()] == [7]
    history = lake.iceberg().history()
    assert lake.iceberg().scan(snapshot_id=history[-2].snapshot_id).to_arrow().num_rows == len(before)


class Listing:
    """Iceberg's action that removes orphan files. It finds none, and keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*values: Any) -> Any:
            self.calls[name] = values
            return False if name == "hasNext" else self

        return call


@pytest.mark.parametrize("copying", [False, True])
def test_files_are_orphans_after_three_days(copying: bool) -> None:
    """The commit of a batch may follow until then. While the table is copied, no file is searched for."""
    lease = {Property.COPY_LEASE.value: json.dumps({"epoch": 1, "folder": "x/"})} if copying else {}
    metadata = SimpleNamespace(mark=Lsn(1), may_remove_files=True, properties=lease)
    table = SimpleNamespace(name="orders", own_folder="file:/lake/orders", metadata=metadata, java=None)
    listing, now_ms = Listing(), 10**12
    maintenance.remove_orphans(cast(IcebergTable, table), cast(Any, listing), now_ms)
    assert listing.calls.get("olderThan") == (None if copying else (now_ms - 3 * 24 * 3600 * 1000,))


@pytest.mark.nightly
def test_a_renamed_table_loses_nothing(jdbc: Lake) -> None:
    """A table that was renamed in its catalog keeps its folder and its files, whatever the next of its name does."""
    destination = jdbc.destination(maintenance={"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0})
    two_batches(jdbc, destination)
    jdbc.sql("ALTER TABLE {t} RENAME TO shop_public.orders_kept")
    with pytest.raises(DestinationChanged, match="no longer at the destination"):
        look(destination)
    kept = jdbc.rows("orders_kept")
    destination = jdbc.destination(maintenance={"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0})
    copy(jdbc, destination, n=1)
    assert the_table(destination).java.location() == jdbc.iceberg("orders_kept").location()
    orphan = leave_orphan(the_table(destination))
    destination.maintenance = replace(destination.maintenance, files=ALL_ORPHANS)
    sweep(destination)
    assert not is_there(the_table(destination), orphan)
    assert jdbc.rows("orders_kept") == kept
    destination.drop_table_for_copy(TableTarget.of(ORDERS))
    assert jdbc.rows("orders_kept") == kept


def test_an_empty_table_has_no_orphans(lake: Lake) -> None:
    """A table that never had a row, and so no folder, passes."""
    destination = lake.destination(maintenance={"compactEverySeconds": 1})
    copy(lake, destination, n=0)
    sweep(destination)
    assert lake.rows() == []


@pytest.mark.nightly
def test_a_missing_file_is_noticed(lake: Lake) -> None:
    """The daily look at the files notices one that is gone, also if no batch reads it."""
    destination = lake.destination(maintenance={"compactEverySeconds": 1})
    two_batches(lake, destination)
    sweep(destination)
    table = the_table(destination)
    table.storage().delete(next(iter(table.paths_in_use())))
    with pytest.raises(DestinationChanged) as caught:
        sweep(destination)
    assert caught.value.code == "table_damaged"


def test_a_dropped_table_leaves_no_data(lake: Lake) -> None:
    """The files of a killed batch go with the table, though no snapshot names them."""
    destination = lake.destination()
    copy(lake, destination)
    table = the_table(destination)
    orphan = leave_orphan(table)
    destination.drop_table_for_copy(TableTarget.of(ORDERS))
    assert not is_there(table, orphan)


def remove_orphans_of_all_ages(destination: IcebergDestination, table: IcebergTable) -> None:
    """Remove what no commit names, as another tool does without an age."""
    actions = destination._tables.jvm.actions()
    actions.deleteOrphanFiles(table.java).usePrefixListing(True).olderThan(1 << 52).execute()


@pytest.mark.nightly
def test_another_tool_removes_the_files_of_a_batch(hadoop: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is removed before its commit is written again. No commit names a missing file."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    write, times = IcebergTable.write, []

    def late(self: IcebergTable, *args: Any, **kwargs: Any) -> int:
        times.append(1)
        if len(times) == 1:
            remove_orphans_of_all_ages(destination, self)
        return write(self, *args, **kwargs)

    monkeypatch.setattr(IcebergTable, "write", late)
    stream.update(id=2, item="B", note=None, unchanged=[3])
    stream.insert(id=9, item="i", note=None)
    before = items(hadoop)
    apply(hadoop, destination, stream)
    assert len(times) == 2
    assert items(hadoop) == before | {2: "B", 9: "i"}


@pytest.mark.nightly
def test_another_tool_removes_the_files_of_a_copy(hadoop: Lake) -> None:
    """A first copy without its files is not committed, and is made again."""
    destination = hadoop.destination()

    def removed() -> None:
        remove_orphans_of_all_ages(destination, the_table(destination))

    with pytest.raises(CommitConflict) as caught:
        destination.write_table_rows(TableTarget.of(ORDERS), SlowRows(ORDERS, removed, rows(2)), hadoop.mark(1000))
    assert caught.value.code == "file_vanished"
    assert hadoop.destination().applied(ORDERS.id) is None
    copy(hadoop, destination)
    assert len(items(hadoop)) == 3


@pytest.mark.nightly
def test_another_tool_removes_the_files_of_a_new_copy(hadoop: Lake) -> None:
    """A new copy without its files does not take the table's place, and is begun again."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    before = items(hadoop)
    assert begin(hadoop, destination, ORDERS, stream.taken)
    remove_orphans_of_all_ages(destination, the_table(destination))
    assert not destination.swap_replacement(ORDERS.id, hadoop.mark(stream.taken))
    assert items(hadoop) == before

    def removed() -> None:
        remove_orphans_of_all_ages(destination, the_table(destination))

    with pytest.raises(Transient) as caught:
        destination.copy_replacement(
            TableTarget.of(ORDERS), SlowRows(ORDERS, removed, rows(2)), hadoop.mark(stream.taken)
        )
    assert caught.value.code == "file_vanished"
    assert begin(hadoop, destination, ORDERS, stream.taken, n=2)
    assert destination.swap_replacement(ORDERS.id, hadoop.mark(stream.taken))
    assert items(hadoop) == {1: "copied 1", 2: "copied 2"}


@pytest.mark.sampled
@pytest.mark.parametrize("step", ["compact", "expire", "check_files", "remove_orphans"])
def test_a_crash_in_maintenance(hadoop: Lake, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Whichever step is the last one of a process, the next one has the watermark and the rows, and goes on."""
    settings = {"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0}
    destination = hadoop.destination(maintenance=settings, files=ALL_ORPHANS, retention=CURRENT_SNAPSHOT_ONLY)
    stream = copy(hadoop, destination, n=20)
    for i in range(1, 12):
        stream.update(id=i, item=f"batch {i}", note=None)
        apply(hadoop, destination, stream)
    orphan, before = leave_orphan(the_table(destination)), hadoop.rows()
    done = getattr(maintenance, step)

    def dies(*args: Any) -> None:
        done(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"levada.destinations.iceberg.destination.{step}", dies)
        with pytest.raises(KeyboardInterrupt):
            sweep(destination)
    destination = hadoop.destination(maintenance=settings, files=ALL_ORPHANS, retention=CURRENT_SNAPSHOT_ONLY)
    assert destination.applied(ORDERS.id) == hadoop.mark(stream.taken)
    assert hadoop.rows() == before
    sweep(destination)
    assert not is_there(the_table(destination), orphan)
    stream.update(id=1, item="later", note=None)
    stream.delete(id=20)
    apply(hadoop, destination, stream)
    assert items(hadoop) == {r["id"]: r["item"] for r in before if r["id"] < 20} | {1: "later"}
