"""The place of a table's files, and errors of its file system."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import fs

from levada.destinations.data_files.statistics import ColumnStatistics
from levada.errors import AccessDenied, DestinationChanged, Transient
from levada.locations import FULL

_log = logging.getLogger(__name__)

_BLOCK_BYTES: Final = 8 << 20
_ABSENT: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors of a path that is no file, as a part of it is missing or of another kind."""
_FOLDER: Final = "is a directory"
"""Arrow's words for a folder. Its exception has no number."""
_COPY_AGAIN: Final = "copy the table again: levada resync MANIFEST TABLE"


TARGET_BYTES: Final = 128 << 20
"""The size in bytes from which a data file is closed."""


@dataclass(frozen=True, slots=True)
class ParquetSettings:
    """The form of new Parquet files: the codec by Parquet's name, its level or None, and the size of a data file.

    Without ``uuid_bounds`` a column of UUIDs has no statistics.
    """

    compression: str = "zstd"
    level: int | None = None
    target_bytes: int = TARGET_BYTES
    uuid_bounds: bool = True


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is not committed yet.

    ``partition`` is in the form of the table's format, or None without one. ``columns`` has the statistics of each
    column of a Parquet file.
    """

    path: str
    rows: int
    bytes: int
    partition: Hashable = None
    columns: tuple[ColumnStatistics, ...] = field(default=(), repr=False, compare=False)


class FileSource(Protocol):
    """Files that can be read."""

    def open(self, path: str) -> Any:
        """Open a file for reading, as a binary file object with ``seek``."""
        ...


class Storage(FileSource, Protocol):
    """Access to a table's files. It is pickled into the tasks of a copy, and may contain secrets.

    Errors of the file system are OSError. Several threads call the methods at the same time.
    """

    @property
    def folder(self) -> str:
        """The folder of new files. It ends with a slash."""
        ...

    @property
    def parquet(self) -> ParquetSettings:
        """The form of new Parquet files."""
        ...

    def create(self, path: str) -> Any:
        """Open a new file for writing, as a binary file object with ``tell``."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file."""
        ...


@dataclass(frozen=True, slots=True)
class FileSystemStorage:
    """A folder of a file system of Arrow. Paths are those of ``file_system``, without a scheme."""

    folder: str
    file_system: fs.FileSystem = field(repr=False)
    parquet: ParquetSettings = field(default_factory=ParquetSettings)

    def create(self, path: str) -> pa.NativeFile:
        """Open a new file for writing. A local folder is created if it does not exist."""
        if isinstance(self.file_system, fs.LocalFileSystem):
            self.file_system.create_dir(path.rpartition("/")[0], recursive=True)
        return self.file_system.open_output_stream(path)

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading."""
        return self.file_system.open_input_file(path)

    def delete(self, path: str) -> None:
        """Remove a file."""
        self.file_system.delete_file(path)


def remove_files(storage: Storage, files: Iterable[WrittenFile]) -> None:
    """Remove uncommitted files. A file that cannot be removed is left as an orphan."""
    for written in files:
        try:
            storage.delete(written.path)
        except Exception as error:
            _log.warning("cannot remove the orphan file %s: %s", written.path, type(error).__name__)


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
        raise Transient(
            "destination_unavailable",
            f"{what}: {error}",
            hint="if this persists, check that the catalog and the storage of the lake answer",
        ) from error


@contextmanager
def table_file(storage: FileSource, path: str) -> Iterator[None]:
    """Raise DestinationChanged if a file of the table is missing, or if its bytes can be read but are not valid.

    Other errors are converted as by `storage_errors`. Arrow has one exception for a page that is damaged and for an
    object store that does not answer. So the bytes are read again after an error.
    """
    with storage_errors(f"read {path}"):
        try:
            yield
        except _ABSENT as error:
            raise damaged(path) from error
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            with _missing_is_damage(path):
                _read_to_the_end(storage, path)
            raise damaged(path) from error


@contextmanager
def _missing_is_damage(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, _ABSENT) or (error.errno is None and _FOLDER in str(error)):
            raise damaged(path) from error
        raise


def _read_to_the_end(storage: FileSource, path: str) -> None:
    with storage.open(path) as source:
        while source.read(_BLOCK_BYTES):
            pass


def damaged(path: str) -> DestinationChanged:
    """Return the error for a file of the table that is missing or damaged."""
    return DestinationChanged("table_damaged", f"a file of the table is missing or damaged: {path}", hint=_COPY_AGAIN)
