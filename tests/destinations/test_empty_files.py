"""Files without rows, with one row, and with deleted rows only, in every step over files, for every type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from levada.destinations import TableMode
from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.key_reader import KeyReader, add_files
from levada.destinations.data_files.layout import FileLayout, cast_columns, field_id, project
from levada.destinations.data_files.left_out import LeftOutRows
from levada.destinations.data_files.live_files import LiveFile, without_deletes
from levada.destinations.data_files.partition_writer import PartitionWriter
from levada.destinations.data_files.rewritten import FillTask
from levada.destinations.data_files.row_lookup import RowLookup
from levada.destinations.data_files.source_types import as_source, as_stored
from levada.destinations.data_files.storage import FileSystemStorage
from levada.destinations.ducklake.columns import initial_columns
from levada.destinations.iceberg.schema import initial_layout
from levada.destinations.key_index.table_index import TableIndex
from levada.errors import NeedsOperator
from levada.schema import Column, ReplicatedTableSchema
from levada.testing import ArrowRows, table
from levada.testing.destinations.values import KINDS, kind_rows

SCHEMA = table(*KINDS, name="public.kinds")
LAYOUTS = {
    "iceberg": initial_layout(SCHEMA, TableMode.UPSERT).files,
    "ducklake": initial_columns(SCHEMA, TableMode.UPSERT).files(SCHEMA),
}
of_each_format = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
of_each_size = pytest.mark.parametrize("rows", [0, 1, 4])


@pytest.fixture
def storage(tmp_path: Path) -> FileSystemStorage:
    """Return a folder of files."""
    return FileSystemStorage(f"{tmp_path}/lake/", fs.LocalFileSystem())


def source_rows(count: int, schema: ReplicatedTableSchema = SCHEMA) -> pa.Table:
    """Return rows of the source, with every type."""
    return pa.Table.from_pylist(kind_rows()[:count], SCHEMA.arrow).select(schema.arrow.names)


def write(storage: FileSystemStorage, layout: FileLayout, rows: pa.Table) -> str:
    """Write one file, also one without rows, as another writer may."""
    path = f"{storage.folder}{rows.num_rows}.parquet"
    with storage.create(path) as sink:
        pq.write_table(rows.cast(layout.arrow), sink, store_schema=False)
    return path


def deleted(count: int) -> dict[str, Any]:
    """Return the positions of the deleted rows of a file of this many rows: none, the first, all."""
    return {"none": [], "first": list(range(min(count, 1))), "all": list(range(count))}


def without(layout: FileLayout, column: Column) -> FileLayout:
    """Return the layout of the files from before a column was added."""
    gone = layout.attnums[column.attnum]
    kept = [f for f in layout.arrow if field_id(f) != gone]
    return FileLayout(pa.schema(kept), {a: i for a, i in layout.attnums.items() if i != gone})


def constants(column: Column) -> list[pa.Array]:
    """Return values of a column as arrays of one value."""
    values = source_rows(4).column(column.name).combine_chunks()
    return [values.slice(i, 1) for i in range(3)]


@of_each_format
@of_each_size
@pytest.mark.parametrize("column", KINDS[1:], ids=lambda c: c.name)
def test_an_added_column_is_filled(storage: FileSystemStorage, layout: FileLayout, column: Column, rows: int) -> None:
    """Each remaining row has the constant, whatever rows are deleted."""
    held = without(layout, column)
    schema = table(*(c for c in KINDS if c is not column), name="public.kinds")
    path = write(storage, held, project(source_rows(rows, schema), held, schema))
    for constant, positions in zip(constants(column), deleted(rows).values(), strict=True):
        file = LiveFile(path, np.array(positions, np.int64))
        files = FillTask(storage, layout, {column.name: constant}, "kinds")(file)
        filled = pa.concat_tables([pq.read_table(f.path) for f in files] or [layout.arrow.empty_table()])
        assert filled.num_rows == rows - len(positions)
        seen = as_source(filled.column(column.name), column.type.arrow).to_pylist()
        assert repr(seen) == repr(constant.to_pylist() * filled.num_rows)


@of_each_format
@pytest.mark.parametrize("column", KINDS[1:], ids=lambda c: c.name)
def test_rows_of_older_files_have_the_constant(storage: FileSystemStorage, layout: FileLayout, column: Column) -> None:
    """A change that leaves the value of an added column unknown takes the constant."""
    held = without(layout, column)
    schema = table(*(c for c in KINDS if c is not column), name="public.kinds")
    path = write(storage, held, project(source_rows(4, schema), held, schema))
    for constant in constants(column):
        full = FileLayout(layout.arrow, layout.attnums, {layout.attnums[column.attnum]: constant})
        lookup = RowLookup(storage, full, SCHEMA)
        for at in ([0], [0, 3]):
            found = lookup.read(["id", column.name], [path], np.zeros(len(at), np.int64), np.array(at, np.int64))
            assert repr(found.column(column.name).to_pylist()) == repr(constant.to_pylist() * len(at))


@of_each_format
@of_each_size
def test_files_are_read_written_and_indexed(
    storage: FileSystemStorage, layout: FileLayout, rows: int, tmp_path: Path
) -> None:
    """A copy, a compaction and an index see the remaining rows, also if there are none."""
    given = source_rows(rows)
    copied = ArrowRows(SCHEMA, given).map_partitions(PartitionWriter(storage, layout, SCHEMA, {}))[0]
    assert sum(f.rows for f in copied) == rows
    path = write(storage, layout, project(given, layout, SCHEMA))
    for positions in deleted(rows).values():
        file = LiveFile(path, np.array(positions, np.int64))
        with DataWriter(storage, layout.arrow) as writer:
            for part, _ in file.read(storage, list(layout.arrow)):
                writer.write(cast_columns(part.columns, layout.arrow, "kinds"))
        assert sum(f.rows for f in writer.files) == rows - len(positions)
        index = TableIndex(tmp_path / f"index{len(positions)}").open(SCHEMA)
        add_files(index, KeyReader.of(SCHEMA, layout, index.seed), storage, [file, without_deletes(path)])
        index.commit(1)


@of_each_format
@of_each_size
def test_types_are_converted_and_back(layout: FileLayout, rows: int) -> None:
    """In one piece, in none, and in a slice."""
    given = pa.concat_tables([source_rows(4), source_rows(4)]).combine_chunks().slice(3, rows)
    for field, column in layout.columns_of(SCHEMA):
        assert column is not None
        for values in (given.column(column.name), given.column(column.name).combine_chunks()):
            stored = as_stored(values, field.type)
            assert stored.type == field.type
            assert repr(as_source(stored, column.type.arrow).to_pylist()) == repr(values.to_pylist())


@of_each_format
def test_kept_rows_without_the_key_of_a_copy(layout: FileLayout, storage: FileSystemStorage, tmp_path: Path) -> None:
    """A copy of a table that lacks a column of the key says that its kept rows are unmovable, not to copy it again."""
    [key] = SCHEMA.key_columns
    rows = LeftOutRows(storage, without(layout, key), SCHEMA, TableIndex(tmp_path / "index").open(SCHEMA))
    with pytest.raises(NeedsOperator) as raised:
        next(rows.read([]))
    assert raised.value.code == "kept_rows_unmovable"
    assert "set deletes to Apply" in raised.value.hint
