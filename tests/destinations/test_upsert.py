"""Batches of changes as data files and deleted rows, on a file system without a catalog."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from levada.destinations.data_files.arrangement import Part
from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.layout import FIELD_ID, FileLayout
from levada.destinations.data_files.live_files import LiveFile, sorted_positions
from levada.destinations.data_files.position_deletes import PositionDeleteFiles, read_position_deletes
from levada.destinations.data_files.storage import FileSystemStorage
from levada.destinations.data_files.upsert import Upsert
from levada.destinations.key_index.index import KeyIndex
from levada.destinations.keys import key_kind
from levada.errors import NeedsOperator
from levada.schema import Kind
from levada.segments.batch import TableEvents
from levada.testing import Source, column, table
from levada.testing.source import SourceTable
from levada.values import Lsn

DELETES = pa.schema([pa.field("file_path", pa.string()), pa.field("pos", pa.int64())])
ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT))


class ByItem:
    """A table's partitions by its column ``item``."""

    def arrange(self, rows: pa.Table) -> tuple[Any, Sequence[Part]]:
        items = rows.column("item").to_pylist()
        order = sorted(range(len(items)), key=items.__getitem__)
        parts: list[Part] = []
        for at, item in enumerate(items[i] for i in order):
            begin = parts.pop().begin if parts and parts[-1].partition == item else at
            parts.append(Part(item, begin, at + 1))
        return np.array(order, np.int64), parts


@dataclass
class Table:
    """A table of files, with the partition and the deleted positions of each."""

    storage: FileSystemStorage
    layout: FileLayout
    index: KeyIndex
    files: dict[str, Hashable] = field(default_factory=dict)
    deleted: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def below(cls, folder: Path, *, partitioned: bool = False) -> Table:
        """Return an empty table."""
        kinds = {"id": pa.int64(), "item": pa.string()}
        fields = [pa.field(n, k, metadata={FIELD_ID: str(i)}) for i, (n, k) in enumerate(kinds.items(), 1)]
        layout = FileLayout(pa.schema(fields), {1: 1, 2: 2}, arrangement=ByItem() if partitioned else None)
        storage = FileSystemStorage(f"{folder}/lake/orders/", fs.LocalFileSystem())
        return cls(storage, layout, KeyIndex.open(folder / "index", key_kind(ORDERS)))

    def apply(self, events: TableEvents, after: int = 0) -> Upsert:
        """Apply a batch from a commit LSN on."""
        deletes = PositionDeleteFiles(self.storage, DELETES, lambda paths: [self.files[p] for p in paths])
        upsert = Upsert(self.storage, self.layout, ORDERS, self.index, deletes)
        upsert.run(events, Lsn(after))
        if upsert.truncated:
            self.files.clear()
        for written in deletes.files:
            found = read_position_deletes(self.storage, DELETES, [written.path])
            assert {self.files[path] for path in found} == {written.partition}
            self.deleted |= {p: np.union1d(self.deleted.get(p, []), at).astype(np.int64) for p, at in found.items()}
        self.files |= {f.path: f.partition for f in upsert.files}
        return upsert

    def rows(self) -> list[tuple[Any, Any]]:
        """Return all rows, sorted."""
        live = (LiveFile(p, self.deleted.get(p, np.empty(0, np.int64))) for p in self.files)
        batches = (rows for file in live for rows, _ in file.read(self.storage, list(self.layout.arrow)))
        return sorted((row["id"], row["item"]) for rows in batches for row in rows.to_pylist())


@pytest.fixture
def orders() -> SourceTable:
    """A table of a source without a server."""
    return Source().add(ORDERS)


def test_changes_from_the_watermark_on_are_applied(tmp_path: Path, orders: SourceTable) -> None:
    """A change that commits at the watermark is not applied yet, and one below it is."""
    for number in (1, 2, 3):
        orders.insert(id=number, item="a")
        if number == 2:
            watermark = orders.source.lsn
    lake = Table.below(tmp_path)
    lake.apply(orders.batch().changes(ORDERS.id), watermark)
    assert lake.rows() == [(2, "a"), (3, "a")]


def test_a_truncate_below_the_watermark_is_not_repeated(tmp_path: Path, orders: SourceTable) -> None:
    """It would remove the rows that were inserted after it."""
    lake = Table.below(tmp_path)
    orders.truncate()
    orders.insert(id=1, item="a")
    lake.apply(orders.batch().changes(ORDERS.id))
    orders.insert(id=2, item="b")
    watermark = orders.source.lsn
    assert not lake.apply(orders.batch(since=0).changes(ORDERS.id), watermark).truncated
    assert lake.rows() == [(1, "a"), (2, "b")]


def test_rows_after_a_truncate_of_the_same_transaction_stay(tmp_path: Path, orders: SourceTable) -> None:
    """Only what is before the last TRUNCATE is dropped."""
    lake = Table.below(tmp_path)
    orders.insert(id=1, item="a")
    lake.apply(orders.batch().changes(ORDERS.id))
    with orders.source.transaction():
        orders.insert(id=2, item="b")
        orders.truncate()
        orders.insert(id=3, item="c")
    lake.apply(orders.batch().changes(ORDERS.id))
    assert lake.rows() == [(3, "c")]


def test_a_deleted_row_has_no_values(tmp_path: Path, orders: SourceTable) -> None:
    """An update whose unchanged value only a deleted row has is an error, and takes no value of that row."""
    lake = Table.below(tmp_path)
    orders.insert(id=1, item="a")
    lake.apply(orders.batch().changes(ORDERS.id))
    orders.delete(id=1)
    lake.apply(orders.batch().changes(ORDERS.id))
    orders.update(id=1, item=None, unchanged=[2])
    with pytest.raises(NeedsOperator, match="the row is not in the table"):
        lake.apply(orders.batch().changes(ORDERS.id))


def test_rows_of_several_partitions_are_found_again(tmp_path: Path, orders: SourceTable) -> None:
    """A batch has a file for each partition, and its deleted rows are in the delete files of their partitions."""
    lake = Table.below(tmp_path, partitioned=True)
    with orders.source.transaction():
        for number in range(12):
            orders.insert(id=number, item="dcba"[number % 4])
    lake.apply(orders.batch().changes(ORDERS.id))
    assert sorted(map(str, lake.files.values())) == ["a", "b", "c", "d"]
    with orders.source.transaction():
        for number in (11, 0, 6, 5, 3):
            orders.update(id=number, item="e")
        orders.delete(id=10)
    lake.apply(orders.batch().changes(ORDERS.id))
    moved = {0, 3, 5, 6, 11}
    assert lake.rows() == [(n, "e" if n in moved else "dcba"[n % 4]) for n in range(12) if n != 10]


@given(st.sets(st.integers(0, 11)))
def test_deleted_rows_are_left_out_of_each_part_of_a_file(
    tmp_path_factory: pytest.TempPathFactory, deleted: set[int]
) -> None:
    """Positions count over the whole file, in whatever parts it is read."""
    storage = FileSystemStorage(f"{tmp_path_factory.mktemp('rows')}/", fs.LocalFileSystem())
    schema = pa.schema([pa.field("id", pa.int64(), metadata={FIELD_ID: "1"})])
    with DataWriter(storage, schema) as writer:
        writer.write(pa.table([range(12)], schema=schema))
    file = LiveFile(writer.files[0].path, np.array(sorted(deleted), np.int64))
    read = [(rows.column(0).to_pylist(), at.tolist()) for rows, at in file.read(storage, list(schema), batch_rows=4)]
    kept = [[n for n in range(begin, begin + 4) if n not in deleted] for begin in (0, 4, 8)]
    assert read == [(part, part) for part in kept]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1 << 40)), max_size=20))
def test_deleted_rows_are_sorted_by_file_and_position(rows: list[tuple[int, int]]) -> None:
    """Both are sorted as one number, in which no position reaches into the number of its file."""
    files, positions = sorted_positions(
        np.array([f for f, _ in rows], np.int64), np.array([p for _, p in rows], np.int64)
    )
    assert list(zip(files.tolist(), positions.tolist(), strict=True)) == sorted(rows)
