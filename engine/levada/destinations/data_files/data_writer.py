"""Writes rows to Parquet data files, in this process or in the tasks of a copy."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada.destinations.data_files.statistics import column_statistics
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files, storage_errors

ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 64 << 20
"""A row group is written at this number of rows or Arrow bytes. Until then a writer holds it in memory."""
_SAMPLE_ROWS: Final = 8192
"""The number of rows that are sampled to find columns with repeated values."""


class DataWriter:
    """Writes rows to data files of a target size.

    It is a context manager. If the context ends with an error, the files are removed.
    """

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        *,
        partition: Hashable = None,
        group_rows: int = ROW_GROUP_ROWS,
    ) -> None:
        self._group_rows = group_rows
        self._storage = storage
        self._partition = partition
        self._schema = schema
        self._statistics = _with_statistics(schema, uuids=storage.parquet.uuid_bounds)
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[pq.FileMetaData] = []
        self._sink: Any = None
        self._path = ""
        self._written = 0
        self.files: list[WrittenFile] = []
        """The complete files. After the end of the context, all files."""

    def write(self, rows: pa.Table) -> None:
        """Add rows with the columns of the schema."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= self._group_rows or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def __enter__(self) -> DataWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                self._close_file()
                return
        except BaseException:
            self._abandon()
            raise
        self._abandon()

    def _abandon(self) -> None:
        """Remove all written files, including the open one."""
        if self._writer is not None:
            for file in (self._writer, self._sink):
                # The file is removed anyway. The writer raises RuntimeError after a first close that had no room.
                with suppress(Exception):
                    file.close()
            self.files.append(WrittenFile(self._path, 0, 0))
            self._writer = None
        remove_files(self._storage, self.files)

    def _flush(self) -> None:
        if not self._waiting:
            return
        group = pa.concat_tables(self._waiting)
        self._waiting, self._rows, self._bytes = [], 0, 0
        with storage_errors(f"write to {self._storage.folder}"):
            if self._writer is None:
                self._open_file(dictionary_columns(group))
            assert self._writer is not None
            self._writer.write_table(group, row_group_size=group.num_rows)
            self._written += group.num_rows
            if self._sink.tell() >= self._storage.parquet.target_bytes:
                self._close_file()

    def _open_file(self, dictionaries: list[str]) -> None:
        self._path = self._storage.folder + f"{uuid.uuid4()}.parquet"
        self._sink = self._storage.create(self._path)
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=self._storage.parquet.compression,
            compression_level=self._storage.parquet.level,
            use_dictionary=dictionaries,
            write_statistics=self._statistics,
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_checksum=True,
            metadata_collector=self._metadata,
        )
        self._written = 0

    def _close_file(self) -> None:
        if self._writer is None:
            return
        with storage_errors(f"write {self._path}"):
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        columns = column_statistics(self._schema, self._metadata.pop())
        self.files.append(WrittenFile(self._path, self._written, size, self._partition, columns))
        self._writer = None


def _with_statistics(schema: pa.Schema, *, uuids: bool) -> list[str]:
    """Return the Parquet paths of the columns that have statistics: all but floats, and UUIDs as the caller wants.

    NaN has no place among the statistics of floats. Readers like DuckDB and Spark would skip it by them, although it is
    above all other values there, as in PostgreSQL.
    """
    leaves = (leaf for f in schema for leaf in _leaf_paths(f.name, f.type))
    return [path for path, kind in leaves if not pa.types.is_floating(kind) and (uuids or kind != pa.uuid())]


def _leaf_paths(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_list(kind):
        yield from _leaf_paths(f"{path}.list.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for inner in kind:
            yield from _leaf_paths(f"{path}.{inner.name}", inner.type)
    elif pa.types.is_map(kind):
        for inner in (kind.key_field, kind.item_field):
            yield from _leaf_paths(f"{path}.key_value.{inner.name}", inner.type)
    else:
        yield path, kind


def dictionary_columns(rows: pa.Table) -> list[str]:
    """Return the Parquet paths of the columns to encode with dictionaries.

    These are the columns with at most half as many distinct values as rows in a sample. For other columns the writer
    would build a dictionary and discard it as too large. Without that, writing costs half as much, and a file is a
    fifth larger if the guess is wrong.
    """
    sample = rows.slice(0, _SAMPLE_ROWS).combine_chunks()
    return [path for f in sample.schema if (path := _repeating(f.name, sample.column(f.name)))]


def _repeating(path: str, values: pa.ChunkedArray) -> str:
    while pa.types.is_list(values.type):
        path, values = f"{path}.list.element", pc.list_flatten(values)
    if pa.types.is_struct(values.type) or pa.types.is_map(values.type):
        return ""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.cast(values.type.storage_type)
    return path if 2 * len(pc.unique(values)) <= len(values) else ""
