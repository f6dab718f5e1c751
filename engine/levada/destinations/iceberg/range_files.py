"""Descriptions of the data files of a copy's finished ranges, kept as JSON in the folder of the copy lease."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from levada.copy.rows import FinishedRange
from levada.destinations.data_files.layout import field_id
from levada.destinations.data_files.live_files import open_parquet
from levada.destinations.data_files.statistics import column_statistics
from levada.destinations.data_files.storage import WrittenFile, damaged, storage_errors, table_file
from levada.destinations.iceberg.partitioning import FilePartition
from levada.destinations.iceberg.storage import IcebergStorage

_REMOVERS: Final = 8


@dataclass(frozen=True, slots=True)
class RangeFiles:
    """The `levada.copy.rows.RangeKeeper` of an Iceberg table.

    ``storage`` is that of the lease's folder, and ``schema`` that of the data files. Statistics are not in the
    descriptions, because they are in the footers of the files.
    """

    storage: IcebergStorage
    schema: pa.Schema

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
            return FinishedRange(files, int(data["rows"]), int(data["unrepresentable"]))
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(path) from error

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
        partition = file.partition
        in_folder = file.path.removeprefix(self.storage.folder)
        place = None
        if isinstance(partition, FilePartition):
            place = [partition.spec_id, partition.values, partition.sort_order]
        return [in_folder, file.rows, file.bytes, place]

    def _of_json(self, raw: list[Any]) -> WrittenFile:
        name, rows, size, place = raw
        if "/" in name or not name.endswith(".parquet"):
            raise ValueError("not a data file of this folder")
        partition = None if place is None else FilePartition(int(place[0]), str(place[1]), int(place[2]))
        path = self.storage.folder + name
        with open_parquet(self.storage, path) as file, table_file(self.storage, path):
            if file.metadata.num_rows != rows or not _same_columns(file.schema_arrow, self.schema):
                raise damaged(path)
            columns = column_statistics(self.schema, file.metadata)
        return WrittenFile(path, int(rows), int(size), partition, columns)


def _same_columns(file: pa.Schema, wanted: pa.Schema) -> bool:
    """Return True if the file has these columns. The layout of a shadow copy may get other field IDs meanwhile."""
    return [(f.name, field_id(f)) for f in file] == [(f.name, field_id(f)) for f in wanted]
