"""Inputs of a destination: rows of a copy, and the changes of one table of a made-up source of its own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from levada.schema import ReplicatedTableSchema
from levada.segments.limits import BatchLimits
from levada.testing import ArrowRows, Source, SourceTable
from levada.values import TableMode


class MemoryRows(ArrowRows):
    """The rows of a copy, a partition each, as Python values."""

    def __init__(self, schema: ReplicatedTableSchema, *partitions: list[dict[str, Any]]) -> None:
        super().__init__(schema, *(pa.RecordBatch.from_pylist(p, schema.arrow) for p in partitions))


class Stream(SourceTable):
    """The only table of a source, whose transactions are read one by one."""

    def __init__(
        self,
        schema: ReplicatedTableSchema,
        *,
        lsn: int = 1000,
        taken: int = 1000,
        mode: TableMode = TableMode.UPSERT,
    ) -> None:
        super().__init__(Source(row_group_bytes=1, lsn=lsn), schema, mode, taken=taken)

    def limit(self, **limits: int) -> None:
        """Let the next batches have these `BatchLimits`."""
        self.source.limits = BatchLimits(**limits)

    @property
    def lsn(self) -> int:
        """The commit LSN of the last transaction."""
        return self.source.lsn
