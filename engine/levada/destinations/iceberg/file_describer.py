"""New files of an Iceberg table as Iceberg's Java objects, with their statistics and partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from levada.destinations.data_files.deletion_vectors import DeletionVector, files_of
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.delete_files import NewDeletes, describe_vectors
from levada.destinations.iceberg.java import CommitConflict, JavaObject, Jvm, java_errors
from levada.destinations.iceberg.metadata import TableMetadata
from levada.destinations.iceberg.partitioning import UNPARTITIONED, FilePartition
from levada.errors import DestinationChanged

_READERS: Final = 8
"""Threads that read file footers. A commit reads the footers of all its files, and a copy may have hundreds."""


@dataclass(frozen=True, slots=True)
class FileDescriber:
    """Describes the files of a commit to one version of a table."""

    jvm: Jvm
    java: JavaObject
    name: TableName
    metadata: TableMetadata

    def files(self, files: Iterable[WrittenFile], deletes: NewDeletes) -> tuple[list[JavaObject], list[JavaObject]]:
        """Return the data files and the position-delete files. Raise CommitConflict if a file is missing."""
        try:
            with java_errors(f"write to {self.name}"), ThreadPoolExecutor(_READERS) as pool:
                list(pool.map(self._require, files_of(deletes.vectors)))
                return list(pool.map(self._data_file, files)), list(pool.map(self._delete_file, deletes.files))
        except DestinationChanged as error:
            # No commit refers to the files yet, so another tool may have removed them as orphans.
            raise CommitConflict("file_vanished", f"a file was removed before its commit: {error.message}") from error

    def vectors(self, vectors: Sequence[DeletionVector]) -> list[JavaObject]:
        """Return the delete files of deletion vectors, new or replaced."""
        return describe_vectors(self.jvm, self.java.specs(), vectors, self._unpartitioned)

    def _require(self, written: WrittenFile) -> None:
        """Raise DestinationChanged if the file is missing, as reading its footer would."""
        self.java.io().newInputFile(written.path).getLength()

    def _data_file(self, written: WrittenFile) -> JavaObject:
        i = self.jvm.iceberg
        metrics = i.parquet.ParquetUtil.fileMetrics(
            self.java.io().newInputFile(written.path), i.MetricsConfig.forTable(self.java)
        )
        builder = self._placed(i.DataFiles.builder, written).withPath(written.path).withFormat("parquet")
        if isinstance(written.partition, FilePartition) and written.partition.sort_order:
            builder = builder.withSortOrder(self.java.sortOrders().get(written.partition.sort_order))
        return builder.withFileSizeInBytes(written.bytes).withMetrics(metrics).build()

    def _delete_file(self, written: WrittenFile) -> JavaObject:
        i = self.jvm.iceberg
        metrics = i.parquet.ParquetUtil.fileMetrics(
            self.java.io().newInputFile(written.path), i.MetricsConfig.forPositionDelete()
        )
        builder = self._placed(i.FileMetadata.deleteFileBuilder, written).ofPositionDeletes().withPath(written.path)
        return builder.withFormat("parquet").withFileSizeInBytes(written.bytes).withMetrics(metrics).build()

    def _placed(self, make: Callable[[JavaObject], JavaObject], written: WrittenFile) -> JavaObject:
        """Return a builder of a file, made by ``make``, with the file's partition."""
        partition = (
            written.partition if isinstance(written.partition, FilePartition) else FilePartition(self._unpartitioned)
        )
        spec = self.java.specs().get(partition.spec_id)
        builder = make(spec)
        if partition.values == UNPARTITIONED:
            return builder
        return builder.withPartition(
            self.jvm.iceberg.SingleValueParser.fromJson(spec.partitionType(), partition.values)
        )

    @property
    def _unpartitioned(self) -> int:
        specs, current = self.metadata.specs, self.metadata.spec_id
        return next((number for number in (current, *specs) if not specs[number]), current)
