"""Every way in which another tool may change a table, each with a decided end: followed, or parked by a code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.destinations.conftest import Lake
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.test_behaviours import ORDERS, apply, copy, items

from levada.destinations.iceberg import IcebergDestination, indexing
from levada.destinations.iceberg.layout import FIELD_ID
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import DestinationChanged

COMPACT = "CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all', 'true'))"
EXPIRE = (
    "CALL {c}.system.expire_snapshots(table => {p}, older_than => timestamp '2999-01-01 00:00:00', retain_last => 1)"
)
UNDO = "CALL {c}.system.set_current_snapshot({p}, {s})"


def look(destination: IcebergDestination) -> None:
    """Maintain the table as the engine does about once a minute, in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(destination.maintain, ORDERS.id).result()


def two_batches(lake: Lake, destination: IcebergDestination) -> Stream:
    """Copy six rows, and apply two batches; ids 1 to 6 and 7 are left."""
    stream = copy(lake, destination, n=6)
    stream.update(id=1, item="A", note=None)
    apply(lake, destination, stream)
    stream.insert(id=7, item="g", note=None)
    apply(lake, destination, stream)
    return stream


def current(lake: Lake) -> int:
    """The table's current snapshot."""
    return int(lake.iceberg().metadata.current_snapshot_id)


def goes_on(lake: Lake, destination: IcebergDestination, stream: Stream) -> None:
    """Assert that updates, deletes and inserts find their rows."""
    before = items(lake)
    stream.update(id=1, item="AA", note=None)
    stream.update(id=5, item="E", note=None, unchanged=[3])
    stream.delete(id=6)
    stream.insert(id=8, item="h", note=None)
    apply(lake, destination, stream)
    del before[6]
    assert items(lake) == before | {1: "AA", 5: "E", 8: "h"}


def test_compaction_and_expiry_leave_the_watermark(lake: Lake) -> None:
    """After another tool's maintenance no stamped snapshot is left, and the table still tells what it holds."""
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
    lake.sql("CALL {c}.system.rewrite_manifests({p})")
    lake.sql(EXPIRE)
    assert lake.destination(work="next").applied(ORDERS.id) == lake.mark(stream.taken)


FOLLOWED = {
    "compaction": COMPACT,
    "manifests": "CALL {c}.system.rewrite_manifests({p})",
    "deletes": "CALL {c}.system.rewrite_position_delete_files(table => {p}, options => map('rewrite-all', 'true'))",
    "expiry": EXPIRE,
    "branch": "ALTER TABLE {t} CREATE BRANCH theirs; INSERT INTO {t}.branch_theirs VALUES (100, 'theirs', 'n')",
    "tag": "ALTER TABLE {t} CREATE TAG kept",
    "sort order": "ALTER TABLE {t} WRITE ORDERED BY item; " + COMPACT,
    "delete mode": "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')",
    "compaction to orc": "ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default'='orc'); " + COMPACT,
    "column added": "ALTER TABLE {t} ADD COLUMN theirs int",
    "columns moved": "ALTER TABLE {t} ALTER COLUMN note FIRST",
    "partitioned for a while": (
        "ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id); "
        + COMPACT
        + "; ALTER TABLE {t} DROP PARTITION FIELD bucket(2, id)"
    ),
}


@pytest.mark.parametrize("statements", FOLLOWED.values(), ids=FOLLOWED.keys())
@pytest.mark.parametrize("when", ["running", "stopped"])
def test_what_changes_no_row_is_followed(hadoop: Lake, statements: str, when: str) -> None:
    """Rewrites, expiry, branches, properties and added columns neither park the table nor lose a row."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    for statement in statements.split("; "):
        hadoop.sql(statement)
    if when == "stopped":
        destination = hadoop.destination()
        assert destination.applied(ORDERS.id) == hadoop.mark(stream.taken)
    look(destination)
    goes_on(hadoop, destination, stream)
    look(destination)


PARKED = {
    "append": ("foreign_write", "INSERT INTO {t} VALUES (100, 'theirs', NULL)"),
    "delete, copy on write": ("foreign_write", "DELETE FROM {t} WHERE id = 3"),
    "delete, by position": (
        "foreign_write",
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read'); DELETE FROM {t} WHERE id = 3",
    ),
    "update": ("foreign_write", "UPDATE {t} SET item = 'theirs' WHERE id = 3"),
    "overwrite": ("foreign_write", "INSERT OVERWRITE {t} VALUES (100, 'theirs', NULL)"),
    "truncate": ("foreign_write", "TRUNCATE TABLE {t}"),
    "append, compacted, expired": (
        "foreign_write",
        "INSERT INTO {t} VALUES (100, 'theirs', NULL); " + COMPACT + "; " + EXPIRE,
    ),
    "branch moved to main": (
        "foreign_write",
        "ALTER TABLE {t} CREATE BRANCH theirs; INSERT INTO {t}.branch_theirs VALUES (100, 'theirs', 'n'); "
        "CALL {c}.system.fast_forward({p}, 'main', 'theirs')",
    ),
    "rollback": ("table_rolled_back", "CALL {c}.system.rollback_to_snapshot({p}, {first})"),
    "rollback, compacted": ("table_rolled_back", "CALL {c}.system.rollback_to_snapshot({p}, {first}); " + COMPACT),
    "rollback, compacted, expired": (
        "table_rolled_back",
        "CALL {c}.system.rollback_to_snapshot({p}, {first}); " + COMPACT + "; " + EXPIRE,
    ),
    "rollback, expired": ("table_rolled_back", "CALL {c}.system.rollback_to_snapshot({p}, {first}); " + EXPIRE),
    "replaced": (
        "table_rolled_back",
        "CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT 1L AS id, 'x' AS item, 'y' AS note",
    ),
    "column dropped": ("foreign_schema_change", "ALTER TABLE {t} DROP COLUMN note"),
    "column dropped and added": (
        "foreign_schema_change",
        "ALTER TABLE {t} DROP COLUMN note; ALTER TABLE {t} ADD COLUMN note string",
    ),
    "columns swapped": (
        "foreign_schema_change",
        "ALTER TABLE {t} RENAME COLUMN note TO x; ALTER TABLE {t} RENAME COLUMN item TO note; "
        "ALTER TABLE {t} RENAME COLUMN x TO item",
    ),
    "partitioned": ("foreign_table_change", "ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)"),
    "format version 3": ("foreign_table_change", "ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')"),
    "record removed": ("table_rolled_back", "ALTER TABLE {t} UNSET TBLPROPERTIES ('levada.last-commit')"),
    "dropped": ("destination_table_missing", "DROP TABLE {t} PURGE"),
    "made again": ("table_not_ours", "DROP TABLE {t} PURGE; CREATE TABLE {t} (id bigint) USING iceberg"),
}


@pytest.mark.parametrize(("code", "statements"), PARKED.values(), ids=PARKED.keys())
def test_what_may_change_rows_is_noticed(hadoop: Lake, code: str, statements: str) -> None:
    """It is noticed without a batch, by a batch, and after a restart; a new copy repairs the table."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    first = str(hadoop.iceberg().metadata.snapshots[0].snapshot_id)
    for statement in statements.split("; "):
        hadoop.sql(statement.replace("{first}", first))
    with pytest.raises(DestinationChanged) as caught:
        look(destination)
    assert caught.value.code == code
    assert caught.value.hint
    stream.insert(id=9, item="i", note=None)
    batch = stream.batch()
    with pytest.raises(DestinationChanged) as caught:
        destination.write_events(batch, hadoop.mark(batch.until))
    assert caught.value.code == code
    restarted = hadoop.destination()
    if code in ("destination_table_missing", "table_not_ours") or "UNSET" in statements:
        assert restarted.applied(ORDERS.id) is None
    else:
        with pytest.raises(DestinationChanged) as caught:
            restarted.applied(ORDERS.id)
        assert caught.value.code == code
    if code == "table_not_ours":
        return
    resync(hadoop, restarted, stream)


def resync(lake: Lake, destination: IcebergDestination, stream: Stream) -> None:
    """Copy the table again as the engine does, and assert that it is right and goes on."""
    rows = MemoryRows(ORDERS, [{"id": i, "item": f"copied {i}", "note": "y"} for i in range(1, 8)])
    stream.batch()
    mark = lake.mark(stream.taken, epoch=2)
    if destination.copy_replacement(ORDERS, rows, mark):
        assert destination.swap_replacement(ORDERS.id, mark)
    else:
        destination.drop_table_for_copy(ORDERS)
        destination.write_table_rows(ORDERS, rows, mark)
    assert items(lake) == {i: f"copied {i}" for i in range(1, 8)}
    assert lake.destination().applied(ORDERS.id) == mark
    stream.update(id=1, item="AA", note=None, unchanged=[3])
    stream.delete(id=6)
    apply(lake, destination, stream, epoch=2)
    assert items(lake) == {i: f"copied {i}" for i in range(1, 8) if i != 6} | {1: "AA"}
    look(destination)


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
    add_files, times = indexing.add_files, []

    def late(*args: Any) -> None:
        times.append(1)
        if len(times) == 1:
            hadoop.sql(COMPACT)
            hadoop.sql(EXPIRE)
        add_files(*args)

    monkeypatch.setattr(indexing, "add_files", late)
    goes_on(hadoop, destination, stream)
    assert len(times) == 2


def test_equality_deletes_are_noticed(hadoop: Lake) -> None:
    """Deletes by value, as Flink writes them, count as a write; a new copy takes their place."""
    destination = hadoop.destination()
    stream = two_batches(hadoop, destination)
    table = destination._states[ORDERS.id].table
    assert table is not None
    path = f"{table.storage().folder}equality.parquet"
    value = pa.table({"id": [3]}, pa.schema([pa.field("id", pa.int64(), metadata={FIELD_ID: "1"})]))
    with table.storage().io().new_output(path).create() as sink:
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
