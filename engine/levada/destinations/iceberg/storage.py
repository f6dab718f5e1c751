"""The files of an Iceberg table, accessed by PyIceberg with the properties of the table's catalog."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from levada.destinations.data_files.layout import FIELD_ID
from levada.destinations.data_files.storage import TARGET_BYTES, ParquetSettings
from levada.destinations.iceberg.table_properties import CODEC, DEFAULT_CODEC, LEVEL, MAX_LEVELS, TARGET_SIZE

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputStream, OutputStream

# Fixed by Iceberg's specification, "Position Delete Files".
POSITION_DELETES: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: "2147483545"}),
    ]
)


@dataclass(frozen=True, slots=True)
class IcebergStorage:
    """The folder for a table's new files, and PyIceberg's properties to access it. May contain secrets."""

    folder: str
    properties: Mapping[str, str] = field(repr=False)
    parquet: ParquetSettings = field(default_factory=ParquetSettings)

    def create(self, path: str) -> OutputStream:
        """Open a new file for writing."""
        return self.io().new_output(path).create()

    def open(self, path: str) -> InputStream:
        """Open a file for reading."""
        return self.io().new_input(path).open()

    def exists(self, path: str) -> bool:
        """Return True if there is a file of this path."""
        return self.io().new_input(path).exists()

    def delete(self, path: str) -> None:
        """Remove a file."""
        self.io().delete(path)

    def io(self) -> FileIO:
        """Return PyIceberg's access to the files. It has a connection pool, and one for each folder is kept."""
        return _file_io(self.folder, tuple(sorted(self.properties.items())))


@lru_cache(maxsize=64)
def _file_io(folder: str, properties: tuple[tuple[str, str], ...]) -> FileIO:
    # Cached, because it has a connection pool of the object store.
    from pyiceberg.io import load_file_io

    return load_file_io(dict(properties), folder)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """The identity of a file that is written once: another file of the same path differs."""

    inode: int
    bytes: int
    modified_ns: int


def local_file(location: str) -> LocalFile | None:
    """Return the identity of a file by its location as Hadoop writes it, or None if it is missing or not local."""
    path = location.removeprefix("file:")
    if not path.startswith("/") or path.startswith("//"):
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return LocalFile(found.st_ino, found.st_size, found.st_mtime_ns)


def parquet_settings(properties: Mapping[str, str]) -> ParquetSettings:
    """Return the form of new files by the table's properties.

    Any writer can set a property. A text that Levada does not support counts as not set.
    """
    codec = properties.get(CODEC, DEFAULT_CODEC).lower()
    codec = codec if codec in MAX_LEVELS else DEFAULT_CODEC
    level = _number(properties.get(LEVEL))
    target = _number(properties.get(TARGET_SIZE))
    return ParquetSettings(
        "none" if codec == "uncompressed" else codec,
        level if level is not None and 1 <= level <= MAX_LEVELS[codec] else None,
        target if target is not None and 1 << 20 <= target <= 1 << 30 else TARGET_BYTES,
        # Iceberg's library in Java, and so Spark, compares UUIDs as pairs of signed numbers, and passes over files and
        # row groups with the value that a filter asks for (https://github.com/apache/iceberg/issues/14216).
        uuid_bounds=False,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
