"""The files that lake destinations share, without a catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from levada.copy.rows import FinishedRange
from levada.destinations.data_files.data_writer import ROW_GROUP_BYTES, DataWriter
from levada.destinations.data_files.key_reader import KeyReader, add_files
from levada.destinations.data_files.layout import CHANGELOG_COLUMNS, FIELD_ID, FileLayout
from levada.destinations.data_files.live_files import LiveFile, without_deletes
from levada.destinations.data_files.partition_writer import PartitionWriter
from levada.destinations.data_files.position_deletes import PositionDeleteFiles, read_position_deletes
from levada.destinations.data_files.range_files import RangeFiles
from levada.destinations.data_files.rewritten import moved, without_rows
from levada.destinations.data_files.storage import FileSystemStorage
from levada.destinations.data_files.upsert import Upsert
from levada.destinations.iceberg.schema import CHANGELOG_FIELDS
from levada.destinations.iceberg.small_tables import MOST_BYTES
from levada.destinations.key_index.table_index import TableIndex
from levada.errors import DestinationChanged
from levada.schema import Kind
from levada.testing import ArrowRows, Source, column, table
from levada.values import Lsn

DELETES = pa.schema([pa.field("file_path", pa.string()), pa.field("pos", pa.int64())])


def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    """Return a field with a field ID."""
    return pa.field(name, kind, metadata={FIELD_ID: str(number)})


def test_upserts_on_a_file_system_without_a_catalog(tmp_path: Path) -> None:
    """A copy, two batches and a rebuilt index leave the last state of each row in files and position deletes."""
    orders = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "at", Kind.TIME))
    arrow = pa.schema([field("item", pa.string(), 7), field("id", pa.int64(), 5), field("at", pa.time64("us"), 9)])
    layout = FileLayout(arrow, {1: 5, 2: 7, 3: 9})
    storage = FileSystemStorage(f"{tmp_path}/lake/orders/", fs.LocalFileSystem())
    rows = ArrowRows.of(orders, [{"id": i, "item": f"item {i}", "at": None} for i in range(5)], [{"id": 5}])
    copied = [f for part in rows.map_partitions(PartitionWriter(storage, layout, orders, {})) for f in part]
    files = [f.path for f in copied]
    deleted: dict[str, Any] = {}

    def live() -> list[LiveFile]:
        return [LiveFile(path, deleted.get(path, np.empty(0, np.int64))) for path in files]

    cache = TableIndex(tmp_path / "index")

    def rebuild(index: Any) -> None:
        if index.snapshot_id is None:
            add_files(index, KeyReader.of(orders, layout, index.seed), storage, live())
            index.commit(1)

    part = Source(tmp_path / "staging").add(orders)
    for number in (2, 3):
        part.update(old={"id": number - 2}, id=number + 100, item=None, at=None, unchanged=[2])
        part.delete(id=number)
        batch = part.batch()
        index = cache.synced(orders, rebuild)
        deletes = PositionDeleteFiles(storage, DELETES)
        upsert = Upsert(storage, layout, orders, index, deletes)
        upsert.run(batch.changes(orders.id), Lsn(0))
        cache.commit(number)
        files += [f.path for f in upsert.files]
        found = read_position_deletes(storage, DELETES, [f.path for f in deletes.files])
        deleted |= {path: np.union1d(deleted.get(path, []), rows).astype(np.int64) for path, rows in found.items()}
        if number == 2:
            cache.forget()
    seen = [row for file in live() for batch, _ in file.read(storage, list(arrow)) for row in batch.to_pylist()]
    assert {row["id"]: row["item"] for row in seen} == {4: "item 4", 5: None, 102: "item 0", 103: "item 1"}
    assert len(seen) == 4
    assert without_deletes(files[0]).deleted.size == 0


def test_changelogs_have_the_same_columns_in_each_format() -> None:
    """The columns that Iceberg adds to a changelog are those that the writer fills."""
    assert [name for name, _ in CHANGELOG_FIELDS] == list(CHANGELOG_COLUMNS)


def test_alike_large_values_are_read_a_row_group_at_a_time(tmp_path: Path) -> None:
    """A file that is small because its values are alike is read and rewritten in the memory that its writer needed."""
    arrow = pa.schema([field("id", pa.int64(), 1), field("page", pa.string(), 2)])
    storage = FileSystemStorage(f"{tmp_path}/lake/pages/", fs.LocalFileSystem())
    page = "0123456789" * 40_000
    with DataWriter(storage, arrow) as copied:
        for first in range(0, 600, 20):
            copied.write(pa.table([range(first, first + 20), [page] * 20], schema=arrow))
    [before] = copied.files
    assert before.bytes < MOST_BYTES, "a small table"
    file = LiveFile(before.path, np.array([3, 599]))
    with DataWriter(storage, arrow) as rewritten:
        for rows, _ in file.read(storage, list(arrow)):
            assert rows.nbytes < ROW_GROUP_BYTES + 20 * len(page)
            rewritten.write(pa.table(rows.columns, schema=arrow))
    [after] = rewritten.files
    metadata = pq.ParquetFile(after.path).metadata
    sizes = [metadata.row_group(i).num_rows * len(page) for i in range(metadata.num_row_groups)]
    assert max(sizes) < 2 * ROW_GROUP_BYTES
    found = pq.read_table(after.path, columns=["id"])["id"].to_pylist()
    assert found == [i for i in range(600) if i not in (3, 599)]


def test_positions_of_deleted_rows_follow_an_erasure(tmp_path: Path) -> None:
    """After a file is written without some rows, positions name the rows that they named, and erased ones are gone."""
    storage = FileSystemStorage(f"{tmp_path}/", fs.LocalFileSystem())
    ids = np.arange(10, 20)
    pq.write_table(pa.table({"id": ids}), tmp_path / "former.parquet", row_group_size=3)
    deleted, erased = np.array([0, 3, 4, 9]), np.array([1, 4, 5])
    written = without_rows(storage, str(tmp_path / "former.parquet"), erased)
    assert written is not None
    left = pq.read_table(written.path)["id"].to_numpy()
    assert left.tolist() == np.delete(ids, erased).tolist()
    assert left[moved(deleted, erased)].tolist() == [10, 13, 19]
    assert without_rows(storage, str(tmp_path / "former.parquet"), np.arange(10)) is None


def test_a_description_that_lacks_rows_is_damaged(tmp_path: Path) -> None:
    """A range that was read by an earlier attempt of a copy is used only with all of its rows."""
    orders = table(column(1, "id", Kind.INT8))
    arrow = pa.schema([field("id", pa.int64(), 1)])
    storage = FileSystemStorage(f"{tmp_path}/lake/orders/", fs.LocalFileSystem())
    (files,) = ArrowRows.of(orders, [{"id": i} for i in range(5)]).map_partitions(
        PartitionWriter(storage, FileLayout(arrow, {1: 1}), orders, {})
    )
    ranges = RangeFiles(storage, arrow)
    ranges.save("whole", FinishedRange(files, 5, 0))
    assert ranges.load("whole").rows == 5
    ranges.save("without", FinishedRange([], 5, 0))
    ranges.save("twice", FinishedRange([*files, *files], 5, 0))
    for name in ("without", "twice"):
        with pytest.raises(DestinationChanged, match=name):
            ranges.load(name)
