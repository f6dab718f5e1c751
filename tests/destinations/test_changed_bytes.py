"""A changed bit in a file of a table is found by every reader of the engine, and named."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from levada.destinations import TableMode
from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.deletion_vectors import DeletionVector, read_vectors, to_bitmap, write_vectors
from levada.destinations.data_files.intact import ReadFiles
from levada.destinations.data_files.layout import FIELD_ID, project
from levada.destinations.data_files.listed_file import ListedColumn, ListedFile
from levada.destinations.data_files.live_files import without_deletes
from levada.destinations.data_files.position_deletes import read_position_deletes, write_position_deletes
from levada.destinations.data_files.row_lookup import RowLookup
from levada.destinations.data_files.storage import FileSystemStorage, WrittenFile
from levada.destinations.iceberg.listed_files import listed_file
from levada.destinations.iceberg.metrics import FULL, Mode, metrics_json
from levada.destinations.iceberg.schema import initial_layout
from levada.destinations.iceberg.storage import POSITION_DELETES
from levada.errors import DestinationChanged, Transient
from levada.schema import Kind
from levada.testing import column, table

SCHEMA = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "n", Kind.INT4))
LAYOUT = initial_layout(SCHEMA, TableMode.UPSERT).files
ROWS = 3000
Read = Callable[[FileSystemStorage], Any]


@dataclass
class Written:
    """A file, what each reader of it returns, and the facts that a table has about it."""

    listed: ListedFile
    readers: list[Read]
    vectors: list[DeletionVector] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.listed.path


def listed(written: WrittenFile, columns: pa.Schema, mode: Mode = FULL) -> ListedFile:
    """Return the facts that Iceberg's manifests would have about a file."""
    counts = {"file-path": written.path, "record-count": written.rows, "file-size-in-bytes": written.bytes}
    return listed_file({**counts, **metrics_json(written.columns, lambda _: mode)}, columns)


@pytest.fixture
def storage(tmp_path: Path) -> FileSystemStorage:
    """Return a folder of files."""
    return FileSystemStorage(f"{tmp_path}/", fs.LocalFileSystem())


def data_file(storage: FileSystemStorage) -> Written:
    """Write a data file with texts that repeat and texts that do not."""
    rows = [{"id": i, "item": f"item {i * 7919 % 3001}", "n": i % 7} for i in range(ROWS)]
    with DataWriter(storage, LAYOUT.arrow) as writer:
        writer.write(project(pa.Table.from_pylist(rows, SCHEMA.arrow), LAYOUT, SCHEMA))
    path, some = writer.files[0].path, np.arange(0, ROWS, 10)
    return Written(
        listed(writer.files[0], LAYOUT.arrow),
        [
            lambda s: pa.Table.from_batches([rows for rows, _ in without_deletes(path).read(s, list(LAYOUT.arrow))]),
            lambda s: RowLookup(s, LAYOUT, SCHEMA).read(["id", "item", "n"], [path], np.zeros(len(some), int), some),
        ],
    )


def delete_file(storage: FileSystemStorage) -> Written:
    """Write a file of position deletes."""
    positions = np.arange(0, ROWS, 3)
    written = write_position_deletes(storage, POSITION_DELETES, ["data"], np.zeros(len(positions), np.int64), positions)
    read: Read = lambda s: read_position_deletes(s, POSITION_DELETES, [written.path])["data"].tolist()  # noqa: E731 - typed
    return Written(listed(written, LAYOUT.arrow), [read])


def vector_file(storage: FileSystemStorage) -> Written:
    """Write a file of deletion vectors."""
    vectors = write_vectors(
        storage, [(name, to_bitmap(np.arange(0, ROWS, step))) for name, step in (("a", 3), ("b", 7))]
    )
    read: Read = lambda s: [list(bitmap) for _, bitmap in read_vectors(s, vectors)]  # noqa: E731 - typed
    return Written(ListedFile(vectors[0].path, 0, 0), [read], vectors)


def flips(path: str) -> Iterator[int]:
    """Change one bit at a time, and yield its place."""
    original, rng = Path(path).read_bytes(), random.Random(3)
    for _ in range(150):
        at = rng.randrange(len(original))
        changed = bytearray(original)
        changed[at] ^= 1 << rng.randrange(8)
        Path(path).write_bytes(changed)
        yield at
    Path(path).write_bytes(original)


@pytest.mark.parametrize("write", [data_file, delete_file, vector_file], ids=["data", "deletes", "vectors"])
def test_a_changed_bit_is_found(storage: FileSystemStorage, write: Callable[[FileSystemStorage], Written]) -> None:
    """A reader returns what was written, or names the file. The search for damaged files agrees."""
    written = write(storage)
    expected = [read(storage) for read in written.readers]
    check = ReadFiles(storage)
    files = [] if written.vectors else [written.listed]
    assert check(files, written.vectors) == []
    found = 0
    for at in flips(written.path):
        damaged = check(files, written.vectors)
        for read, before in zip(written.readers, expected, strict=True):
            try:
                assert read(storage) == before, at
            except DestinationChanged as error:
                named = error.code == "table_damaged" and written.path in error.message
                assert (named, damaged) == (True, [written.path]), at
        found += bool(damaged)
    assert found > 50
    assert check(files, written.vectors) == []


@pytest.mark.parametrize("write", [data_file, delete_file], ids=["data", "deletes"])
def test_a_changed_bit_in_a_footer_is_found(
    storage: FileSystemStorage, write: Callable[[FileSystemStorage], Written]
) -> None:
    """A file that passes has the columns, rows and bounds by which a reader with a filter finds its rows."""
    written = write(storage)
    check, before = ReadFiles(storage), facts(written.path)
    original = Path(written.path).read_bytes()
    footer = len(original) - 8 - int.from_bytes(original[-8:-4], "little")
    for at in range(footer, len(original) - 8):
        changed = bytearray(original)
        changed[at] ^= 1 << at % 8
        Path(written.path).write_bytes(changed)
        assert check([written.listed]) or facts(written.path) == before, at


def facts(path: str) -> list[object]:
    """Return what a reader with a filter relies on: IDs, rows and bounds that are not narrower than the values."""
    metadata = pq.read_metadata(path)
    ids = [f.metadata and f.metadata.get(b"PARQUET:field_id") for f in metadata.schema.to_arrow_schema()]
    return [ids, metadata.num_rows, *(bounds(metadata, i) for i in range(metadata.num_columns))]


def bounds(metadata: pq.FileMetaData, column: int) -> object:
    """Return True if the bounds of a column hold all values, which are ordered as their bytes are."""
    wanted = {0: (0, 2999), 1: (b"item 0", b"item 999"), 2: (0, 6)} if metadata.num_columns == 3 else {}
    found = metadata.row_group(0).column(column).statistics
    if found is None or not found.has_min_max:
        return True
    low, high = wanted.get(column, ((b"data", b"data"), (0, 2997))[column % 2])
    return found.min_raw <= low and found.max_raw >= high


@pytest.mark.parametrize(
    "change",
    [
        lambda f: replace(f, rows=f.rows + 1),
        lambda f: replace(f, bytes=f.bytes + 1),
        lambda f: replace(f, columns={**f.columns, 1: replace(f.columns[1], low=1)}),
        lambda f: replace(f, columns={**f.columns, 1: replace(f.columns[1], high=2998)}),
        lambda f: replace(f, columns={**f.columns, 2: replace(f.columns[2], low=b"item 1")}),
        lambda f: replace(f, columns={**f.columns, 3: replace(f.columns[3], nulls=1)}),
        lambda f: replace(f, columns={**f.columns, 7: f.columns[1]}),
    ],
)
def test_a_changed_fact_in_the_metadata_is_found(
    storage: FileSystemStorage, change: Callable[[ListedFile], ListedFile]
) -> None:
    """A count or a bound by which a reader would pass over rows names the file."""
    written = data_file(storage).listed
    assert ReadFiles(storage)([change(written)]) == [written.path]


EDGES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [math.nan, -0.0, 0.0, math.inf, 1e-45]),
    "double": (pa.float64(), [math.nan, -0.0, -math.inf, 5e-324]),
    "wide": (pa.decimal128(38, 10), [Decimal("-9999999999999999999999999999.9999999999"), Decimal(0)]),
    "narrow": (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0.01")]),
    "date": (pa.date32(), [date.min, date.max]),
    "time": (pa.time64("us"), [time.min, time.max]),
    "timestamp": (pa.timestamp("us"), [datetime.min, datetime.max]),
    "zoned": (pa.timestamp("us", "UTC"), [datetime.min.replace(tzinfo=UTC)]),
    "text": (pa.string(), ["", "\U0010ffff" * 40, "\uffff" * 30, "a" * 5000]),
    "bytes": (pa.binary(), [b"", b"\xff" * 40, b"\0", b"x" * 5000]),
    "fixed": (pa.binary(16), [b"\0" * 16, b"\xff" * 16]),
    "uuid": (pa.uuid(), [b"\0" * 16, b"\xff" * 16]),
    "list": (pa.list_(pa.field("element", pa.int32(), metadata={FIELD_ID: "99"})), [[1, None], []]),
}
"""Values at the edges of each type of Arrow that is written."""


@pytest.mark.parametrize("mode", [FULL, Mode(True, 16), Mode(True, 1), Mode(True, 0)])
def test_no_value_is_taken_for_damage(storage: FileSystemStorage, mode: Mode) -> None:
    """Whatever the metadata has of the bounds, they hold the file's values, also NULL, NaN and those that are cut."""
    schema = pa.schema(
        [pa.field(n, kind, metadata={FIELD_ID: str(i)}) for i, (n, (kind, _)) in enumerate(EDGES.items(), start=1)]
    )
    rows = max(len(values) for _, values in EDGES.values())
    for shift in range(rows):
        columns = [
            pa.array([None if i == shift else values[(i + shift) % len(values)] for i in range(rows)], kind)
            for kind, values in EDGES.values()
        ]
        with DataWriter(storage, schema) as writer:
            writer.write(pa.Table.from_arrays(columns, schema=schema))
        [file] = writer.files
        assert ReadFiles(storage)([listed(file, schema, mode)]) == []


@pytest.mark.parametrize("kind", [pa.binary(16), pa.uuid()], ids=str)
def test_a_changed_bound_of_a_uuid_is_found(storage: FileSystemStorage, kind: pa.DataType) -> None:
    """Its bounds are bytes, whether or not a file says that those of a fixed size are a UUID."""
    schema = pa.schema([pa.field("u", kind, metadata={FIELD_ID: "1"})])
    with DataWriter(storage, schema) as writer:
        writer.write(pa.table([pa.array([b"\1" * 16, b"\xfe" * 16], kind)], schema=schema))
    [file] = writer.files
    found = listed(file, schema)
    assert ReadFiles(storage)([found]) == []
    for bound in (ListedColumn(0, b"\2" + b"\0" * 15, b"\xff" * 16), ListedColumn(0, b"\0" * 16, b"\xfe" * 15 + b"\0")):
        assert ReadFiles(storage)([replace(found, columns={1: bound})]) == [file.path]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_bound_that_is_nan_is_no_damage(storage: FileSystemStorage, kind: type[np.floating[Any]]) -> None:
    """Spark states NaN in the footer of a file that has one. Readers ignore such a bound."""
    path, values = Path(storage.folder) / "spark.parquet", np.array([-1.5, 2.5], kind)
    schema = pa.schema([pa.field("x", pa.from_numpy_dtype(kind), metadata={FIELD_ID: "1"})])
    pq.write_table(pa.table([values], schema=schema), path, compression="none", use_dictionary=False)
    written = path.read_bytes()
    footer = len(written) - 8 - int.from_bytes(written[-8:-4], "little")
    columns = {1: ListedColumn(0, math.nan, math.nan)}
    for bound in values:
        stated = written[footer:].replace(bound.tobytes(), kind(math.nan).tobytes())
        assert stated != written[footer:]
        path.write_bytes(written[:footer] + stated)
        assert ReadFiles(storage)([ListedFile(str(path), len(values), len(written), columns)]) == []


def test_a_folder_in_the_place_of_a_file_is_damage(storage: FileSystemStorage) -> None:
    """So is a file in the place of its folder. Neither goes away by itself."""
    written = data_file(storage)
    path = Path(written.path)
    path.unlink()
    path.mkdir()
    for gone in (str(path), f"{path}/inside/x.parquet"):
        with pytest.raises(DestinationChanged) as raised:
            list(without_deletes(gone).read(storage, list(LAYOUT.arrow)))
        assert raised.value.code == "table_damaged"
    path.rmdir()
    path.touch()
    with pytest.raises(DestinationChanged):
        list(without_deletes(f"{path}/x.parquet").read(storage, list(LAYOUT.arrow)))


class Failing:
    """A file of an object store that stops to answer. Its errors have no number."""

    def __init__(self, content: bytes, good: int) -> None:
        self._left, self._at, self._content = good, 0, content
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Return bytes, as long as the store answers."""
        self._left -= 1
        if self._left < 0:
            raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation: Timeout was reached")
        size = len(self._content) if size is None or size < 0 else size
        found = self._content[self._at : self._at + size]
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move."""
        self._at = offset + (0, self._at, len(self._content))[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def close(self) -> None:
        """Close."""
        self.closed = True

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.mark.parametrize("good", range(2))
def test_a_store_that_does_not_answer_is_no_damage(storage: FileSystemStorage, good: int) -> None:
    """Arrow raises the same exception for both. The bytes decide."""
    path = data_file(storage).path

    class Away:
        def open(self, path: str) -> Failing:
            return Failing(Path(path).read_bytes(), good)

    with pytest.raises(Transient) as away:
        for _ in without_deletes(path).read(Away(), list(LAYOUT.arrow)):
            pass
    assert away.value.code == "destination_unavailable"
