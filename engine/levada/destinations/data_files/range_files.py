"""Descriptions of the data files of a copy's finished ranges, kept as JSON in the folder of the copy's files."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from levada.copy.rows import FinishedRange
from levada.destinations.data_files.layout import field_id
from levada.destinations.data_files.live_files import open_parquet
from levada.destinations.data_files.statistics import column_statistics
from levada.destinations.data_files.storage import Storage, WrittenFile, damaged, storage_errors, table_file

_REMOVERS: Final = 8


class PartitionTexts(Protocol):
    """The partitions of data files as values of JSON. It is pickled into the tasks of a copy."""

    def to_json(self, partition: Hashable) -> Any:
        """Return the partition of a file as a value of JSON."""
        ...

    def of_json(self, value: Any) -> Hashable:
        """Return the partition of a value. Raise ValueError, TypeError or KeyError for a value of another form."""
        ...


@dataclass(frozen=True, slots=True)
class Unpartitioned:
    """The partitions of a table that has none."""

    def to_json(self, partition: Hashable) -> None:
        """Return None."""

    def of_json(self, value: Any) -> None:
        """Return None."""


@dataclass(frozen=True, slots=True)
class RangeFiles:
    """The `levada.copy.rows.RangeKeeper` of a table whose files Levada writes.

    ``storage`` is that of the copy's folder, and ``schema`` that of the data files. Statistics are not in the
    descriptions, because they are in the footers of the files.
    """

    storage: Storage
    schema: pa.Schema
    partitions: PartitionTexts = Unpartitioned()

    @property
    def place(self) -> str:
        """The folder."""
        return self.storage.folder

    def save(self, name: str, finished: FinishedRange[list[WrittenFile]]) -> None:
        """Write the description of the range's files."""
        content = json.dumps(
            {
                "rows": finished.rows,
                "unrepresentable": finished.unrepresentable,
                "files": [self._to_json(f) for f in finished.value],
            }
        ).encode()
        path = self._path(name)
        with storage_errors(f"write {path}"):
            try:
                sink = self.storage.create(path)
            except FileExistsError:
                # A task that was repeated has left it.
                self.storage.delete(path)
                sink = self.storage.create(path)
            with sink:
                sink.write(content)

    def load(self, name: str) -> FinishedRange[list[WrittenFile]]:
        """Read a description. Raise DestinationChanged if it is missing or damaged."""
        path = self._path(name)
        with table_file(self.storage, path), self.storage.open(path) as source:
            content = source.read()
        try:
            data = json.loads(content)
            files = [self._of_json(raw) for raw in data["files"]]
            finished = FinishedRange(files, int(data["rows"]), int(data["unrepresentable"]))
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(path) from error
        # Every row of a range is in one of its files.
        if sum(file.rows for file in files) != finished.rows:
            raise damaged(path)
        return finished

    def remove(self, names: Sequence[str]) -> None:
        """Remove descriptions. Those that cannot be removed are left as orphans."""

        def remove(name: str) -> None:
            with suppress(Exception):
                self.storage.delete(self._path(name))

        with ThreadPoolExecutor(_REMOVERS) as pool:
            list(pool.map(remove, names))

    def _path(self, name: str) -> str:
        return f"{self.storage.folder}{name}.json"

    def _to_json(self, file: WrittenFile) -> list[Any]:
        in_folder = file.path.removeprefix(self.storage.folder)
        return [in_folder, file.rows, file.bytes, self.partitions.to_json(file.partition)]

    def _of_json(self, raw: list[Any]) -> WrittenFile:
        name, rows, size, place = raw
        if "/" in name or not name.endswith(".parquet"):
            raise ValueError("not a data file of this folder")
        partition = self.partitions.of_json(place)
        path = self.storage.folder + name
        with open_parquet(self.storage, path) as file, table_file(self.storage, path):
            if file.metadata.num_rows != rows or not _same_columns(file.schema_arrow, self.schema):
                raise damaged(path)
            columns = column_statistics(self.schema, file.metadata)
        return WrittenFile(path, int(rows), int(size), partition, columns)


def _same_columns(file: pa.Schema, wanted: pa.Schema) -> bool:
    """Return True if the file has these columns. The layout of a shadow copy may get other field IDs meanwhile."""
    return [(f.name, field_id(f)) for f in file] == [(f.name, field_id(f)) for f in wanted]
