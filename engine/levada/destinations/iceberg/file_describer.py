"""New files of an Iceberg table in Iceberg's JSON, with their metrics and partitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from levada.destinations.data_files.deletion_vectors import DeletionVector, files_of
from levada.destinations.data_files.storage import WrittenFile, storage_errors
from levada.destinations.iceberg.delete_files import NewDeletes, describe_vector
from levada.destinations.iceberg.java import CommitConflict, JavaObject, java_errors
from levada.destinations.iceberg.metadata import TableMetadata
from levada.destinations.iceberg.metrics import FULL, Mode, metrics_json
from levada.destinations.iceberg.partitioning import FilePartition
from levada.destinations.iceberg.storage import IcebergStorage

_METRICS: Final = "write.metadata.metrics."
"""The prefix of Iceberg's properties for the metrics of columns."""
_READERS: Final = 8
"""Threads that look for the files of a commit. That of a copy may have hundreds."""


@dataclass(slots=True)
class MetricsModes:
    """The metrics modes of a table's columns, by its properties, its sort order and the number of its columns."""

    ask: Callable[[Sequence[str]], Sequence[str]]
    """Return the text of each column's mode. It is a call of the JVM."""
    known: dict[tuple[str, ...], Mode] = field(default_factory=dict)

    def learn(self, columns: Iterable[tuple[str, ...]]) -> None:
        """Ask for the modes of columns that are not known yet, in one call."""
        unknown = [names for names in dict.fromkeys(columns) if names not in self.known]
        if unknown:
            texts = self.ask([".".join(names) for names in unknown])
            self.known |= zip(unknown, map(Mode.parse, texts), strict=True)

    def of(self, names: tuple[str, ...]) -> Mode:
        """Return the mode of a column, by its path in the table's schema."""
        self.learn([names])
        return self.known[names]


class KnownModes:
    """The metrics modes of one table, read again only if what they depend on has changed.

    ``opened`` is the table's ``OpenTable``.
    """

    def __init__(self, opened: JavaObject) -> None:
        self._opened = opened
        self._modes: MetricsModes | None = None
        self._from: tuple[int, int, Mapping[str, str]] | None = None

    def of(self, metadata: TableMetadata) -> MetricsModes:
        """Return the modes for the table's columns, sort order and properties."""
        properties = {k: v for k, v in metadata.properties.items() if k.startswith(_METRICS)}
        now = (metadata.schema_id, metadata.order_id, properties)
        if self._modes is None or self._from != now:
            self._modes, self._from = MetricsModes(self._ask), now
        return self._modes

    def _ask(self, columns: Sequence[str]) -> Sequence[str]:
        with java_errors("read the metrics modes of a table"):
            return list(json.loads(self._opened.metricsModes(json.dumps(columns))))


@dataclass(frozen=True, slots=True)
class FileDescriber:
    """Describes the files of a commit to one version of a table, in the JSON of Iceberg's ``ContentFileParser``."""

    metadata: TableMetadata
    modes: MetricsModes

    def data(self, files: Sequence[WrittenFile]) -> list[dict[str, Any]]:
        """Return the data files."""
        self.modes.learn(column.leaf.names for file in files for column in file.columns)
        return [{**self._described(f, "data"), **metrics_json(f.columns, self.modes.of)} for f in files]

    def deletes(self, deletes: NewDeletes) -> list[dict[str, Any]]:
        """Return the new delete files."""
        by_position = [
            {**self._described(f, "position-deletes"), **metrics_json(f.columns, lambda _: FULL)} for f in deletes.files
        ]
        return by_position + self.vectors(deletes.vectors)

    def vectors(self, vectors: Iterable[DeletionVector]) -> list[dict[str, Any]]:
        """Return the delete files of deletion vectors, new or replaced."""
        return [describe_vector(v, self._place(self._partition(v.partition))) for v in vectors]

    def _described(self, written: WrittenFile, content: str) -> dict[str, Any]:
        partition = self._partition(written.partition)
        return {
            **self._place(partition),
            "content": content,
            "file-path": written.path,
            "file-format": "parquet",
            "file-size-in-bytes": written.bytes,
            "record-count": written.rows,
            **({"sort-order-id": partition.sort_order} if content == "data" else {}),
        }

    def _partition(self, partition: Hashable) -> FilePartition:
        return partition if isinstance(partition, FilePartition) else FilePartition(self.metadata.unpartitioned_spec)

    def _place(self, partition: FilePartition) -> dict[str, Any]:
        """Return the spec and the partition.

        Iceberg leaves values that are NULL out, but without the partition it does not find a file in that of NULL.
        """
        spec = {"spec-id": partition.spec_id}
        return {**spec, "partition": json.loads(partition.values)} if self.metadata.specs[partition.spec_id] else spec


def require_files(storage: IcebergStorage, files: Sequence[WrittenFile], deletes: NewDeletes) -> None:
    """Raise CommitConflict if a file of a commit is missing.

    No commit refers to the files yet, so another tool may have removed them as orphans.
    """
    paths = [f.path for f in (*files, *deletes.files, *files_of(deletes.vectors))]
    with storage_errors(f"read {storage.folder}"):
        if len(paths) <= _READERS:
            found = [storage.exists(path) for path in paths]
        else:
            with ThreadPoolExecutor(_READERS) as pool:
                found = list(pool.map(storage.exists, paths))
    gone = next((path for path, there in zip(paths, found, strict=True) if not there), None)
    if gone is not None:
        raise CommitConflict(
            "file_vanished",
            f"a file was removed before its commit: {gone}",
            hint="if this persists, let no job remove orphan files that are younger than a day",
        )
