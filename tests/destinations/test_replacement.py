"""A shadow copy of a table.

The table is read and written until the shadow copy has caught up and replaces it in one step.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import CURRENT_SNAPSHOT_ONLY, ORDERS, apply, copy, items
from tests.destinations.slow_copies import CLAIM, SlowRows, T, begin, rows
from tests.rigs.lake import Lake

from levada.copy.rows import CopiedRows, FinishedRange, RangeKeeper
from levada.destinations import TableMode
from levada.destinations.iceberg import IcebergDestination, index_sync
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import DestinationChanged, StaleEpoch, Transient
from levada.schema import Kind, TableTarget
from levada.segments import StagedBatch
from levada.testing import column, table
from levada.values import QualifiedTable, TableId


def both(lake: Lake, destination: IcebergDestination, batch: StagedBatch) -> None:
    """Apply a batch to the table and to its new copy."""
    destination.write_events(batch, lake.mark(batch.until))
    assert destination.write_replacement_events(batch, lake.mark(batch.until))


def files(lake: Lake) -> set[str]:
    """Return the data and delete files that are on disk."""
    data = Path(lake.manifest["catalog"]["warehouse"].removeprefix("file:")) / "shop_public" / "orders" / "data"
    return {str(f) for f in data.rglob("*.parquet")}


def test_a_new_copy_takes_the_place_of_the_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table goes on while its shadow copy is made and follows. Then readers see the copy, and changes go on."""
    destination = lake.destination()
    stream = copy(lake, destination, n=5)
    seen: list[dict[int, Any]] = []

    def meanwhile() -> None:
        stream.update(id=1, item="while copying", note="n")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(apply, lake, destination, stream).result()
        seen.append(items(lake))

    as_of = stream.lsn + 1
    slow = SlowRows(ORDERS, meanwhile, rows(2), [{"id": 3, "item": "copied 3", "note": "y" * 100}])
    assert destination.copy_replacement(TableTarget.of(ORDERS), slow, lake.mark(as_of))
    old = {i: f"item {i}" for i in range(1, 6)}
    assert seen == [old | {1: "while copying"}]
    again = stream.batch(since=as_of)
    assert destination.write_replacement_events(again, lake.mark(again.until))
    stream.update(id=2, item="B", note=None, unchanged=[3])
    stream.insert(id=9, item="new", note=None)
    stream.delete(id=3)
    both(lake, destination, stream.batch())
    assert items(lake) == {1: "while copying", 2: "B", 4: "item 4", 5: "item 5", 9: "new"}
    assert destination.applied(ORDERS.id) == lake.mark(stream.taken)

    assert destination.swap_replacement(ORDERS.id, lake.mark(stream.taken + 1))
    assert items(lake) == {1: "while copying", 2: "B", 9: "new"}
    assert {r["id"]: r["note"] for r in lake.rows()}[2] == "y" * 100
    assert destination.applied(ORDERS.id) == lake.mark(stream.taken + 1)
    assert lake.destination().applied(ORDERS.id) == lake.mark(stream.taken + 1)
    assert CLAIM not in lake.iceberg().properties

    # The index came with the copy, so that no data is read for it.
    monkeypatch.setattr(index_sync, "rebuild", lambda *_: pytest.fail("the index was built anew"))
    stream.update(id=2, item="BB", note=None, unchanged=[3])
    stream.delete(id=9)
    apply(lake, destination, stream)
    stream.update(id=1, item="A", note=None)
    apply(lake, lake.destination(), stream)
    assert items(lake) == {1: "A", 2: "BB"}
    assert {r["id"]: r["note"] for r in lake.rows()}[2] == "y" * 100


def test_upkeep_leaves_the_new_copy_alone(hadoop: Lake) -> None:
    """Compaction and expiry, before and after, work on the table's files. A rollback is found as ever."""
    settings = {"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0}
    destination = hadoop.destination(maintenance=settings, retention=CURRENT_SNAPSHOT_ONLY)

    def look() -> None:
        destination._known.states[ORDERS.id].maintained_at = -10.0
        destination.maintain(ORDERS.id)
        assert len(hadoop.iceberg().metadata.snapshots) == 1

    stream = copy(hadoop, destination, n=20)
    assert begin(hadoop, destination, ORDERS, stream.lsn + 1, n=20)
    for i in range(1, 13):
        stream.update(id=i, item=f"batch {i}", note=None, unchanged=[3])
        both(hadoop, destination, stream.batch())
    look()
    assert destination.applied(ORDERS.id) == hadoop.mark(stream.taken)
    assert destination.swap_replacement(ORDERS.id, hadoop.mark(stream.taken))
    wanted = {i: f"batch {i}" if i < 13 else f"copied {i}" for i in range(1, 21)}
    assert items(hadoop) == wanted
    snapshot = hadoop.iceberg().metadata.current_snapshot_id
    look()
    assert items(hadoop) == wanted
    assert hadoop.destination().applied(ORDERS.id) == hadoop.mark(stream.taken)
    stream.update(id=20, item="later", note=None)
    apply(hadoop, destination, stream)
    before = hadoop.iceberg().metadata.snapshots[-2].snapshot_id
    assert before != snapshot
    hadoop.sql("CALL {c}.system.rollback_to_snapshot({p}, " + str(before) + ")")
    with pytest.raises(DestinationChanged, match="earlier state"):
        hadoop.destination().applied(ORDERS.id)


@pytest.mark.sampled
@pytest.mark.parametrize("when", ["copying", "copied", "swapping", "swapped"])
def test_a_crash_at_any_step(hadoop: Lake, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Before the swap the old table is read, and a restart finds no files left. After it the new table is read."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    before = files(hadoop)

    def dies() -> None:
        if when == "copying":
            raise KeyboardInterrupt

    as_of = stream.lsn + 1
    slow = SlowRows(ORDERS, dies, rows(2))
    if when == "copying":
        with pytest.raises(KeyboardInterrupt):
            destination.copy_replacement(TableTarget.of(ORDERS), slow, hadoop.mark(as_of))
    else:
        assert destination.copy_replacement(TableTarget.of(ORDERS), slow, hadoop.mark(as_of))
        stream.insert(id=9, item="new", note=None)
        both(hadoop, destination, stream.batch())
    if when in ("swapping", "swapped"):
        commit = IcebergTable.commit

        def interrupted(self: IcebergTable, request: Any) -> None:
            if when == "swapped":
                commit(self, request)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(IcebergTable, "commit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                destination.swap_replacement(ORDERS.id, hadoop.mark(stream.taken))

    destination = hadoop.destination()
    swapped = when == "swapped"
    old = {1: "item 1", 2: "item 2", 3: "item 3"}
    new = {} if when == "copying" else {9: "new"}
    assert items(hadoop) == ({1: "copied 1", 2: "copied 2"} if swapped else old) | new
    assert destination.applied(ORDERS.id) == hadoop.mark(1000 if when == "copying" else stream.taken)
    stream.update(id=1, item="A", note=None, unchanged=[3])
    apply(hadoop, destination, stream)
    assert {r["id"]: r["note"] for r in hadoop.rows()}[1] == ("y" if swapped else "x") * 100
    folder = Path(next(iter(before))).parents[1]
    left = {f for f in files(hadoop) - before if Path(f).parent != folder}
    assert left
    assert begin(hadoop, destination, ORDERS, stream.lsn + 1, n=1, epoch=2)
    assert left <= files(hadoop) if swapped else left.isdisjoint(files(hadoop))
    assert destination.swap_replacement(ORDERS.id, hadoop.mark(stream.lsn + 1, 2))
    assert items(hadoop) == {1: "copied 1"}


def test_columns_of_the_new_copy_come_with_it(lake: Lake) -> None:
    """The swap makes changes that the table cannot make in place, of types and of the key, in one step."""
    destination = lake.destination()
    copy(lake, destination)
    other = table(
        column(4, "code", Kind.TEXT),
        column(1, "id", Kind.TEXT),
        column(2, "title", Kind.TEXT),
        column(3, "note", Kind.INT4),
        key=(4,),
    )
    copied: list[dict[str, Any]] = [
        {"code": "a", "id": "1", "title": "one", "note": 5},
        {"code": "b", "id": "2", "title": None, "note": 6},
    ]
    assert destination.copy_replacement(TableTarget.of(other), MemoryRows(other, copied), lake.mark(2000))
    stream = Stream(other, lsn=2000, taken=2000)
    stream.update(code="b", id="3", title="two", unchanged=[3])
    batch = stream.batch()
    assert destination.write_replacement_events(batch, lake.mark(batch.until))
    old = lake.iceberg().metadata.current_snapshot_id
    assert items(lake) == {1: "item 1", 2: "item 2", 3: "item 3"}
    assert destination.swap_replacement(ORDERS.id, lake.mark(batch.until))
    wanted = [
        {"code": "a", "id": "1", "title": "one", "note": 5},
        {"code": "b", "id": "3", "title": "two", "note": 6},
    ]
    assert lake.rows() == wanted
    stream.delete(code="a")
    apply(lake, lake.destination(), stream)
    assert lake.rows() == wanted[1:]
    past = lake.iceberg().scan(snapshot_id=old).to_arrow()
    assert sorted(past.column("item").to_pylist()) == ["item 1", "item 2", "item 3"]
    swapped = lake.iceberg().metadata.snapshots[-2].snapshot_id
    assert lake.iceberg().scan(snapshot_id=swapped).to_arrow().column("title").to_pylist() == ["one", "two"]


def test_a_change_of_columns_meanwhile_begins_it_again(hadoop: Lake) -> None:
    """A new copy does not follow a change of columns, and does not take the place of a table that did."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    assert begin(hadoop, destination, ORDERS, stream.lsn + 1)
    wider = table(*ORDERS.columns, column(4, "extra", Kind.INT4), version=stream.lsn + 1)
    stream.alter(wider)
    stream.insert(id=4, item="d", note=None, extra=7)
    batch = stream.batch()
    assert not destination.write_replacement_events(batch, hadoop.mark(batch.until))
    destination.write_events(batch, hadoop.mark(batch.until))
    assert not destination.swap_replacement(ORDERS.id, hadoop.mark(batch.until))
    assert len(items(hadoop)) == 4
    assert destination.copy_replacement(
        TableTarget.of(wider),
        MemoryRows(wider, [{"id": 1, "item": "a", "note": None, "extra": 8}]),
        hadoop.mark(stream.lsn + 1),
    )
    assert destination.swap_replacement(ORDERS.id, hadoop.mark(stream.lsn + 1))
    assert hadoop.rows() == [{"id": 1, "item": "a", "note": None, "extra": 8}]


def test_a_table_that_comes_to_the_columns_of_its_new_copy(hadoop: Lake) -> None:
    """A change of columns from before the copy, which the stream sends only later, is no reason to restart the copy."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    wider = table(*ORDERS.columns, column(4, "extra", Kind.INT4))
    copied = [{"id": 1, "item": "a", "note": None, "extra": 8}]
    assert destination.copy_replacement(TableTarget.of(wider), MemoryRows(wider, copied), hadoop.mark(stream.lsn + 1))
    stream.alter(wider)
    stream.insert(id=4, item="d", note=None, extra=7)
    both(hadoop, destination, stream.batch())
    assert destination.swap_replacement(ORDERS.id, hadoop.mark(stream.taken))
    assert {r["id"]: r["extra"] for r in hadoop.rows()} == {1: 8, 4: 7}


def test_a_truncate_empties_the_new_copy(hadoop: Lake) -> None:
    """A TRUNCATE after the copy removes its rows and their files. Later rows are there."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    before = len(files(hadoop))
    assert begin(hadoop, destination, ORDERS, stream.lsn + 1)
    stream.insert(id=4, item="gone", note=None)
    both(hadoop, destination, stream.batch())
    stream.truncate()
    stream.insert(id=5, item="stays", note=None)
    batch = stream.batch()
    assert destination.write_replacement_events(batch, hadoop.mark(batch.until))
    assert destination.write_replacement_events(batch, hadoop.mark(batch.until))
    assert len(items(hadoop)) == 4
    assert len(files(hadoop)) == before + 2
    assert destination.swap_replacement(ORDERS.id, hadoop.mark(batch.until))
    assert items(hadoop) == {5: "stays"}
    assert begin(hadoop, destination, ORDERS, batch.until + 1, n=0)
    assert destination.swap_replacement(ORDERS.id, hadoop.mark(batch.until + 1))
    assert items(hadoop) == {}


def test_a_new_copy_that_is_given_up_leaves_nothing(hadoop: Lake) -> None:
    """A discarded shadow copy leaves no files, no index and no claim. The table is as before."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    before = files(hadoop)
    assert begin(hadoop, destination, ORDERS, stream.lsn + 1)
    assert files(hadoop) > before
    destination.drop_replacement(ORDERS.id)
    destination.drop_replacement(ORDERS.id)
    destination.drop_replacement(TableId(1))
    assert files(hadoop) == before
    assert CLAIM not in hadoop.iceberg().properties
    assert [p.name for p in (hadoop.context.work_dir / "iceberg-keys").iterdir()] == [str(int(ORDERS.id))]
    batch = stream.batch()
    assert not destination.write_replacement_events(batch, hadoop.mark(batch.until))
    assert not destination.swap_replacement(ORDERS.id, hadoop.mark(batch.until))
    stream.delete(id=1)
    apply(hadoop, destination, stream)
    assert sorted(items(hadoop)) == [2, 3]


def test_a_stale_driver_neither_begins_nor_swaps(hadoop: Lake) -> None:
    """A newer driver's claim is its own. An older driver is refused, and its copy is removed."""
    old, new = hadoop.destination(work="old"), hadoop.destination(work="new")
    stream = copy(hadoop, old)
    assert begin(hadoop, old, ORDERS, stream.lsn + 1, epoch=1)
    first = files(hadoop)
    assert begin(hadoop, new, ORDERS, stream.lsn + 2, n=1, epoch=2)
    assert len(files(hadoop)) == len(first)
    with pytest.raises(StaleEpoch):
        old.swap_replacement(ORDERS.id, hadoop.mark(stream.lsn + 1))
    with pytest.raises(StaleEpoch):
        begin(hadoop, old, ORDERS, stream.lsn + 3, epoch=1)
    old.drop_replacement(ORDERS.id)
    assert new.swap_replacement(ORDERS.id, hadoop.mark(stream.lsn + 2, 2))
    assert items(hadoop) == {1: "copied 1"}


def test_without_a_table_that_serves_there_is_no_replacement(hadoop: Lake) -> None:
    """Without a table, or with one in another place, the engine drops what there is. Another one stays."""
    destination = hadoop.destination()
    assert not begin(hadoop, destination, ORDERS, 1000)
    copy(hadoop, destination)
    with pytest.raises(DestinationChanged) as caught:
        begin(hadoop, destination, replace(ORDERS, id=TableId(77)), 2000)
    assert caught.value.code == "destination_collision"
    moved = TableTarget.of(ORDERS, name=QualifiedTable("public", "elsewhere"))
    assert not begin(hadoop, hadoop.destination(), moved, 2000)
    assert begin(hadoop, destination, ORDERS, 2000)
    destination.drop_table_for_copy(TableTarget.of(ORDERS))
    assert files(hadoop) == set()


def test_a_changelog_begins_anew_with_the_copy(hadoop: Lake) -> None:
    """The new copy of a changelog has the copied rows and every change since, each once."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination, mode=TableMode.CHANGELOG)
    stream.insert(id=4, item="d", note=None)
    apply(hadoop, destination, stream)
    as_of = stream.lsn
    assert begin(hadoop, destination, TableTarget.of(ORDERS, TableMode.CHANGELOG), as_of, n=2)
    stream.delete(id=1)
    both(hadoop, destination, stream.batch())
    assert len(hadoop.rows()) == 5
    assert destination.swap_replacement(ORDERS.id, hadoop.mark(stream.taken))
    told = [(r["_levada_op"], r["_levada_commit_lsn"], r["id"]) for r in hadoop.rows()]
    assert sorted(told) == [("D", as_of + 10, 1), ("I", as_of, 1), ("I", as_of, 2)]
    stream.insert(id=5, item="e", note=None)
    apply(hadoop, hadoop.destination(), stream)
    assert len(hadoop.rows()) == 4


class RowsOfTwoSnapshots(MemoryRows):
    """A copy that ends after its first range, or one that continues it: a second range, and the rows that changed."""

    def __init__(self, kept_place: str | None, first: list[dict[str, Any]], *more: list[dict[str, Any]]) -> None:
        super().__init__(ORDERS, first, *more)
        self.kept_place = kept_place
        self._more = more

    def map_ranges(self, fn: Callable[[pa.RecordBatchReader], T], keeper: RangeKeeper[T]) -> CopiedRows[T]:
        first, *more = self.map_partitions(fn)
        if not more:
            keeper.save("range-1", FinishedRange(first, 3, 0))
            self.kept_place = keeper.place
            raise Transient("snapshot_gone", "the snapshot is gone")
        assert keeper.place == self.kept_place
        kept = keeper.load("range-1").value
        keys = pa.table({"id": pa.array([2, 3, 9], pa.int64())})
        return CopiedRows(((kept,), (more[0],)), keys, (more[1],), ("range-1",))


def test_a_new_copy_that_was_interrupted_continues(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its finished ranges stay while the table serves. Rows that changed since are those of the second snapshot."""
    destination = lake.destination()
    stream = copy(lake, destination, n=5)
    before = items(lake)
    target, as_of = TableTarget.of(ORDERS), stream.lsn + 1
    first = RowsOfTwoSnapshots(None, rows(3))
    with pytest.raises(Transient, match="gone"):
        destination.copy_replacement(target, first, lake.mark(as_of))
    assert items(lake) == before

    # Row 2 was changed, row 3 was deleted, and row 9 moved into the second range and was changed there.
    again = lake.destination()
    second, changed = (
        [{"id": 4, "item": "copied 4", "note": None}, {"id": 9, "item": "old", "note": None}],
        [
            {"id": 2, "item": "two", "note": None},
            {"id": 9, "item": "nine", "note": "z"},
        ],
    )
    rest = RowsOfTwoSnapshots(first.kept_place, [], second, changed)
    assert again.copy_replacement(target, rest, lake.mark(as_of, 2))
    assert items(lake) == before
    assert again.swap_replacement(ORDERS.id, lake.mark(as_of + 1, 2))
    expected = {1: "copied 1", 2: "two", 4: "copied 4", 9: "nine"}
    assert items(lake) == expected
    warehouse = Path(lake.manifest["catalog"]["warehouse"].removeprefix("file:"))
    assert not list(warehouse.rglob("range-1.json"))

    monkeypatch.setattr(index_sync, "rebuild", lambda *_: pytest.fail("the index was built anew"))
    stream.update(id=2, item="TWO", note=None)
    stream.delete(id=9)
    batch = stream.batch()
    again.write_events(batch, lake.mark(batch.until, 2))
    assert items(lake) == {1: "copied 1", 2: "TWO", 4: "copied 4"}
