"""Writes the rows of one task of a copy to data files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from levada.destinations.data_files.arrangement import ArrangedWriter
from levada.destinations.data_files.layout import FileLayout, project
from levada.destinations.data_files.storage import Storage, WrittenFile
from levada.destinations.fenced import copied_constants
from levada.destinations.interface import TableMode
from levada.schema import ReplicatedTableSchema
from levada.values import Lsn


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes one partition of a copy to data files. It is pickled into Spark tasks.

    ``constants`` has the values of columns that the rows lack, by column name.
    """

    storage: Storage
    layout: FileLayout
    schema: ReplicatedTableSchema
    constants: Mapping[str, Any]

    @classmethod
    def of_copy(
        cls, storage: Storage, layout: FileLayout, schema: ReplicatedTableSchema, mode: TableMode, lsn: Lsn
    ) -> Self:
        """Return the writer of a copy's rows as of ``lsn``."""
        return cls(storage, layout, schema, copied_constants(mode, lsn))

    def __call__(self, reader: pa.RecordBatchReader) -> list[WrittenFile]:
        """Write the rows, and return the files."""
        with ArrangedWriter(self.storage, self.layout) as writer:
            for batch in reader:
                writer.write(project(self._with_constants(batch), self.layout, self.schema))
        return writer.files

    def _with_constants(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        types = self.layout.arrow
        for name, value in self.constants.items():
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, types.field(name).type), batch.num_rows))
        return batch
