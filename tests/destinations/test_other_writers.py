"""Other tools that change a table: followed where no row changes, else parked by a code.

`tests.faults.test_foreign_commits` has every kind of change.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.destinations.foreign_commits import (
    COMPACT,
    EXPIRE,
    FOLLOWED,
    PARKED,
    UNDO,
    check_followed,
    check_parked,
    current,
    goes_on,
    look,
    resync,
    two_batches,
)
from tests.destinations.orders import ORDERS, apply, items
from tests.rigs.lake import Lake

from levada.destinations.data_files.layout import FIELD_ID
from levada.destinations.iceberg import index_sync
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import DestinationChanged, NeedsOperator


def test_compaction_and_expiry_leave_the_watermark(lake: Lake) -> None:
    """After another tool's maintenance no stamped snapshot is left, and the table still has its watermark."""
    destination = lake.destination()
    stream = two_batches(lake, destination)
    lake.sql(COMPACT)
    lake.sql("CALL {c}.system.rewrite_manifests({p})")
    lake.sql(EXPIRE)
    metadata = lake.iceberg().metadata
    assert [s.summary.operation.value for s in metadata.snapshots] == ["replace"]
    assert lake.destination(work="restarted").applied(ORDERS.id) == lake.mark(stream.taken)
    look(destination)
    goes_on(lake, destination, stream)
    lake.sql(COMPACT)
    lake.expire()
    assert lake.destination(work="next").applied(ORDERS.id) == lake.mark(stream.taken)


@pytest.mark.sampled
@pytest.mark.parametrize("change", ["compaction to orc", "partitioned for a while"])
def test_what_changes_no_row_is_followed(hadoop: Lake, change: str) -> None:
    """Rewrites neither park the table nor lose a row, whatever the format and the partitions of the files."""
    check_followed(hadoop, FOLLOWED[change], "running")


@pytest.mark.sampled
@pytest.mark.parametrize("change", ["append", "rollback, compacted, expired", "columns swapped", "partitioned"])
def test_what_may_change_rows_is_noticed(hadoop: Lake, change: str) -> None:
    """It is found without a batch, by a batch, and after a restart. A new copy repairs the table."""
    check_parked(hadoop, *PARKED[change])


def test_a_foreign_write_can_be_taken_back(hadoop: Lake) -> None:
    """The table is right again at the snapshot that Levada left, and a retry goes on from there."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    ours = current(hadoop)
    hadoop.sql("INSERT INTO {t} VALUES (100, 'theirs', NULL)")
    with pytest.raises(DestinationChanged):
        destination.applied(ORDERS.id)
    hadoop.sql(UNDO.replace("{s}", str(ours)))
    assert destination.applied(ORDERS.id) == hadoop.mark(stream.taken)
    goes_on(hadoop, destination, stream)


def test_files_that_another_tool_removes_while_they_are_read(hadoop: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was compacted away and expired under a reader is no damage: the table is read again."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    hadoop.sql(COMPACT)
    add_files, times = index_sync.add_files, []

    def late(*args: Any) -> None:
        times.append(1)
        if len(times) == 1:
            hadoop.sql(COMPACT)
            hadoop.expire()
        add_files(*args)

    monkeypatch.setattr(index_sync, "add_files", late)
    goes_on(hadoop, destination, stream)
    assert len(times) == 2


def test_equality_deletes_are_noticed(hadoop: Lake) -> None:
    """Deletes by value, as Flink writes them, count as a foreign write. A new copy replaces them."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    table = destination._known.states[ORDERS.id].table
    assert table is not None
    path = f"{table.storage().folder}equality.parquet"
    value = pa.table({"id": [3]}, pa.schema([pa.field("id", pa.int64(), metadata={FIELD_ID: "1"})]))
    with table.storage().create(path) as sink:
        pq.write_table(value, sink)
    i, gateway = table._jvm.iceberg, table._jvm._gateway
    ids = gateway.new_array(gateway.jvm.int, 1)
    ids[0] = 1
    builder = i.FileMetadata.deleteFileBuilder(table.java.spec()).ofEqualityDeletes(ids).withPath(path)
    deletes = builder.withFormat("parquet").withFileSizeInBytes(1000).withRecordCount(1).build()
    table.java.newRowDelta().addDeletes(deletes).commit()
    with pytest.raises(DestinationChanged) as caught:
        look(destination)
    assert caught.value.code == "foreign_write"
    resync(hadoop, destination, stream)


def test_a_cherry_picked_snapshot_is_noticed(hadoop: Lake) -> None:
    """Rows that another tool staged count as its write once they are picked."""
    destination = hadoop.destination()
    two_batches(hadoop, destination)
    hadoop.sql("ALTER TABLE {t} CREATE BRANCH theirs")
    hadoop.sql("INSERT INTO {t}.branch_theirs VALUES (100, 'theirs', 'n')")
    hadoop.sql("ALTER TABLE {t} SET TBLPROPERTIES ('theirs'='yes')")
    look(destination)
    [(picked,)] = hadoop.sql("SELECT snapshot_id FROM {t}.refs WHERE name = 'theirs'")
    hadoop.sql("CALL {c}.system.cherrypick_snapshot({p}, " + str(picked) + ")")
    with pytest.raises(DestinationChanged) as caught:
        look(destination)
    assert caught.value.code == "foreign_write"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("INSERT INTO {t} VALUES (100, 'theirs', NULL)", "foreign_write"),
        ("ALTER TABLE {t} DROP COLUMN note", "foreign_schema_change"),
        (COMPACT, ""),
    ],
    ids=["append", "column dropped", "compaction"],
)
def test_a_commit_never_lands_on_another_one(
    hadoop: Lake, monkeypatch: pytest.MonkeyPatch, statement: str, code: str
) -> None:
    """Another commit between the look-up and the commit of a batch is noticed, then or by the next look."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    write, times = IcebergTable.write, []

    def late(self: IcebergTable, *args: Any, **kwargs: Any) -> int:
        times.append(1)
        if len(times) == 1:
            hadoop.sql(statement)
        return write(self, *args, **kwargs)

    monkeypatch.setattr(IcebergTable, "write", late)
    if not code:
        goes_on(hadoop, destination, stream)
        look(destination)
        return
    stream.update(id=1, item="ours", note=None)

    def batch_and_look() -> None:
        apply(hadoop, destination, stream)
        look(destination)

    with pytest.raises(DestinationChanged) as caught:
        batch_and_look()
    assert caught.value.code == code


def test_a_column_of_a_type_that_levada_does_not_write(hadoop: Lake) -> None:
    """The column of another tool cannot be filled with NULL, so the table waits until the column is dropped."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    hadoop.sql("ALTER TABLE {t} ADD COLUMN theirs struct<a: int>")
    stream.update(id=1, item="ours", note=None)
    batch = stream.batch()
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(batch, hadoop.mark(batch.until))
    assert caught.value.code == "foreign_column"
    assert caught.value.message.startswith(
        "column theirs of the table in the lake, which another writer added, has the"
    )
    assert "drop that column in the lake, then: levada retry" in caught.value.hint
    hadoop.sql("ALTER TABLE {t} DROP COLUMN theirs")
    destination.write_events(batch, hadoop.mark(batch.until))
    assert items(hadoop)[1] == "ours"


@pytest.mark.nightly
def test_a_history_that_expired_cannot_be_judged(hadoop: Lake) -> None:
    """Other tools made more commits than the metadata log keeps, and all expired. A rollback may be among them."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    hadoop.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1')")
    for _ in range(3):
        hadoop.sql(COMPACT)
        hadoop.expire()
    with pytest.raises(DestinationChanged) as caught:
        look(destination)
    assert caught.value.code == "table_history_lost"
    assert "so changes by another writer cannot be ruled out" in caught.value.message
    assert caught.value.hint == "levada resync MANIFEST public.orders"
    resync(hadoop, destination, stream)
