"""A copy that did not end leaves nothing in the lake once the table is copied again, and never counts as one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.destinations.memory import MemoryRows
from tests.destinations.orders import ORDERS, apply, copy
from tests.destinations.slow_copies import CLAIM, SlowRows, rows
from tests.rigs.lake import Lake

from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.copy_lease import CopyLease
from levada.destinations.iceberg.java import each
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import LevadaError, NeedsOperator, StaleEpoch
from levada.schema import TableTarget


def table(destination: IcebergDestination) -> IcebergTable:
    """The table as the destination has it."""
    found = destination._known.states[ORDERS.id].table
    assert found is not None
    return found


def stored(destination: IcebergDestination) -> set[str]:
    """Return the files among the table's data, also those that no snapshot names."""
    opened = table(destination)
    listed = opened.java.io().listPrefix(opened.storage().folder)
    return {name for f in each(listed) if (name := f.location().rsplit("/", 1)[-1]).endswith((".parquet", ".puffin"))}


def named(lake: Lake) -> set[str]:
    """The files that the table's snapshot names."""
    tasks = list(lake.iceberg().scan().plan_files())
    paths = [t.file.file_path for t in tasks] + [d.file_path for t in tasks for d in t.delete_files]
    return {p.rsplit("/", 1)[-1] for p in paths}


def fail(error: BaseException) -> Callable[[], None]:
    """Return what raises the error."""

    def raising() -> None:
        raise error

    return raising


def begin(lake: Lake, error: BaseException) -> IcebergDestination:
    """A destination whose copy of the table failed after two of its files were written."""
    destination = lake.destination()
    copied = SlowRows(ORDERS, fail(error), rows(2), rows(1))
    with pytest.raises(type(error)):
        destination.write_table_rows(TableTarget.of(ORDERS), copied, lake.mark(1000))
    return destination


def test_a_killed_copy_leaves_nothing_to_the_next(lake: Lake) -> None:
    """The table names none of its files. The next copy of the table finds them by the lease, and removes them."""
    left = stored(begin(lake, KeyboardInterrupt()))
    assert len(left) == 2
    destination = lake.destination()
    assert destination.applied(ORDERS.id) is None
    destination.drop_table_for_copy(TableTarget.of(ORDERS))
    stream = copy(lake, destination)
    stream.delete(id=1)
    apply(lake, destination, stream)
    assert stored(destination) == named(lake)
    assert CLAIM not in lake.iceberg().properties


def test_a_superseded_driver_drops_nothing(lake: Lake) -> None:
    """A driver that was paused past its takeover drops neither the newer driver's table nor its unfinished copy."""
    newer, older = lake.destination(), lake.destination(work="older")
    slow = SlowRows(ORDERS, fail(KeyboardInterrupt()), rows(2), rows(1))
    with pytest.raises(KeyboardInterrupt):
        newer.write_table_rows(TableTarget.of(ORDERS), slow, lake.mark(1000, epoch=2))
    with pytest.raises(StaleEpoch):
        older.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    newer.write_table_rows(TableTarget.of(ORDERS), MemoryRows(ORDERS, rows(3)), lake.mark(1000, epoch=2))
    with pytest.raises(StaleEpoch):
        older.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    assert named(lake)
    newer.drop_table_for_copy(TableTarget.of(ORDERS), 2)
    assert lake.destination(work="last").applied(ORDERS.id) is None


def test_a_killed_copy_without_a_drop(hadoop: Lake) -> None:
    """Copied again into the table that is there, a newer driver's lease takes the place of the former and its files."""
    left = stored(begin(hadoop, KeyboardInterrupt()))
    destination = hadoop.destination()
    destination.write_table_rows(TableTarget.of(ORDERS), MemoryRows(ORDERS, rows(3)), hadoop.mark(1000, epoch=2))
    assert stored(destination) == named(hadoop)
    assert not left & named(hadoop)


def test_a_failed_copy_removes_its_files(lake: Lake) -> None:
    """A table that is parked after its copy failed does not keep unreadable files."""
    destination = begin(lake, NeedsOperator("value_out_of_range", "a value does not fit", hint="mend it"))
    assert stored(destination) == set()
    assert CLAIM not in lake.iceberg().properties


@pytest.mark.parametrize(("epoch", "error"), [(2, StaleEpoch), (1, LevadaError)])
def test_a_copy_that_was_overtaken_does_not_count(hadoop: Lake, epoch: int, error: type[LevadaError]) -> None:
    """A later copy has removed the files, so that they must not be committed."""
    destination, other = hadoop.destination(), hadoop.destination()

    def overtaken() -> None:
        opened = other._tables.load(table(destination).name, ORDERS.id)
        assert opened is not None
        CopyLease.take(opened, hadoop.mark(1000, epoch))

    with pytest.raises(error, match="epoch is 2" if epoch == 2 else "another process copies"):
        destination.write_table_rows(TableTarget.of(ORDERS), SlowRows(ORDERS, overtaken, rows(2)), hadoop.mark(1000))
    assert hadoop.destination().applied(ORDERS.id) is None
    assert named(hadoop) == set()


@pytest.mark.sampled
@pytest.mark.parametrize(
    "folder", ["{data}../../../precious/", "{data}%2e%2e/%2e%2e/", "{data}", "{data}x/..", "/", "{file}"]
)
def test_a_forged_claim_removes_nothing_of_others(hadoop: Lake, folder: str) -> None:
    """The folder is a property, which any writer may set: outside of the table's data nothing is removed by it."""
    destination = hadoop.destination()
    copy(hadoop, destination)
    opened = destination._known.open(destination._known.states[ORDERS.id])
    assert opened is not None
    data = opened.storage().folder
    precious = Path(hadoop.manifest["catalog"]["warehouse"]) / "precious" / "kept"
    precious.parent.mkdir()
    precious.write_text("kept")
    file = next(iter(opened.plan() or {})).rpartition("/")[0] + "/"
    forged = json.dumps({"epoch": 1, "folder": folder.format(data=data, file=file)})
    opened.set_properties({CLAIM: forged})
    CopyLease.take(opened, hadoop.mark(1000))
    assert precious.read_text() == "kept"
    assert len(hadoop.rows()) == 3
