"""Small tables are compacted in this process: the same rows in one file, for every reader and the next batch."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.destinations.foreign_commits import COMPACT, EXPIRE, FOLLOWED
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import ORDERS, apply, copy, items
from tests.rigs.lake import Lake

from levada.destinations.iceberg import IcebergDestination, small_tables
from levada.destinations.iceberg.partitioning import PartitionField
from levada.destinations.iceberg.small_tables import MOST_BYTES, is_small
from levada.destinations.iceberg.table import IcebergTable
from levada.schema import Column, ColumnType, Kind, TableTarget
from levada.testing import column, table
from levada.testing.destinations.values import KINDS, kind_rows
from levada.values import TableId, TableMode

COMPACTIONS = {
    "compaction": COMPACT,
    "compaction and expiry": f"{COMPACT}; {EXPIRE}",
    "compaction in partitions": FOLLOWED["partitioned for a while"],
}
"""Statements of another writer that change no row."""
EVERY_LOOK = {"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0}


def maintain(destination: IcebergDestination, table: TableId = ORDERS.id) -> None:
    """Let maintenance be due, and run it."""
    destination._known.states[table].maintained_at = -10.0
    destination.maintain(table)


def paths(lake: Lake, name: str = "orders") -> list[str]:
    """Return the data files, or fail if there are delete files."""
    assert not lake.sql("SELECT file_path FROM {t}.delete_files", name)
    return [str(row[0]).removeprefix("file:") for row in lake.sql("SELECT file_path FROM {t}.files", name)]


def written_here(path: str) -> bool:
    """Return True if this process wrote the file, and not Spark."""
    return "parquet-cpp-arrow" in str(pq.ParquetFile(path).metadata.created_by)


def updates(lake: Lake, destination: IcebergDestination, stream: Stream, n: int = 12) -> None:
    """Apply ``n`` batches, each of which updates a row, inserts one and deletes another."""
    for i in range(1, n + 1):
        stream.update(id=i, item=f"updated {i}", note=None, unchanged=[3])
        stream.insert(id=1000 + i, item="new", note=None)
        stream.delete(id=100 + i)
        apply(lake, destination, stream)


@pytest.mark.parametrize("mode", [pytest.param(TableMode.CHANGELOG, marks=pytest.mark.nightly), TableMode.UPSERT])
def test_rows_are_the_same_in_one_file(lake: Lake, mode: TableMode) -> None:
    """On each catalog and store. The next batch finds rows and unchanged values in the new file."""
    destination = lake.destination(maintenance=EVERY_LOOK)
    stream = copy(lake, destination, n=120, mode=mode)
    updates(lake, destination, stream)
    before = lake.rows()
    maintain(destination)
    assert lake.rows() == before
    assert len(paths(lake)) == 1
    assert lake.iceberg().current_snapshot().summary.operation.value == "replace"
    assert destination.applied(ORDERS.id) == lake.mark(stream.taken)
    stream.update(id=50, item="later", note=None, unchanged=[3])
    stream.delete(id=1)
    apply(lake, destination, stream)
    if mode is TableMode.UPSERT:
        after = {r["id"]: r for r in lake.rows()}
        assert 1 not in after
        assert after[50] == {"id": 50, "item": "later", "note": "x" * 100}
    else:
        assert len(lake.rows()) == len(before) + 2


def test_the_index_gets_the_new_file_alone(hadoop: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """The commit has the replaced files, so that the index needs no lookup and no rebuild."""
    destination = hadoop.destination(maintenance=EVERY_LOOK)
    stream = copy(hadoop, destination, n=120)
    updates(hadoop, destination, stream)
    with caplog.at_level(logging.INFO):
        maintain(destination)
    assert "compacted" in caplog.text
    assert "index" not in caplog.text
    [path] = paths(hadoop)
    assert written_here(path)
    index = destination._known.states[ORDERS.id].index.opened
    assert index is not None
    assert [str(p).removeprefix("file:") for p in index.paths] == [path]
    assert index.snapshot_id == hadoop.iceberg().metadata.current_snapshot_id


@pytest.mark.sampled
@pytest.mark.parametrize("spark_before", [False, True])
def test_values_of_every_kind(hadoop: Lake, spark_before: bool) -> None:
    """The rows of files that this process or Spark wrote are the same afterwards, and so are the columns of files."""
    schema = table(*KINDS, name="kinds")
    destination = hadoop.destination(maintenance=EVERY_LOOK)
    destination.write_table_rows(TableTarget.of(schema), MemoryRows(schema, kind_rows()), hadoop.mark(1000))
    first = pq.ParquetFile(paths(hadoop, "kinds")[0]).schema
    if spark_before:
        hadoop.sql(COMPACT, "kinds")
        assert not written_here(paths(hadoop, "kinds")[0])
    stream = Stream(schema)
    for turn in range(1, 4):
        for row in kind_rows():
            stream.insert(**{**row, "id": 100 * turn + int(row["id"])})
            apply(hadoop, destination, stream)
    before = hadoop.rows("kinds")
    maintain(destination, schema.id)
    [path] = paths(hadoop, "kinds")
    assert written_here(path)
    assert repr(hadoop.rows("kinds")) == repr(before)
    assert len(before) == 16
    assert pq.ParquetFile(path).schema.equals(first)


@pytest.mark.nightly
def test_columns_that_changed(hadoop: Lake) -> None:
    """Files of before have fewer columns, other names and narrower types. A new file has the newest for all rows."""
    destination = hadoop.destination(maintenance=EVERY_LOOK)
    old = table(column(1, "id", Kind.INT8), column(2, "n", Kind.INT4), column(3, "gone", Kind.TEXT),
                column(4, "f", Kind.FLOAT4), column(5, "d", Kind.DECIMAL, precision=5, scale=2))  # fmt: skip
    rows = [{"id": i, "n": i, "gone": "g", "f": 0.5, "d": None} for i in range(1, 21)]
    destination.write_table_rows(TableTarget.of(old), MemoryRows(old, rows), hadoop.mark(1000))
    stream = Stream(old)
    for i in range(1, 4):
        stream.update(id=i, n=-i, gone="h", f=1.5, d=None)
        apply(hadoop, destination, stream)
    wide: tuple[Column, ...] = (
        column(1, "id", Kind.INT8), column(2, "number", Kind.INT8), column(4, "f", Kind.FLOAT8),
        replace(column(5, "d", Kind.DECIMAL, precision=5, scale=2), type=ColumnType(Kind.DECIMAL, 9, 2)),
        column(6, "gone", Kind.INT4),
    )  # fmt: skip
    stream.alter(replace(old, columns=wide))
    for i in range(4, 14):
        stream.update(id=i, number=1 << 40, f=0.25, d=None, gone=i)
        apply(hadoop, destination, stream)
    before = hadoop.rows()
    maintain(destination)
    [path] = paths(hadoop)
    assert written_here(path)
    assert hadoop.rows() == before
    by_id = {r["id"]: (r["number"], r["f"], r["gone"]) for r in before}
    assert (by_id[1], by_id[13], by_id[20]) == ((-1, 1.5, None), (1 << 40, 0.25, 13), (20, 0.5, None))


def test_a_table_without_rows(hadoop: Lake) -> None:
    """If each row is deleted, no file is left. A row of a former key is a new one."""
    destination = hadoop.destination(maintenance=EVERY_LOOK)
    stream = copy(hadoop, destination, n=12)
    for i in range(1, 13):
        stream.delete(id=i)
        apply(hadoop, destination, stream)
    maintain(destination)
    assert (paths(hadoop), hadoop.rows()) == ([], [])
    stream.insert(id=3, item="again", note=None)
    apply(hadoop, destination, stream)
    assert items(hadoop) == {3: "again"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("late_at", "other"),
    [
        pytest.param("planned", "compaction", marks=pytest.mark.nightly),
        ("planned", "compaction and expiry"),
        pytest.param("written", "compaction and expiry", marks=pytest.mark.nightly),
        ("written", "compaction in partitions"),
        ("planned", "batch of a newer driver"),
        ("written", "watermark of a newer driver"),
    ],
)
def test_another_commit_comes_first(
    hadoop: Lake, late_at: str, other: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then nothing is replaced, the written file is removed, and the next batch and the next turn are as usual."""
    caplog.set_level(logging.INFO)
    destination = hadoop.destination(maintenance=EVERY_LOOK)
    stream = copy(hadoop, destination, n=120)
    updates(hadoop, destination, stream)
    before = hadoop.rows()
    owner, step = (small_tables, "live_files") if late_at == "planned" else (IcebergTable, "rewrite")
    real = getattr(owner, step)

    def other_commits() -> None:
        monkeypatch.undo()
        if other in COMPACTIONS:
            for statement in COMPACTIONS[other].split("; "):
                hadoop.sql(statement)
            return
        newer = hadoop.destination(work="newer")
        if other == "batch of a newer driver":
            stream.update(id=50, item="newer", note=None, unchanged=[3])
            apply(hadoop, newer, stream, epoch=2)
        else:
            # A batch without a change of the table does this.
            newer.applied(ORDERS.id)
            table = newer._known.states[ORDERS.id].table
            assert table is not None
            table.record_mark(hadoop.mark(stream.taken, epoch=2))

    def late(*arguments: Any) -> Any:
        if late_at == "written":
            other_commits()
        found = real(*arguments)
        if late_at == "planned":
            other_commits()
        return found

    monkeypatch.setattr(owner, step, late)
    maintain(destination)
    assert ("left for later" in caplog.text) != ("other writer removed files" in caplog.text)
    folder = Path(hadoop.manifest["catalog"]["warehouse"]) / "shop_public" / "orders" / "data"
    referred = {str(row[0]).removeprefix("file:") for row in hadoop.sql("SELECT file_path FROM {t}.all_files")}
    assert {str(f) for f in folder.rglob("*.parquet")} <= referred, "a file that no snapshot has is left"
    changed = {r["id"] for r in hadoop.rows() if r not in before}
    assert changed == ({50} if other == "batch of a newer driver" else set())
    ours = other in COMPACTIONS
    assert hadoop.destination(work="third").applied(ORDERS.id) == hadoop.mark(stream.taken, 1 if ours else 2)
    stream.update(id=51, item="after", note=None, unchanged=[3])
    apply(hadoop, destination if ours else hadoop.destination(work="third"), stream, epoch=3)
    rows = hadoop.rows()
    assert {r["id"]: r for r in rows}[51] == {"id": 51, "item": "after", "note": "x" * 100}
    assert len(rows) == len(before)


def test_which_tables_are_small(hadoop: Lake) -> None:
    """Neither a large table, nor one with partitions, sorted rows or IDs of rows is rewritten here."""
    destination = hadoop.destination()
    copy(hadoop, destination)
    metadata = destination._known.states[ORDERS.id].table.metadata  # type: ignore[union-attr]  # it was copied
    assert is_small(metadata)
    [snapshot] = metadata.history
    large = replace(snapshot, facts=replace(snapshot.facts, bytes=MOST_BYTES + 1))
    assert not is_small(replace(metadata, history=(large,)))
    unknown = replace(snapshot, facts=replace(snapshot.facts, bytes=0))
    assert not is_small(replace(metadata, history=(unknown,)))
    assert not is_small(replace(metadata, format_version=3))
    assert not is_small(replace(metadata, specs={0: (), 1: (PartitionField(1, 1000, "id", "identity"),)}))
