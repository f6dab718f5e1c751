"""Parquet files of Iceberg tables, written and read by pyarrow, in this process or in a Spark task.

Row ``i`` of a file has position ``i``. This module does not need a JVM.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada.destinations.iceberg.schema import FIELD_ID, RESERVED, IcebergSchema, columns_of
from levada.errors import AccessDenied, DestinationChanged, NeedsOperator, Transient
from levada.locations import FULL
from levada.schema import ReplicatedTableSchema

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_log = logging.getLogger(__name__)

TARGET_BYTES: Final = 128 << 20
"""The size in bytes from which a data file is closed."""
ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 64 << 20
"""A row group is written at this number of rows or Arrow bytes. Until then a writer holds it in memory."""
_SAMPLE_ROWS: Final = 8192
"""The number of rows that are sampled to find columns with repeated values."""

# Fixed by Iceberg's specification, "Position Delete Files".
POSITION_DELETES: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: "2147483545"}),
    ]
)

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is not committed yet."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """The folder for a table's new files, and PyIceberg's properties to access it. May contain secrets."""

    folder: str
    properties: Mapping[str, str] = field(repr=False)

    def io(self) -> FileIO:
        """Return PyIceberg's FileIO for the files."""
        return _file_io(self.folder, tuple(sorted(self.properties.items())))

    def remove(self, files: Iterable[WrittenFile]) -> None:
        """Remove uncommitted files. A file that cannot be removed is left as an orphan."""
        io = self.io()
        for written in files:
            try:
                io.delete(written.path)
            except Exception as error:
                _log.warning("cannot remove the orphan file %s: %s", written.path, type(error).__name__)


@lru_cache(maxsize=64)
def _file_io(folder: str, properties: tuple[tuple[str, str], ...]) -> FileIO:
    # Cached, because it has a connection pool of the object store.
    from pyiceberg.io import load_file_io

    return load_file_io(dict(properties), folder)


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Convert errors of a file system to Levada's errors. ``what`` describes the operation in their messages."""
    try:
        yield
    except PermissionError as error:
        raise AccessDenied(
            "destination_denied", f"{what}: no permission", hint="check the destination's credentials"
        ) from error
    except OSError as error:
        if error.errno in FULL:
            raise Transient(
                "destination_full", f"{what}: {error}", hint="free space in the lake's storage, or enlarge it"
            ) from error
        raise Transient("destination_unavailable", f"{what}: {error}") from error


@contextmanager
def table_file(path: str) -> Iterator[None]:
    """Raise DestinationChanged if a file of the table is missing or is not valid Parquet.

    Other errors are converted as by `storage_errors`.
    """
    with storage_errors(f"read {path}"):
        try:
            yield
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise DestinationChanged(
                "table_damaged",
                f"a file of the table is missing or damaged: {path}",
                hint="copy the table again: levada resync MANIFEST TABLE",
            ) from error


class DataWriter:
    """Writes rows to data files of a target size.

    It is a context manager. If the context ends with an error, the files are removed.
    """

    def __init__(self, storage: Storage, schema: pa.Schema, *, target_bytes: int = TARGET_BYTES) -> None:
        self._storage = storage
        self._io = storage.io()
        self._schema = schema
        self._target = target_bytes
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._writer: pq.ParquetWriter | None = None
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
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
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
                # The file is removed anyway.
                with suppress(OSError):
                    file.close()
            self.files.append(WrittenFile(self._path, 0, 0))
            self._writer = None
        self._storage.remove(self.files)

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
            if self._sink.tell() >= self._target:
                self._close_file()

    def _open_file(self, dictionaries: list[str]) -> None:
        self._path = self._storage.folder + f"{uuid.uuid4()}.parquet"
        self._sink = self._io.new_output(self._path).create()
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            use_dictionary=dictionaries,
            store_decimal_as_integer=True,
            store_schema=False,
        )
        self._written = 0

    def _close_file(self) -> None:
        if self._writer is None:
            return
        with storage_errors(f"write {self._path}"):
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        self.files.append(WrittenFile(self._path, self._written, size))
        self._writer = None


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
    return path if 2 * len(pc.unique(values)) <= len(values) else ""


def project(rows: pa.Table | pa.RecordBatch, layout: IcebergSchema, schema: ReplicatedTableSchema) -> pa.Table:
    """Return rows of the source table in the columns of the Iceberg table. Its other columns are NULL."""
    arrays = []
    for column, source in columns_of(layout, schema):
        if source is not None:
            arrays.append(rows.column(source.name))
        elif column.name in RESERVED and column.name in rows.schema.names:
            arrays.append(rows.column(column.name))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.arrow.type))
    return cast_columns(arrays, layout.arrow, str(schema.name))


def cast_columns(arrays: Sequence[pa.Array | pa.ChunkedArray], target: pa.Schema, table: str) -> pa.Table:
    """Return the columns as a table of this schema. Raise NeedsOperator if a value is out of range."""
    typed = []
    for array, wanted in zip(arrays, target, strict=True):
        try:
            typed.append(array if array.type == wanted.type else pc.cast(array, wanted.type))
        except pa.ArrowInvalid:
            # Arrow's message contains the value, so do not chain it.
            raise NeedsOperator(
                "value_out_of_range",
                f"{table}: a value of column {wanted.name} does not fit {wanted.type}",
                hint="copy the table again: levada resync MANIFEST TABLE",
            ) from None
    return pa.Table.from_arrays(typed, schema=target)


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes one partition of a copy to data files. It is pickled into Spark tasks.

    ``constants`` has the values of columns that the rows lack, by column name.
    """

    storage: Storage
    layout: IcebergSchema
    schema: ReplicatedTableSchema
    constants: Mapping[str, Any]

    def __call__(self, reader: pa.RecordBatchReader) -> list[WrittenFile]:
        """Write the rows, and return the files."""
        with DataWriter(self.storage, self.layout.arrow) as writer:
            for batch in reader:
                writer.write(project(self._with_constants(batch), self.layout, self.schema))
        return writer.files

    def _with_constants(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        types = self.layout.arrow
        for name, value in self.constants.items():
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, types.field(name).type), batch.num_rows))
        return batch


def write_position_deletes(
    storage: Storage, paths: Sequence[str], files: npt.NDArray[np.integer[Any]], positions: Positions
) -> WrittenFile:
    """Write one position-delete file. It deletes the rows at ``positions[i]`` of ``paths[files[i]]``.

    Its rows are sorted by file path and position, as Iceberg's specification requires.
    """
    rank = np.empty(len(paths), np.int64)
    rank[np.argsort(np.array(paths, dtype=object))] = np.arange(len(paths))
    order = np.lexsort((positions, rank[files]))
    names = pa.DictionaryArray.from_arrays(pa.array(files[order].astype(np.int32)), pa.array(paths, pa.string()))
    rows = pa.Table.from_arrays([names.cast(pa.string()), pa.array(positions[order])], schema=POSITION_DELETES)
    path = storage.folder + f"{uuid.uuid4()}-deletes.parquet"
    try:
        with storage_errors(f"write {path}"), storage.io().new_output(path).create() as sink:
            pq.write_table(rows, sink, compression="zstd", store_schema=False)
            size = sink.tell()
    except BaseException:
        storage.remove([WrittenFile(path, 0, 0)])
        raise
    return WrittenFile(path, rows.num_rows, size)


def open_parquet(io: FileIO, path: str) -> pq.ParquetFile:
    """Open a data file for reading. The caller closes it."""
    with table_file(path):
        return pq.ParquetFile(io.new_input(path).open())


def names_by_id(file: pq.ParquetFile) -> Mapping[int, str]:
    """Return a file's column names by field ID. After a rename they differ from the table's names."""
    return {
        int(f.metadata[FIELD_ID]): f.name
        for f in file.schema_arrow
        if f.metadata is not None and FIELD_ID in f.metadata
    }
