"""Commits of other tools to a table. The destination follows each, or parks the table by a code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import ORDERS, apply, copy, items
from tests.rigs.lake import Lake

from levada.destinations.iceberg import IcebergDestination
from levada.errors import DestinationChanged
from levada.schema import TableTarget

COMPACT = "CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all', 'true'))"
EXPIRE = (
    "CALL {c}.system.expire_snapshots(table => {p}, older_than => timestamp '2999-01-01 00:00:00', retain_last => 1)"
)
UNDO = "CALL {c}.system.set_current_snapshot({p}, {s})"

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
    "format version 3": ("format_version_lowered", "ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')"),
    "record removed": ("table_rolled_back", "ALTER TABLE {t} UNSET TBLPROPERTIES ('levada.last-commit')"),
    "dropped": ("destination_table_missing", "DROP TABLE {t} PURGE"),
    "made again": ("table_not_ours", "DROP TABLE {t} PURGE; CREATE TABLE {t} (id bigint) USING iceberg"),
}


def look(destination: IcebergDestination) -> None:
    """Maintain the table as the engine does about once a minute, in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(destination.maintain, ORDERS.id).result()


def two_batches(lake: Lake, destination: IcebergDestination) -> Stream:
    """Copy six rows, and apply two batches. The rows 1 to 7 remain."""
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


def check_followed(hadoop: Lake, statements: str, when: str) -> None:
    """Assert that the engine goes on after the statements, whether it was running or stopped."""
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


def check_parked(hadoop: Lake, code: str, statements: str) -> None:
    """Assert that a look, a batch and a restart notice the statements, and that a new copy repairs the table."""
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
    if destination.copy_replacement(TableTarget.of(ORDERS), rows, mark):
        assert destination.swap_replacement(ORDERS.id, mark)
    else:
        destination.drop_table_for_copy(TableTarget.of(ORDERS))
        destination.write_table_rows(TableTarget.of(ORDERS), rows, mark)
    assert items(lake) == {i: f"copied {i}" for i in range(1, 8)}
    assert lake.destination().applied(ORDERS.id) == mark
    stream.update(id=1, item="AA", note=None, unchanged=[3])
    stream.delete(id=6)
    apply(lake, destination, stream, epoch=2)
    assert items(lake) == {i: f"copied {i}" for i in range(1, 8) if i != 6} | {1: "AA"}
    look(destination)
